"""Shell completions, made from the table of flags: `eval "$(dynamo-run --completion bash)"`.

Not made with shtab: bash breaks words at `=` and `:`, and shtab completes only whole words, so it cannot complete
`in=ht` or `out=pystr:fi` (docs/decisions/0001-dependencies.md).
"""

from __future__ import annotations

from dynamo.cli.commands import BY_NAME
from dynamo.cli.run import flags
from dynamo.engines.catalog import plugin_names
from dynamo.model.pull.short_names import SHORT_NAMES
from dynamo.settings import Option

_INPUTS = " ".join(f"in={word}" for word in flags.INPUTS)
_FLAGS = " ".join([*flags.BY_WORD, *flags.NEGATED, *flags.OTHER_WORDS])

_COMMANDS = f"{' '.join(BY_NAME)} --version --help --completion"
_TABLES = "tasks streams bookings links queues"
_OWN_FLAGS = "$(dynamo --flags {} 2>/dev/null)"
"""The flags of a command, asked when the user presses tab: some parsers take long to make."""
_MODELS = "$(dynamo list 2>/dev/null | awk 'NR > 1 {print $1}')"
_SOCKETS = "$(dynamo inspect 2>/dev/null | awk '$1 ~ /^[0-9]+$/ {print $1}')"
"""The processes that can be inspected, asked when the user presses tab."""


def script(shell: str) -> str:
    outputs = " ".join((*flags.ENGINES, *plugin_names(), *(f"{name}:" for name in flags.FILE_ENGINES), "dyn"))
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](outputs)


def _bash(outputs: str) -> str:
    choices_of = {word: option.choices for word, option in flags.BY_WORD.items() if option.choices}
    choices_of["--completion"] = flags.SHELLS
    cases = "\n".join(
        f'        {word}) COMPREPLY=($(compgen -W "{" ".join(choices)}" -- "$word")); return ;;'
        for word, choices in choices_of.items()
    )
    # "=" and ":" are word breaks in bash, so the word is cut out of the line and completed after its last break.
    return f"""\
_dynamo_run() {{
    local line="${{COMP_LINE:0:$COMP_POINT}}" word before
    word="${{line##* }}"
    before="${{COMP_WORDS[COMP_CWORD-1]}}"
    case "$before" in
{cases}
    esac
    case "$word" in
        in=batch:*) COMPREPLY=($(compgen -f -- "${{word#in=batch:}}")) ;;
        out=pystr:*|out=pytok:*) COMPREPLY=($(compgen -f -- "${{word#out=py???:}}")) ;;
        in=*) COMPREPLY=($(compgen -W "{" ".join(flags.INPUTS)}" -- "${{word#in=}}")) ;;
        out=*) COMPREPLY=($(compgen -W "{outputs}" -- "${{word#out=}}")) ;;
        -*) COMPREPLY=($(compgen -W "{_FLAGS}" -- "$word")) ;;
        *) COMPREPLY=($(compgen -W "in= out=" -- "$word") $(compgen -f -- "$word")) ;;
    esac
    [[ "${{COMPREPLY[0]}}" == *[=:/] ]] && compopt -o nospace
}}
complete -o filenames -F _dynamo_run dynamo-run
_dynamo() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}"
    case "$COMP_CWORD:${{COMP_WORDS[1]}}" in
        1:*) COMPREPLY=($(compgen -W "{_COMMANDS}" -- "$word")) ;;
        2:inspect) COMPREPLY=($(compgen -W "{_SOCKETS}" -- "$word")) ;;
        *:run) _dynamo_run ;;
        *:rm) COMPREPLY=($(compgen -W "{_MODELS}" -- "$word")) ;;
        *:pull) COMPREPLY=($(compgen -W "{" ".join(SHORT_NAMES)} --sha256 --help" -- "$word")) ;;
        *) case "$word" in
            -*) COMPREPLY=($(compgen -W "{_OWN_FLAGS.format('"${COMP_WORDS[1]}"')}" -- "$word"))
                return ;;
           esac
           [[ "${{COMP_WORDS[1]}}" == inspect ]] && COMPREPLY=($(compgen -W "{_TABLES}" -- "$word")) && return
           COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}}
complete -o filenames -F _dynamo dynamo
"""


def _zsh(outputs: str) -> str:
    about = [
        f"    '{'*' if option.kind is tuple else ''}{word}[{_about(option)}]:{option.metavar}:{_zsh_values(option)}'"
        for word, option in flags.BY_WORD.items()
    ]
    lines = " \\\n".join([*about, "    '*:word:_dynamo_run_words'"])
    return f"""\
#compdef dynamo-run
_dynamo_run_words() {{
    compset -P 'in=batch:' && {{ _files; return }}
    compset -P 'out=py(str|tok):' && {{ _files; return }}
    compadd -S '' -- {_INPUTS} {_prefixed(outputs)}
    _files
}}
_dynamo_run() {{
    _arguments -S \\
    '(-h --help)'{{-h,--help}}'[show the help]' '--version[show the version]' '*-v[log more]' '-vv[log all]' \\
    '--completion[print this script]:shell:({" ".join(flags.SHELLS)})' \\
{lines}
}}
compdef _dynamo_run dynamo-run
_dynamo() {{
    if (( CURRENT == 2 )); then compadd -- {_COMMANDS}
    elif [[ $words[2] == inspect && CURRENT -eq 3 ]]; then compadd -- {_SOCKETS}
    elif [[ $words[2] == run ]]; then words=(dynamo-run ${{words[3,-1]}}); (( CURRENT-- )); _dynamo_run
    elif [[ $words[2] == rm ]]; then compadd -- {_MODELS}
    elif [[ $words[2] == pull ]]; then compadd -- {" ".join(SHORT_NAMES)} --sha256 --help
    elif [[ $PREFIX == -* ]]; then compadd -- {_OWN_FLAGS.format("$words[2]")}
    elif [[ $words[2] == inspect ]]; then compadd -- {_TABLES}
    else _files; fi
}}
compdef _dynamo dynamo
"""


def _zsh_values(option: Option) -> str:
    if choices := _choices(option):
        return f"({' '.join(choices)})"
    return "_files" if flags.takes_path(option) else " "


def _fish(outputs: str) -> str:
    lines = [f"complete -c dynamo-run -a '{_INPUTS} {_prefixed(outputs)}'"]
    for word, option in flags.BY_WORD.items():
        choices = _choices(option)
        values = f" -xa '{' '.join(choices)}'" if choices else " -r"
        lines.append(f"complete -c dynamo-run -l {word[2:]}{values} -d '{_about(option)}'")
    lines += [
        "complete -c dynamo-run -s h -l help -d 'show the help'",
        "complete -c dynamo-run -l version -d 'show the version'",
        "complete -c dynamo-run -s v -d 'log more'",
        f"complete -c dynamo-run -l completion -xa '{' '.join(flags.SHELLS)}' -d 'print this script'",
    ]
    lines += [
        f"complete -c dynamo -n __fish_use_subcommand -xa '{_COMMANDS}'",
        f"complete -c dynamo -n '__fish_seen_subcommand_from inspect' -a '{_TABLES}'",
        f"complete -c dynamo -n '__fish_seen_subcommand_from pull' -a '{' '.join(SHORT_NAMES)}'",
        "complete -c dynamo -n '__fish_seen_subcommand_from rm' "
        "-a '(dynamo list 2>/dev/null | string match -rg \"^(\\S+)\" | tail -n +2)'",
        *(
            f"complete -c dynamo -n '__fish_seen_subcommand_from {name}; "
            'and string match -q -- "-*" (commandline -ct)\' '
            f"-a '(dynamo --flags {name} 2>/dev/null | string split \" \")'"
            for name in BY_NAME
            if name != "run"
        ),
    ]
    return "\n".join(lines) + "\n"


def _choices(option: Option) -> tuple[str, ...]:
    return ("true", "false") if option.kind is bool else option.choices


def _about(option: Option) -> str:
    """The help text without the characters that would end a word of the script."""
    return option.setting.help.replace("'", "’").replace(":", " -").replace("[", "(").replace("]", ")")


def _prefixed(outputs: str) -> str:
    return " ".join(f"out={word}" for word in outputs.split())

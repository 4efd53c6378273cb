"""Shell completions, made from the table of flags: `eval "$(dynamo-run --completion bash)"`."""

from __future__ import annotations

from dynamo.run import flags

_INPUTS = " ".join(f"in={word}" for word in flags.INPUTS)
_OUTPUTS = " ".join(f"out={word}" for word in (*flags.ENGINES, "pystr:", "pytok:", "dyn"))
_FLAGS = " ".join([*flags.BY_WORD, *flags.OTHER_WORDS])


def script(shell: str) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _bash() -> str:
    cases = "\n".join(
        f'        {name}) COMPREPLY=($(compgen -W "{" ".join(choices)}" -- "$word")); return ;;'
        for name, choices in _choices()
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
        out=*) COMPREPLY=($(compgen -W "{_OUTPUTS.replace("out=", "")}" -- "${{word#out=}}")) ;;
        -*) COMPREPLY=($(compgen -W "{_FLAGS}" -- "$word")) ;;
        *) COMPREPLY=($(compgen -W "in= out=" -- "$word") $(compgen -f -- "$word")) ;;
    esac
    [[ "${{COMPREPLY[0]}}" == *[=:/] ]] && compopt -o nospace
}}
complete -o filenames -F _dynamo_run dynamo-run
"""


def _zsh() -> str:
    about = [f"    '{flag.name}[{flag.about}]:{flag.metavar}:{_zsh_values(flag)}'" for flag in flags.FLAGS]
    lines = " \\\n".join([*about, "    '*:word:_dynamo_run_words'"])
    return f"""\
#compdef dynamo-run
_dynamo_run_words() {{
    compset -P 'in=batch:' && {{ _files; return }}
    compset -P 'out=py(str|tok):' && {{ _files; return }}
    compadd -S '' -- {_INPUTS} {_OUTPUTS}
    _files
}}
_dynamo_run() {{
    _arguments -S \\
    '(-h --help)'{{-h,--help}}'[show the help]' '--version[show the version]' '*-v[log more]' '-vv[log all]' \\
    '--completion[print this script]:shell:({" ".join(flags.SHELLS)})' \\
{lines}
}}
compdef _dynamo_run dynamo-run
"""


def _zsh_values(flag: flags.Flag) -> str:
    if flag.choices:
        return f"({' '.join(flag.choices)})"
    return "_files" if flag.kind == "file" else " "


def _fish() -> str:
    lines = [f"complete -c dynamo-run -a '{_INPUTS} {_OUTPUTS}'"]
    for flag in flags.FLAGS:
        values = f" -xa '{' '.join(flag.choices)}'" if flag.choices else " -r"
        lines.append(f"complete -c dynamo-run -l {flag.name[2:]}{values} -d '{flag.about}'")
    lines += [
        "complete -c dynamo-run -s h -l help -d 'show the help'",
        "complete -c dynamo-run -l version -d 'show the version'",
        "complete -c dynamo-run -s v -d 'log more'",
        f"complete -c dynamo-run -l completion -xa '{' '.join(flags.SHELLS)}' -d 'print this script'",
    ]
    return "\n".join(lines) + "\n"


def _choices() -> list[tuple[str, tuple[str, ...]]]:
    return [(flag.name, flag.choices) for flag in flags.FLAGS if flag.choices] + [("--completion", flags.SHELLS)]

"""`dynamo-run --help`, in one screen, examples last."""

from __future__ import annotations

from dynamo.cli.run import flags
from dynamo.settings import Option
from dynamo.settings.setting import one_of

_FILES = "  ".join(f"{name}:FILE.py" for name in flags.FILE_ENGINES)
_HEAD = f"""\
usage: dynamo-run [in=INPUT] [out=OUTPUT] [flags] [MODEL] [-- engine arguments]          (in any order)

  in=   text (a chat; the default)    stdin (one answer; the default in a pipe)    http (OpenAI API)
        batch:FILE (JSON lines)       dyn://NAMESPACE.COMPONENT.ENDPOINT (worker)  none (follower node)
  out=  {"  ".join(flags.ENGINES)}
        {_FILES} (your own engine)    dyn or auto (workers on the network)
        without out=, llamacpp runs a GGUF file if it is installed, and mistralrs everything else
  MODEL a Hugging Face id, folder, GGUF file, URL or short name; without one, 'tiny', the bundled one
"""

_TAIL = """\
More      --draft-model, --api-key …: all of python -m dynamo.vllm and dynamo.frontend, see their --help
General   -v, -vv, --verbosity N         log more; finer with DYN_LOG=debug,dynamo.router=trace
          --version, --completion SHELL  the version; a script for bash, zsh or fish

  dynamo-run                                               chat with the bundled model
  dynamo-run Qwen/Qwen3-0.6B                               chat with a model from Hugging Face
  echo "What is the capital of France?" | dynamo-run       one answer on stdout
  dynamo-run in=http --http-port 8080 model.gguf           OpenAI-compatible server
  dynamo-run in=batch:prompts.jsonl ~/models/Qwen3-4B      answers go to output.jsonl beside it
  dynamo-run in=http out=dyn                               node 1: a server for workers that join
  dynamo-run in=dyn://qwen.backend.generate Qwen/Qwen3-4B  node 2: a worker
"""


def help_text() -> str:
    lines = []
    for group in flags.GROUPS:
        label = group[0].upper() + group[1:]
        for option in flags.SHOWN:
            if option.group == group:
                lines.append(f"{label:<9} {option.name + ' ' + option.metavar:<30} {_about(option)}")
                label = ""
    return "\n".join([_HEAD, *lines, _TAIL])


def _about(option: Option) -> str:
    """The flag's help text with its choices, or the choices alone if they are many, and its default."""
    text = option.setting.help
    if option.choices:
        text = f"{text}: {one_of(option.choices)}" if len(option.choices) < 4 else "|".join(option.choices)
    return f"{text} ({option.shown_default})" if option.shown_default else text

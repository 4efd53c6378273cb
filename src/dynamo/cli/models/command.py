"""`dynamo pull NAME`, `dynamo list` and `dynamo rm NAME`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

from dynamo.model.hub import HubConfig, PullConfig
from dynamo.model.pull import SHORT_NAMES, kept_models, remove_model
from dynamo.model.pull.download import in_words
from dynamo.model.source import BUNDLED, is_address, is_pulled_gguf, pull_address, resolve
from dynamo.protocols.errors import ModelError
from dynamo.settings import nearest
from dynamo.settings.arguments import CommandParser

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def pull_parser() -> CommandParser:
    parser = CommandParser("dynamo pull", "Download a model, or go on with a download that broke off.", _about_names())
    parser.add_argument("name", metavar="NAME", help="a short name, a Hugging Face id, a GGUF file of one, or a URL")
    parser.add_argument("--sha256", metavar="HEX", help="of a URL: the checksum that the file must have")
    return parser


def list_parser() -> CommandParser:
    return CommandParser("dynamo list", "Show the models on this machine, by the names that commands take.")


def rm_parser() -> CommandParser:
    parser = CommandParser("dynamo rm", "Remove models from this machine.")
    parser.add_argument("names", metavar="NAME", nargs="+", help="as `dynamo list` shows it")
    return parser


def _about_names() -> str:
    rows = [
        f"  {name:<22} {each.about} ({each.licence}, {each.context:,} tokens of context)"
        for name, each in SHORT_NAMES.items()
    ]
    forms = (
        "  org/name               a model of Hugging Face; HF_TOKEN is used for gated ones",
        "  org/name:Q4_K_M        its GGUF file of that quantisation",
        "  org/name/FILE.gguf     that GGUF file",
        "  https://…/FILE.gguf    a GGUF file from anywhere",
    )
    return "\n".join(["names:", *rows, *forms, "", "`dynamo-run NAME` pulls a model too, when it is not here."])


def pull(words: Sequence[str], environ: Mapping[str, str]) -> int:
    asked = pull_parser().parse_args(words)
    name, sha256 = asked.name, asked.sha256
    try:
        if sha256 is not None and not (_SHA256.fullmatch(sha256) and is_address(name)):
            raise ModelError("--sha256 takes 64 hexadecimal digits, and belongs to a URL")
        if name == BUNDLED:
            raise ModelError(f"{BUNDLED} is part of Dynamo: there is nothing to pull")
        if "/" not in name and name not in SHORT_NAMES and (near := nearest(name, SHORT_NAMES)):
            raise ModelError(f"'{name}' is no short name{near}")
        config = HubConfig.from_env(environ)
        path = (
            pull_address(name, config, sha256.lower()) if sha256 else resolve(name, config=config, tokenizer=False).path
        )
    except (ModelError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; `dynamo pull {name}` goes on from there", file=sys.stderr)
        return 130
    print(path)
    if sys.stdout.isatty():
        print(f"to chat with it: dynamo-run {name if is_pulled_gguf(name) else path}")
    return 0


def show(words: Sequence[str], environ: Mapping[str, str]) -> int:
    list_parser().parse_args(words)
    pulled, hub = PullConfig.from_env(environ).folder, HubConfig.from_env(environ).cache
    models = kept_models(pulled, hub)
    width = max([len(BUNDLED), *(len(model.name) for model in models)])
    print(f"{'NAME':<{width}}  {'SIZE':>8}")
    print(f"{BUNDLED:<{width}}  {'8.0 MB':>8}  part of Dynamo")
    for model in models:
        note = "" if model.finished else "  unfinished: pull it again to go on"
        print(f"{model.name:<{width}}  {in_words(model.size):>8}{note}")
    return 0


def remove(words: Sequence[str], environ: Mapping[str, str]) -> int:
    asked = rm_parser().parse_args(words)
    pulled, hub = PullConfig.from_env(environ).folder, HubConfig.from_env(environ).cache
    failed = False
    for name in asked.names:
        try:
            model = remove_model(name, pulled, hub)
            print(f"removed {name}: {in_words(model.size)}")
        except ModelError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0

"""Flags of ai-dynamo that published manifests give and nothing here needs: accepted, with what they mean here."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

log = logging.getLogger(__name__)

_LIST = "foreign"


class ForeignFlag(Struct, frozen=True):
    flag: str
    takes: Literal["value", "bool"]
    means: str
    """What holds here in its place."""


def _flags(takes: Literal["value", "bool"], means: str, *flags: str) -> list[ForeignFlag]:
    return [ForeignFlag(flag, takes, means) for flag in flags]


ROUTER_FLAGS = (
    *_flags("value", "a model is served with its first worker", "--router-min-initial-workers"),
    *_flags("value", "the cost of a prompt is what it was measured to be", "--router-prefill-load-scale",
        "--router-prefill-load-model"),
    *_flags("value", "running requests cost what their KV blocks do", "--router-decode-active-request-weight"),
    *_flags("bool", "the blocks and the waiting tokens of prompts are always counted", "--router-track-active-blocks",
        "--router-track-prefill-tokens", "--router-assume-kv-reuse"),
    *_flags("bool", "the blocks of answers are not counted", "--router-track-output-blocks"),
    *_flags("value", "one thread keeps the index", "--router-event-threads"),
    *_flags("bool", "each router has an index of its own", "--use-remote-indexer", "--serve-indexer"),
    *_flags("value", "--router-ttl-secs is the time for which a prompt is assumed to stay cached",
        "--router-predicted-ttl-secs"),
    *_flags("value", "caches that workers share count as --router-disk-cache-hit-weight says",
        "--shared-cache-multiplier", "--shared-cache-type"),
)  # fmt: skip
FRONTEND_FLAGS = (
    *_flags("bool", "no code of a model is run: its tokenizer and its chat template are read", "--trust-remote-code"),
    *_flags("value", "the workers say it with their model", "--kv-cache-block-size", "--model-name", "--model-path"),
    *_flags("value", "messages are rendered and answers parsed by this frontend, whatever the engine",
        "--dyn-chat-processor"),
    *_flags("value", "it is the workers' flag; without it the model's own format is found", "--dyn-tool-call-parser",
        "--dyn-reasoning-parser"),
    *_flags("value", "the fastest tokenizer that gives the model's own tokens is used", "--tokenizer"),
    *_flags("bool", "the fastest tokenizer that gives the model's own tokens is used", "--tokenizer-fallback"),
    *_flags("value", "long texts are tokenized in threads", "--dyn-preprocess-workers"),
    *_flags("bool", "metrics show these times", "--dyn-debug-perf"),
    *_flags("bool", "the Messages API is always served", "--enable-anthropic-api"),
    *_flags("bool", "tools are left out of the prompt where tool_choice is none",
        "--exclude-tools-when-tool-choice-none"),
    *_flags("bool", "workers that are busy refuse by --active-decode-blocks-threshold and its like",
        "--admission-control"),
    *_flags("bool", "decode workers compute prompts while there is no prefill worker", "--enforce-disagg"),
    *ROUTER_FLAGS,
)  # fmt: skip


class _NoteFlag(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, _LIST, [*(getattr(namespace, _LIST, None) or ()), self.option_strings[0]])


def accept(parser: argparse.ArgumentParser, flags: Iterable[ForeignFlag]) -> None:
    """Let the command take these too; its help does not name them."""
    for each in flags:
        words = [each.flag, f"--no-{each.flag[2:]}"] if each.takes == "bool" else [each.flag]
        nargs = "?" if each.takes == "bool" else None
        parser.add_argument(*words, nargs=nargs, action=_NoteFlag, dest=_LIST, help=argparse.SUPPRESS)


def log_accepted(parsed: Mapping[str, Any], flags: Sequence[ForeignFlag]) -> None:
    """One line for each of them that was given."""
    means = {each.flag: each.means for each in flags}
    for flag in dict.fromkeys(parsed.get(_LIST) or ()):
        log.warning("%s has no effect here: %s", flag, means[flag])

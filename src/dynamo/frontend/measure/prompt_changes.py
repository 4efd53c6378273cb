"""Finds where the prompt of a turn differs from those before it although it continues one of them.

From there on nothing is cached: a clock, an id or a billing line near the beginning costs the whole prompt each time.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from dynamo.protocols.engine import Session

MOST_BYTES = 32 << 20
"""Prompts that are kept, in all."""
KEPT_PROMPTS = 4
"""Prompts kept of each session: agents ask for titles and summaries beside their conversation."""
KEPT_OPENINGS = 16
LEAST_TOKENS = 256
"""A change that costs less is not worth a line."""
END = 64
"""Templates end a prompt with tokens that the next turn does not have: a change so near the end is none."""
_PROBE, _PROBES = 24, 8
_CONTEXT = 64
_SAME_AGAIN = 24
_LONGEST = 4096
_CHUNK = 1 << 17
_ITEM = array("I").itemsize

BILLING, CLOCK, IDENTIFIER, SPACE, ORDER, TEXT = "billing_header", "clock", "id", "white_space", "order", "text"
_WORDS = {
    BILLING: "Claude Code's billing header; --strip-anthropic-preamble leaves it out",
    CLOCK: "a date or a clock",
    IDENTIFIER: "an id",
    SPACE: "white space",
    ORDER: "the same lines in another order",
    TEXT: "other text",
}
_DAY = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?"
_DATE = re.compile(
    rf"\d{{4}}-\d{{2}}-\d{{2}}(?:[T ]{_TIME})?|{_TIME}|\d{{1,2}}/\d{{1,2}}/\d{{2,4}}|{_DAY}|{_MONTH} \d{{1,2}}"
    rf"|\d{{1,2}} {_MONTH}|\b1\d{{9}}(?:\d{{3}})?\b"
)
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\Z")
_ID = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}|\b\w*[0-9a-fA-F]{12,}\b|_[0-9A-Za-z]{16,}")

Decode = Callable[[Sequence[int]], str]


class PromptChange(Struct, frozen=True):
    """Where a prompt leaves the one that it continues."""

    at: int
    """The first token that differs."""
    prompt_tokens: int
    lost_tokens: Annotated[int, Meta(ge=0)]
    """They follow it and were in the earlier prompt too."""
    cause: str

    def __str__(self) -> str:
        return (
            f"the prompt changed at token {self.at} of {self.prompt_tokens}, so {self.lost_tokens} tokens "
            f"that an earlier one had are not cached: {_WORDS[self.cause]}"
        )


class PromptChanges:
    """Remembers the last prompts of sessions, those used last, within `most_bytes`."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._sessions: OrderedDict[tuple[str, str, str], list[bytes]] = OrderedDict()
        self._openings: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        """The first prompt of the latest session of each owner and model; beside `bytes`, and at most half as much."""
        self.bytes = 0

    def examine(self, session: Session, model: str, token_ids: Sequence[int], decode: Decode) -> PromptChange | None:
        """Compare the prompt of a turn with those before it, and remember it.

        The first turn of a session is compared with that of the owner's last session; there only causes without
        meaning count, as conversations differ by nature.
        """
        ids = token_ids if isinstance(token_ids, array) else array("I", token_ids)
        prompt = ids.tobytes()
        key = (session.owner, model, session.id)
        known = self._sessions.get(key)
        change = None
        if known is not None:
            common, before = max((_common(each, prompt), each) for each in known)
            change = _compare(before, prompt, common, decode)
            if change or common >= len(before) - END * _ITEM:
                # A later turn of the same conversation takes its place.
                known.remove(before)
                self.bytes -= len(before)
        else:
            known = self._sessions[key] = []
            if last := self._openings.pop(key[:2], None):
                change = _compare(last, prompt, _common(last, prompt), decode)
                if change and change.cause in (TEXT, ORDER):
                    change = None
            if len(prompt) <= self._most // (2 * KEPT_OPENINGS):
                self._openings[key[:2]] = prompt
            if len(self._openings) > KEPT_OPENINGS:
                self._openings.popitem(last=False)
        known.append(prompt)
        self.bytes += len(prompt)
        if len(known) > KEPT_PROMPTS:
            self.bytes -= len(known.pop(0))
        self._sessions.move_to_end(key)
        while self.bytes > self._most and self._sessions:
            _, dropped = self._sessions.popitem(last=False)
            self.bytes -= sum(map(len, dropped))
        return change


def _common(one: bytes, other: bytes) -> int:
    """Bytes that both begin with, in whole tokens."""
    at, size = 0, _CHUNK
    while size >= _ITEM:
        # Of a memoryview, Python would compare the items one by one.
        while (chunk := other[at : at + size]) and one.startswith(chunk, at):
            at += len(chunk)
        size //= 8
    return at // _ITEM * _ITEM


def _compare(before: bytes, prompt: bytes, common: int, decode: Decode) -> PromptChange | None:
    """None if `prompt` continues `before`, or has nothing to do with it."""
    rest = len(before) - common
    if rest <= max(END, LEAST_TOKENS) * _ITEM:
        return None
    step = max(_ITEM * _PROBE, (rest - _PROBE * _ITEM) // _PROBES // _ITEM * _ITEM)
    starts = range(common + 8 * _ITEM, len(before) - (END + _PROBE) * _ITEM, step)
    found = sum(_contains(prompt, before[at : at + _PROBE * _ITEM], common) for at in starts)
    if not starts or 2 * found < len(starts):
        return None
    lost = rest // _ITEM * found // len(starts)
    if lost < LEAST_TOKENS:
        return None
    at = common // _ITEM
    return PromptChange(at, len(prompt) // _ITEM, lost, _cause(_tokens(before), _tokens(prompt), at, decode))


def _contains(prompt: bytes, probe: bytes, begin: int) -> bool:
    at = prompt.find(probe, begin)
    while at >= 0 and at % _ITEM:
        at = prompt.find(probe, at + 1)
    return at >= 0


def _cause(before: array[int], prompt: array[int], at: int, decode: Decode) -> str:
    begin = max(0, at - _CONTEXT)
    old, new = (decode(ids[begin : at + _CONTEXT]) for ids in (before, prompt))
    differs = next((at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
    if all(_BILLING.search(text[: differs + 1]) for text in (old, new)):
        return BILLING
    if "".join(old[differs:].split())[:_SAME_AGAIN] == "".join(new[differs:].split())[:_SAME_AGAIN]:
        return SPACE
    for cause, pattern in ((CLOCK, _DATE), (IDENTIFIER, _ID)):
        if all(any(one.start() <= differs <= one.end() for one in pattern.finditer(text)) for text in (old, new)):
            return cause
    lines = [Counter(decode(ids[begin : at + _LONGEST]).splitlines()[1:-1]) for ids in (before, prompt)]
    most = max(each.total() for each in lines)
    return ORDER if most > 1 and (lines[0] & lines[1]).total() >= 0.9 * most else TEXT


def _tokens(prompt: bytes) -> array[int]:
    return array("I", prompt)

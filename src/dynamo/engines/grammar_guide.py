"""Guided decoding by llguidance: a grammar becomes a matcher, and the matcher a mask over the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamo.engines.grammar_trial import GrammarTrial
from dynamo.engines.guided_schema import choice_regex, json_grammar, json_schema, tool_calls
from dynamo.model import Tokenizer
from dynamo.protocols.errors import InvalidArgument

Mask = NDArray[np.bool_]

_LONGEST_CLOSING = 96
"""Tokens that a closing may have; a value that needs more is not foreseen."""
_AHEAD = 16
"""A closing is looked for this many tokens before the last one that was found must begin."""
_SOON = 256
"""With more tokens left there is time."""
_CLOSERS = (b"}", b"]", b'"', b",", b":", b"0", b"1", b"{", b"[", b" ", b"a", b"\n", b"</", b">")
"""What ends a value, or else goes on to what is required, or else begins the shortest value."""
_LETTER, _QUOTE = b"a", b'"'


class Guides:
    """Makes a `GrammarGuide` per request. Its view of the vocabulary is built when the first one is asked for."""

    def __init__(self, engine: str, tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> None:
        """`engine` is named in errors."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._ends = list(ends)
        self._built: Any = None
        self._trial = GrammarTrial()
        self._closers: list[int] = []
        self._in_string: list[int] = []

    def guide(self, guidance: dict[str, Any]) -> GrammarGuide:
        """Raises InvalidArgument for a grammar that cannot be followed, CannotCompile for one that is not compiled.

        May take milliseconds; the first one takes the start of a process.
        """
        import llguidance

        if not self._ends:
            raise InvalidArgument("guided_decoding: this model has no end token")
        grammar = _grammar(self._engine, guidance, llguidance.LLMatcher)
        self._trial.check(grammar)
        if self._built is None:
            self._built = self._build(llguidance)
        matcher = llguidance.LLMatcher(self._built, grammar, log_level=0)
        if matcher.is_error():
            raise InvalidArgument(f"guided_decoding: {_one_line(matcher.get_error())}")
        return GrammarGuide(matcher, self._vocab_size, self._closers, self._in_string, self._ends[0])

    def close(self) -> None:
        self._trial.close()

    def _build(self, llguidance: Any) -> Any:
        tokens = [b""] * self._vocab_size
        for id in self._tokenizer.tokens:
            if id < self._vocab_size:
                tokens[id] = self._tokenizer.token_bytes(id)
        special = set(self._tokenizer.special_ids) | set(self._ends)
        ids = {piece: id for id, piece in reversed(list(enumerate(tokens))) if id not in special}
        self._closers = [ids[piece] for piece in _CLOSERS if piece in ids]
        if _LETTER in ids and _QUOTE in ids:
            self._in_string = [ids[_LETTER], ids[_QUOTE]]
        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_GuidanceTokenizer(self._tokenizer, tokens, sorted(special), self._ends[0])),
            n_vocab=self._vocab_size,
            eos_token=self._ends,
        )


class _GuidanceTokenizer:
    """The model's tokens as llguidance's wrapper reads them."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], special: list[int], end: int) -> None:
        self.eos_token_id = end
        self.bos_token_id = None
        self.tokens = tokens
        self.special_token_ids = special
        self._encode = tokenizer.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode(errors="replace") if isinstance(text, bytes) else text)


class GrammarGuide:
    """What one answer may contain next.

    Near its last token the answer is led to an end: as long as a closing of the grammar fits into what is left, the
    model is free, and a token after which none would fit is replaced by the beginning of the closing.
    """

    def __init__(self, matcher: Any, vocab_size: int, closers: list[int], in_string: list[int], end: int) -> None:
        self._matcher = matcher
        self._end = end
        self._vocab_size = vocab_size
        self._words = np.zeros((vocab_size + 31) // 32, np.int32)
        self._closers = closers
        self._in_string = in_string
        self._closing: list[int] | None = None
        self._check_below = 0
        self._foreseen = False

    @property
    def complete(self) -> bool:
        """Nothing can follow."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> Mask:
        """Which tokens may come next; an end token only where the grammar is satisfied."""
        return self._mask(self._matcher)

    def accept(self, id: int, left: int) -> int:
        """The token to take: `id`, or another one where `id` would leave too little room to finish in `left` more."""
        if self._look_again(left):
            self._closing = self._close(self._matcher, left + 1)
            self._check_below = len(self._closing or ()) + _AHEAD
        if left >= self._check_below:
            self._closing = None
            self._consume(self._matcher, id)
            return id
        if self._closing is None:
            self._closing = self._close(self._matcher, left + 1)
        after = self._matcher.deep_copy()
        self._consume(after, id)
        closing = self._close(after, left)
        if closing is None and self._closing is not None:
            id, *closing = self._closing or [self._end]
            after = self._matcher
            self._consume(after, id)
        self._matcher = after
        self._closing = closing
        return id

    def resume(self, ids: Sequence[int], left: int) -> None:
        """Take in the tokens of an answer that began elsewhere, after which `left` more are allowed.

        Raises InvalidArgument if they do not follow the grammar.
        """
        left += len(ids)
        for id in ids:
            left -= 1
            if self.accept(id, left) != id:
                raise InvalidArgument("guided_decoding: the answer so far does not follow the grammar")

    @property
    def closing(self) -> list[int]:
        """The tokens that end the answer from here, once `accept` has replaced a token."""
        return list(self._closing or ())

    def _consume(self, matcher: Any, id: int) -> None:
        """Raises InvalidArgument if llguidance gives up, as it does where a grammar grows too complex."""
        matcher.consume_token(id)
        if matcher.is_error():
            raise InvalidArgument(f"guided_decoding: {_one_line(matcher.get_error())}")

    def _look_again(self, left: int) -> bool:
        """Whether the closing may have grown since it was last looked for: an answer opens as it goes."""
        first, self._foreseen = not self._foreseen, True
        return first or (left % _AHEAD == 0 and left < _SOON)

    def _close(self, matcher: Any, most: int) -> list[int] | None:
        """At most `most` tokens that satisfy the grammar from here, if some are found. `matcher` is left as it is."""
        matcher = matcher.deep_copy()
        closing: list[int] = []
        most = min(most, _LONGEST_CLOSING)
        while not (matcher.is_accepting() or matcher.is_error()):
            if len(closing) >= most:
                return None
            forced = matcher.compute_ff_tokens()
            if not forced:
                forced = [self._closer(self._mask(matcher))]
            if not matcher.consume_tokens(forced):
                return None
            closing += forced
        return None if matcher.is_error() or len(closing) > most else closing

    def _closer(self, mask: Mask) -> int:
        # Within a string a letter may follow, and a bracket would not close anything.
        if self._in_string and mask[self._in_string].all():
            return self._in_string[-1]
        return next((id for id in self._closers if mask[id]), int(mask.argmax()))

    def _mask(self, matcher: Any) -> Mask:
        words = self._words
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        mask: Mask = np.unpackbits(words.view(np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)
        return mask


def _grammar(engine: str, guidance: dict[str, Any], matcher: Any) -> str:
    if guidance.get("whitespace_pattern") is not None:
        raise InvalidArgument(f"{engine} cannot follow guided_whitespace_pattern")
    grammar: str
    match guidance:
        case {"tool_calls": calls} if calls is not None:
            grammar = matcher.grammar_from_lark(tool_calls(calls).grammar())
        case {"json": schema} if schema is not None:
            grammar = matcher.grammar_from_json_schema(json_grammar(json_schema(schema)))
        case {"regex": str() as regex}:
            grammar = matcher.grammar_from_regex(regex)
        case {"choice": [str(), *_] as choices} if all(isinstance(each, str) for each in choices):
            grammar = matcher.grammar_from_regex(choice_regex(choices))
        case {"grammar": str() as text}:
            grammar = matcher.grammar_from_lark(text)
        case _:
            named = ", ".join(map(str, guidance)) or "nothing"
            raise InvalidArgument(f"{engine} cannot follow guided_decoding with {named}")
    return grammar


def _one_line(message: str) -> str:
    return " ".join(message.split())[:300]

"""Tokens that look random but are not: the same request gets the same answer, here and on any other mocker.

Each token follows from the seed, its position and the sum of all tokens before it, as a model's would from its context.
So an answer cut short and continued elsewhere, from the prompt and what was already said, goes on as it would have.

Length: with `max_tokens` the answer has exactly that many tokens, as upstream's does, unless one of `stop_token_ids`
comes first. Without it, each token past `min_tokens` is the end-of-sequence token with probability 1/128. A request
that ignores end of sequence, or whose model has none, and sets no `max_tokens` runs to the context limit.
A frontend sets `max_tokens` to what is left of the context where the client set none: that is no limit.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from zlib import adler32

from dynamo.model import LoadedModel
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument

from .args import ReasoningArgs

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_SUM, _POSITION, _MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_END_ONE_IN = 128
_MOST_WORDS = 8192
_NO_MARKS: Mapping[int, int] = {}


class MockVocabulary:
    """The ids answers are made of: from `low` up to `high`, without `avoid` (end of sequence and other specials)."""

    def __init__(
        self,
        low: int = 1000,
        high: int = 2000,
        avoid: Collection[int] = (),
        *,
        fit: Callable[[int], bool] = lambda word: True,
    ) -> None:
        if not 0 <= low < high <= 2**32:
            raise InvalidArgument(f"vocabulary range must be 0 <= low < high <= 2**32, not {low}..{high}")
        banned = frozenset(avoid)
        stride = -(-(high - low) // _MOST_WORDS)
        self.words = tuple(word for word in range(low, high, stride) if word not in banned and fit(word))
        if not self.words:
            raise InvalidArgument(f"vocabulary range {low}..{high} holds nothing but tokens to avoid")
        self._set = frozenset(self.words)

    def holds_any(self, ids: Collection[int]) -> bool:
        return not self._set.isdisjoint(ids)


def words_of(loaded: LoadedModel) -> MockVocabulary:
    """Ids that are neither an end nor special, so that answers run to their length, and that are text by themselves.

    A part of a character is shown when the rest has come: what a client sees of the first token would be the second.
    """
    tokenizer = loaded.tokenizer
    ends = frozenset(tokenizer.special_ids) | set(loaded.eos_token_ids)

    def whole(word: int) -> bool:
        text = tokenizer.decode([word])
        return bool(text) and "\ufffd" not in text

    return MockVocabulary(0, tokenizer.vocab_size, ends, fit=whole)


def mixed_context(context_sum: int, position: int) -> int:
    """The context as `draw_one` takes it."""
    return (context_sum * _SUM + position * _POSITION) & _MASK


def draw_one(words: Sequence[int], mixed: int, choice: int) -> int:
    """The token that follows a context in the answer with this choice or seed."""
    mixed = (mixed + choice * _MIX) & _MASK
    return words[((mixed ^ (mixed >> 31)) * _MIX >> 24 & 0xFFFF_FFFF) % len(words)]


class MockAnswer:
    """The tokens of one answer, made as they are taken. `marks` are those that stand at given positions."""

    def __init__(
        self,
        context_sum: int,
        position: int,
        seed: int,
        words: Sequence[int],
        limit: int,
        marks: Mapping[int, int] = _NO_MARKS,
    ) -> None:
        self._sum = context_sum
        self._position = position
        self._seed = seed
        self.words = words
        """What its tokens are drawn from."""
        self._limit = limit
        self._marks = marks
        self._taken = 0

    @property
    def finish_reason(self) -> str:
        return "length"

    @property
    def stop_reason(self) -> int | None:
        return None

    def left(self, most: int) -> int:
        """How many tokens are still to come, counted no further than `most`."""
        left = self._limit - self._taken
        return left if left < most else most

    def take(self, count: int) -> list[int]:
        self._taken += count
        return self._draw_with_marks(count) if self._marks else self._draw(count)

    def _draw_with_marks(self, count: int) -> list[int]:
        tokens: list[int] = []
        end = self._position + count
        for position, mark in self._marks.items():
            if self._position <= position < end:
                tokens += self._draw(position - self._position)
                tokens.append(mark)
                self._sum += mark
                self._position += 1
        return tokens + self._draw(end - self._position)

    def _draw(self, count: int) -> list[int]:
        words = self.words
        size = len(words)
        if size == 1:
            self._sum += words[0] * count
            self._position += count
            return [words[0]] * count
        tokens = []
        mixed = (mixed_context(self._sum, self._position) + self._seed) & _MASK
        for _ in range(count):
            token = words[((mixed ^ (mixed >> 31)) * _MIX >> 24 & 0xFFFF_FFFF) % size]
            tokens.append(token)
            # The next position, and a sum that is larger by this token.
            mixed = (mixed + token * _SUM + _POSITION) & _MASK
        self._sum += sum(tokens)
        self._position += count
        return tokens


class EndingAnswer(MockAnswer):
    """An answer some token may end before its limit; it is drawn a little ahead so that its end is seen coming."""

    def __init__(
        self,
        context_sum: int,
        position: int,
        seed: int,
        words: Sequence[int],
        limit: int,
        marks: Mapping[int, int],
        *,
        least: int,
        end_token: int | None,
        stop_tokens: Collection[int],
    ) -> None:
        super().__init__(context_sum, position, seed, words, limit, marks)
        self._least = least
        self._end_token = end_token
        self._stop_tokens = frozenset(stop_tokens)
        self._ahead: list[int] = []
        self._drawn = 0
        self._ended_by: int | None = None

    @property
    def finish_reason(self) -> str:
        if self._ended_by is None:
            return "length"
        return "eos" if self._ended_by == self._end_token else "stop"

    @property
    def stop_reason(self) -> int | None:
        return self._ended_by if self.finish_reason == "stop" else None

    def left(self, most: int) -> int:
        while len(self._ahead) < most and self._drawn < self._limit and self._ended_by is None:
            self._ahead.append(self._next())
        return min(len(self._ahead), most)

    def take(self, count: int) -> list[int]:
        self.left(count)
        tokens, self._ahead = self._ahead[:count], self._ahead[count:]
        self._taken += len(tokens)
        return tokens

    def _next(self) -> int:
        self._drawn += 1
        if self._position in self._marks:
            (mark,) = self._draw_with_marks(1)
            if mark in self._stop_tokens and self._drawn > self._least:
                self._ended_by = mark
            return mark
        before = self._sum
        (token,) = self._draw(1)
        if self._drawn <= self._least:
            return self._allowed(token, before) if token in self._stop_tokens else token
        if token in self._stop_tokens:
            self._ended_by = token
        elif (
            self._end_token is not None
            and (before * _MIX + self._position * _SUM + self._seed >> 20) % _END_ONE_IN == 0
        ):
            self._ended_by = token = self._end_token
        return token

    def _allowed(self, token: int, before: int) -> int:
        """A token that does not stop, where the minimum is not reached yet."""
        start = self.words.index(token)
        others = (*self.words[start:], *self.words[:start])
        chosen = next((word for word in others if word not in self._stop_tokens), token)
        self._sum = before + chosen
        return chosen


def total(token_ids: Sequence[int]) -> int:
    """The sum of a prompt. That of a packed one is put together from checksums, which add up bytes far faster.

    Adler-32's lower half is one more than the sum of its bytes, as long as those are at most 256.
    """
    if not isinstance(token_ids, array):
        return sum(token_ids)
    packed = token_ids.tobytes()
    result = 0
    for place in range(token_ids.itemsize):
        column = packed[place :: token_ids.itemsize]
        if column.count(0) < len(column):
            sums = [(adler32(column[at : at + 256]) & 0xFFFF) - 1 for at in range(0, len(column), 256)]
            result += sum(sums) << 8 * (place if sys.byteorder == "little" else token_ids.itemsize - 1 - place)
    return result


def answer_for(
    request: PreprocessedRequest,
    vocabulary: MockVocabulary,
    context_limit: int,
    reasoning: ReasoningArgs | None = None,
    *,
    first: int | None = None,
) -> MockAnswer:
    """The answer this request will get, or the `first` tokens of it.

    Rejects stop conditions that contradict themselves.
    """
    stop = request.stop_conditions
    prompt = len(request.token_ids)
    room = limit = context_limit - prompt
    least = stop.min_tokens or 0
    if stop.max_tokens is not None:
        if stop.max_tokens < 1:
            raise InvalidArgument(f"max_tokens must be at least 1, not {stop.max_tokens}")
        limit = min(limit, stop.max_tokens)
    if least < 0:
        raise InvalidArgument(f"min_tokens must be at least 0, not {least}")
    if stop.max_tokens is not None and least > stop.max_tokens:
        raise InvalidArgument(f"min_tokens {least} is more than max_tokens {stop.max_tokens}")
    seed = request.sampling_options.seed
    seed = ((request.choice if seed is None else seed) * _MIX) & _MASK
    words: Sequence[int] = vocabulary.words
    ends = {*request.eos_token_ids, *(stop.stop_token_ids_hidden or ())}
    may_end = limit == room and not stop.ignore_eos
    end_token = request.eos_token_ids[0] if may_end and request.eos_token_ids else None
    marks = _NO_MARKS
    if reasoning is not None:
        mean = None if end_token is None else _END_ONE_IN
        marks = thinking(reasoning, request.token_ids, ends, limit, mean)
        least = max(least, max(marks, default=0) - prompt)
        ends |= {reasoning.start_thinking_token_id, reasoning.end_thinking_token_id}
    if ends and vocabulary.holds_any(ends):
        words = tuple(word for word in words if word not in ends) or words
    if first is not None:
        limit = min(limit, first)
    may_stop = bool(stop.stop_token_ids or end_token is not None)
    # Where there is nothing to choose, what a choice depends on does not matter.
    context = total(request.token_ids) if may_stop or len(words) > 1 else 0
    if may_stop:
        stops = stop.stop_token_ids or ()
        return EndingAnswer(
            context, prompt, seed, words, limit, marks, least=least, end_token=end_token, stop_tokens=stops
        )
    return MockAnswer(context, prompt, seed, words, limit, marks)


def thinking(
    reasoning: ReasoningArgs, token_ids: Sequence[int], ends: Collection[int], limit: int, mean: int | None
) -> dict[int, int]:
    """The two tokens around the thinking, by their positions in the sequence.

    Thinking that began in the prompt, in a turn that has not ended since, is this answer's own: another worker was cut
    short. Of an answer that ends by itself only the `mean` length is known.
    """
    packed = array("I", token_ids).tobytes()
    prompt = len(token_ids)
    begin = _last(packed, reasoning.start_thinking_token_id)
    if begin <= max((_last(packed, end) for end in ends), default=-1):
        begin = prompt
    elif begin < _last(packed, reasoning.end_thinking_token_id):
        return {}
    length = prompt - begin + limit
    expected = length if mean is None else min(length, mean)
    thoughts = min(max(int(expected * reasoning.thinking_ratio), 2), length)
    marks = {begin: reasoning.start_thinking_token_id}
    if thoughts > 1:
        marks[begin + thoughts - 1] = reasoning.end_thinking_token_id
    return marks


def _last(packed: bytes, token: int) -> int:
    """Where in packed tokens it stands last, or -1."""
    if not 0 <= token < 2**32:
        return -1
    wanted = array("I", [token]).tobytes()
    size = len(wanted)
    at = packed.rfind(wanted)
    while at >= 0 and at % size:
        at = packed.rfind(wanted, 0, at + size - 1)
    return at // size

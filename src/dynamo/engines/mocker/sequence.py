"""One request on its way through the scheduler."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from dynamo.kv.hashing import local_hashes, sequence_hashes
from dynamo.protocols.engine import SessionName

from .tokens import MockAnswer


class Sequence:
    """Its answer is counted in `known` as it grows; tokens are drawn only when they are needed."""

    __slots__ = (
        "answer",
        "blocks",
        "cached_tokens",
        "computed",
        "delivered",
        "hashes",
        "known",
        "prefill_end",
        "prompt_tokens",
        "quiet_until",
        "request_id",
        "restored",
        "salt",
        "session",
        "tokens",
    )

    def __init__(
        self, request_id: int, prompt: Iterable[int], answer: MockAnswer, salt: int, session: SessionName | None = None
    ) -> None:
        self.request_id = request_id
        self.tokens = array("I", prompt)
        """The prompt, and as much of the answer as is drawn."""
        self.prompt_tokens = self.known = self.delivered = len(self.tokens)
        self.answer = answer
        self.salt = salt
        self.session = session
        self.hashes: list[int] = []
        self.blocks: list[int] = []
        self.computed = 0
        self.prefill_end = 0
        """Tokens known when it was last admitted: until they are computed, it prefills."""
        self.quiet_until = 0
        """Below it, each step is one decoded token that neither needs nor fills a block nor ends the answer."""
        self.cached_tokens: int | None = None
        """Prompt tokens found in the cache on first admission."""
        self.restored = False
        """Blocks were restored for it from a slower tier since it was last preempted."""

    @property
    def decoding(self) -> bool:
        return self.computed == self.known - 1 and self.computed >= self.prefill_end

    def left(self, most: int) -> int:
        """How many tokens are still to come, counted no further than `most`."""
        undrawn = self.known - len(self.tokens)
        return self.answer.left(most + undrawn) - undrawn

    def look_ahead(self, block_size: int) -> None:
        """Find out how long it will only decode, now that it has begun to."""
        room = len(self.blocks) * block_size - self.computed
        self.quiet_until = self.computed + max(0, self.left(room) - 1)

    def take(self, count: int) -> list[int]:
        """The next tokens of the answer that were not delivered yet."""
        first = self.delivered
        self.delivered = first + count
        self._draw(self.delivered)
        return self.tokens[first : self.delivered].tolist()

    def hash_up_to(self, blocks: int, block_size: int) -> None:
        known = len(self.hashes)
        if known < blocks:
            self._draw(blocks * block_size)
            fresh = local_hashes(self.tokens[known * block_size : blocks * block_size], block_size, self.salt)
            self.hashes += sequence_hashes(fresh, self.hashes[-1] if known else None)

    def preempt(self) -> None:
        self.blocks = []
        self.computed = self.quiet_until = 0
        self.restored = False

    def _draw(self, end: int) -> None:
        missing = end - len(self.tokens)
        if missing > 0:
            self.tokens.extend(self.answer.take(missing))

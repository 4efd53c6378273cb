"""What arrives at a simulated fleet: when, the blocks of each prompt, the length of each answer."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import xxhash
from msgspec import Struct, structs

from dynamo.protocols.engine import PreprocessedRequest, Routing, StopConditions

_TOKEN_IDS = 1 << 32


class SimulatedRequest(Struct, frozen=True, kw_only=True):
    """One request of a trace. Prompts that begin with the same block ids begin with the same tokens."""

    at: float | None
    """Seconds after the start; None follows the session's earlier request after `delay`."""
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_size: int = 512
    session: str = ""
    after: str = ""
    """The session whose latest request this session's first one follows."""
    delay: float = 0.0
    """Seconds between the end of the session's earlier request and this one."""
    ended_by: str = ""
    """What ends its answer: a call of a tool, or "end_turn"."""
    final: bool = False
    """It is the last request of its session."""
    pause: float | None = None
    """Until the session's next request, which nobody knows but an oracle."""
    priority: int = 0
    strict_priority: int = 0
    model: str = ""
    """Which it asks for, where the trace says so."""
    label: str = ""
    """Where it comes from, for error messages."""

    def preprocessed(self, model: str = "simulated") -> PreprocessedRequest:
        return PreprocessedRequest(
            model=model,
            token_ids=self.token_ids(),
            stop_conditions=StopConditions(max_tokens=self.output_tokens, ignore_eos=True),
            routing=self._routing(),
        )

    def _routing(self) -> Routing | None:
        if not self.priority and not self.strict_priority:
            return None
        return Routing(priority=self.priority, strict_priority=self.strict_priority)

    def token_ids(self) -> array[int]:
        # Equal tokens are as good as any: what a block of a prompt is called depends on all blocks before it.
        parts = [_packed(block_id) * self.block_size for block_id in self.block_ids]
        if (rest := self.input_tokens - len(parts) * self.block_size) > 0:
            # A trace names whole blocks only, or none; the rest of a prompt is its own.
            parts.append(_packed(xxhash.xxh32_intdigest(self.label.encode())) * rest)
        tokens: array[int] = array("I")
        tokens.frombytes(b"".join(parts)[: tokens.itemsize * self.input_tokens])
        return tokens


def _packed(token_id: int) -> bytes:
    return array("I", (token_id % _TOKEN_IDS,)).tobytes()


def scaled(requests: Iterable[SimulatedRequest], copies: int, speedup: float = 1.0) -> Iterator[SimulatedRequest]:
    """Each request `copies` times, of users with prompts of their own, at `speedup` times the rate."""
    for request in requests:
        at = None if request.at is None else request.at / speedup
        for copy in range(copies):
            yield structs.replace(
                request,
                at=at,
                delay=request.delay / speedup,
                pause=None if request.pause is None else request.pause / speedup,
                session=f"{request.session}/{copy}" if request.session and copy else request.session,
                after=f"{request.after}/{copy}" if request.after and copy else request.after,
                block_ids=tuple(block_id * copies + copy for block_id in request.block_ids),
                label=f"{request.label}, copy {copy}" if copy else request.label,
            )

"""Rules as files: `rule(prompt, workers)` returns a cost for each worker, or the index of one.

The files beside this one are rules to use by name and to begin from: `--router-rule lmetric`, `--router-rule FILE.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct


class Prompt(Struct, frozen=True, kw_only=True):
    """What a rule may know of the prompt."""

    tokens: int
    blocks: int
    """Complete blocks."""
    block_size: int
    number: int = 0
    """How many prompts this router has placed before."""
    session: str = ""
    """Its id; empty where it is not known."""


class Worker(Struct, frozen=True):
    """What a rule may know of a worker, one data-parallel rank. Counts of the prompt's blocks come first."""

    device: int
    """Leading blocks of the prompt that it has cached."""
    host: int
    """Those that follow them in host memory, then on disk, then elsewhere."""
    disk: int
    external: int
    cached: float
    """Blocks that need not be computed: the above weighted by tier, or those in use there by a running request."""
    shared: int
    """Leading blocks of the prompt that running requests use there."""
    waiting_tokens: float
    """Tokens of prompts that were sent there and have no first token yet."""
    requests: float
    """Running and waiting."""
    active_blocks: float
    """In use by these requests."""
    total_blocks: int
    batch_tokens: int
    """Most tokens of one step."""
    recent_tokens: float
    """Prompt tokens sent there, of which half are forgotten every minute."""
    session_tokens: int = 0
    """What the last turn of the prompt's session left there, if it ran there and sessions keep to workers."""


Rule = Callable[[Prompt, Sequence[Worker]], Sequence[float] | int]

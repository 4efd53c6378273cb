"""SGLang's scheduler, in a process of its own, whose outputs hold only what `Steps` reads.

With every token of every request it otherwise sends what a detokenizer and the tokenizer manager's statistics need:
the prompt's tail, offsets, pickled times. Building that is part of each step, for which the GPU waits.
"""

from __future__ import annotations

from typing import Any


def run_slim_scheduler(*args: Any, **options: Any) -> None:
    """What SGLang runs in the process; its engine is given this instead of `run_scheduler_process`."""
    from sglang.srt.managers.scheduler import run_scheduler_process

    try:
        from sglang.srt.managers.scheduler_components import output_streamer
    except ImportError:  # a version in which outputs are gathered elsewhere
        pass
    else:
        whole = getattr(output_streamer, "_GenerationStreamAccumulator", None)
        if "rust_server_mode" in getattr(whole, "__dataclass_fields__", ()):
            output_streamer._GenerationStreamAccumulator = slim(whole)
    run_scheduler_process(*args, **options)


def slim(whole: Any) -> Any:
    """The class that gathers a step's outputs, with SGLang's own switch for a frontend that detokenizes by itself."""

    class SlimOutputs(whole):  # type: ignore[misc]
        def __init__(self, **fields: Any) -> None:
            super().__init__(**{**fields, "rust_server_mode": True})

        def accept(self, *, req: Any) -> None:
            super().accept(req=req)
            rows = len(self.rids)
            if len(self.completion_tokens) < rows:
                self.completion_tokens.append(req.send_token_offset)
            if len(self.cached_tokens) < rows:
                self.cached_tokens.append(req.cached_tokens)

        def to_payload(self, **facts: Any) -> Any:
            self.time_stats: list[Any] = []
            return super().to_payload(**facts)

    return SlimOutputs

"""The steps of SGLang's scheduler, pushed into the sinks of all requests at once.

SGLang's tokenizer manager takes requests in, and checks them. What it would do with an output, a dictionary, an event
and a task for every token of every request, `Steps` does in one loop over the step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import BatchTokenIDOutput
from sglang.srt.managers.tokenizer_manager import TokenizerManager

from dynamo.engines.sglang.request import SglangRequest
from dynamo.protocols.errors import from_exception

log = logging.getLogger(__name__)

READ = frozenset(
    (
        "rids", "finished_reasons", "output_ids", "prompt_tokens", "completion_tokens", "cached_tokens",
        "input_token_logprobs_val", "input_token_logprobs_idx", "output_token_logprobs_val",
        "output_token_logprobs_idx", "input_top_logprobs_val", "input_top_logprobs_idx", "output_top_logprobs_val",
        "output_top_logprobs_idx", "spec_verify_ct", "spec_num_correct_drafts",
    )
)  # fmt: skip
"""Fields of a step."""
_WATCHED = ("enable_metrics", "enable_trace", "log_requests", "crash_dump_folder")


def are_readable() -> bool:
    """Whether this version of SGLang has what reading steps needs."""
    return (
        hasattr(Engine, "_launch_detokenizer_subprocesses")
        and hasattr(Engine, "init_tokenizer_manager_func")
        and hasattr(TokenizerManager, "_handle_batch_output")
        and set(getattr(BatchTokenIDOutput, "__struct_fields__", ())) >= READ
    )


def watched(arguments: Mapping[str, Any]) -> list[str]:
    """The flags given for which the tokenizer manager has to see every output itself."""
    return [f"--{name.replace('_', '-')}" for name in _WATCHED if arguments.get(name)]


class Steps:
    def __init__(self, manager: Any, arguments: dict[str, Any]) -> None:
        """To be called before the tokenizer manager reads anything."""
        self._manager = manager
        self._running: dict[str, SglangRequest] = {}
        self.ahead = (arguments.get("speculative_num_draft_tokens") or 1) - 1
        """Tokens that are guessed at a time."""
        self.draft_tokens = self.accepted_tokens = 0
        """They count the requests that have ended."""
        seen = watched(arguments)
        if not are_readable():
            log.warning("the steps of this version of SGLang cannot be read: every token costs more CPU time")
        elif seen:
            log.info("with %s every token costs more CPU time", ", ".join(seen))
        else:
            self._handle = manager._handle_batch_output
            manager._handle_batch_output = self._push

    def add(self, running: SglangRequest) -> None:
        self._running[running.rid] = running

    def forget(self, running: SglangRequest) -> None:
        self._running.pop(running.rid, None)

    async def _push(self, step: Any) -> None:
        if not isinstance(step, BatchTokenIDOutput):
            await self._handle(step)
            return
        ends = step.finished_reasons
        for at, rid in enumerate(step.rids):
            running = self._running.get(rid)
            if running is None or running.ended:
                if ends[at] is not None:  # it was aborted, and this is the last of it
                    self._manager.rid_to_state.pop(rid, None)
                continue
            try:
                running.step(step, at)
            except Exception as error:
                log.exception("a sink refused its tokens; dropping its request")
                running.fail(from_exception(error))
            if ends[at] is not None:
                if self.ahead and step.spec_verify_ct:
                    self.draft_tokens += step.spec_verify_ct[at] * self.ahead
                    self.accepted_tokens += step.spec_num_correct_drafts[at]
                self._running.pop(rid, None)
                self._manager.rid_to_state.pop(rid, None)
                running.rest()

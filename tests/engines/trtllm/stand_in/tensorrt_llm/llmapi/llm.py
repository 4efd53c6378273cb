"""Answers requests by counting up from the last token of the prompt; events and statistics as they are published."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import hashlib
import itertools
from typing import Any, NamedTuple

REFUSED = 666
"""A prompt that ends with it fails as a request; one that ends with FATAL kills the engine."""
FATAL = 667
BLOCKS = 64


class RequestError(RuntimeError):
    pass


class Logprob(NamedTuple):
    logprob: float
    rank: int | None = None


class DisaggScheduleStyle(enum.IntEnum):
    CONTEXT_FIRST = 0
    GENERATION_FIRST = 1


@dataclasses.dataclass(slots=True, kw_only=True)
class DisaggregatedParams:
    request_type: str | None = None
    first_gen_tokens: list[int] | None = None
    first_gen_log_probs: list[Any] | None = None
    first_gen_logits: list[Any] | None = None
    ctx_request_id: int | None = None
    opaque_state: bytes | None = None
    draft_tokens: list[int] | None = None
    disagg_request_id: int | None = None
    ctx_dp_rank: int | None = None
    ctx_info_endpoint: str | None = None
    schedule_style: DisaggScheduleStyle | None = None
    multimodal_embedding_handles: list[dict[str, Any]] | None = None
    multimodal_hashes: list[list[int]] | None = None
    mrope_position_ids_handle: dict[str, Any] | None = None
    mrope_position_deltas_handle: dict[str, Any] | None = None


class CompletionOutput:
    def __init__(self) -> None:
        self.index = 0
        self.token_ids: list[int] = []
        self.logprobs: list[Any] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.disaggregated_params: DisaggregatedParams | None = None
        self._last = 0

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._last :]

    @property
    def logprobs_diff(self) -> list[Any]:
        return self.logprobs[self._last :]


class RequestOutput:
    """Its own iterator: each step changes and returns it."""

    def __init__(self, llm: LLM, prompt: list[int], params: Any, streaming: bool) -> None:
        assert streaming
        self.prompt_token_ids = prompt
        self.outputs = [CompletionOutput()]
        self.sampling_params = params
        self.finished = False
        self._llm = llm
        self._aborted = False
        self._token = prompt[-1]

    def abort(self) -> None:
        assert not self._llm.dead, "The executor is not set for this result."
        self._aborted = True
        self._llm.running.discard(self)

    def aborted(self) -> bool:
        return self._aborted

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        await asyncio.sleep(0.001)
        if self._token == REFUSED:
            self._llm.running.discard(self)
            raise RequestError("this request cannot be run")
        if self._llm.dead or self._token == FATAL:
            self._llm.dead = True
            raise RuntimeError("the executor is gone")
        self._step(self.outputs[0], self.sampling_params)
        return self

    def _step(self, output: CompletionOutput, params: Any) -> None:
        self._token += 1
        output._last = len(output.token_ids)
        output.token_ids.append(self._token)
        if params.logprobs is not None:
            likeliest = {self._token + 1: Logprob(-0.25, 1), self._token: Logprob(-0.5, 2)}
            top = dict(list(likeliest.items())[: params.logprobs])
            output.logprobs.append({**top, self._token: likeliest[self._token]})
        if self._token == params.end_id:
            output.finish_reason = "stop"
        elif self._token in (params.stop_token_ids or ()):
            output.finish_reason, output.stop_reason = "stop", self._token
            output.token_ids.pop()
        elif len(output.token_ids) >= params.max_tokens:
            output.finish_reason = "length"
        if output.finish_reason:
            self.finished = True
            self._llm.running.discard(self)
            self._llm.report()


class IterationResult:
    """Ends when nothing comes for a while, and gives nothing more until it is asked for again."""

    def __init__(self, queue: asyncio.Queue[Any], timeout: float | None) -> None:
        self._queue = queue
        self._timeout = timeout

    def __aiter__(self) -> IterationResult:
        return self

    async def __anext__(self) -> Any:
        try:
            return await asyncio.wait_for(self._queue.get(), self._timeout)
        except TimeoutError:
            raise StopAsyncIteration from None


class LLM:
    started: list[LLM] = []  # noqa: RUF012
    fails: str | None = None

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        if self.fails:
            raise ValueError(self.fails)
        self.skip_tokenizer_init = skip_tokenizer_init
        self.block_size = kwargs["kv_cache_config"]["tokens_per_block"]
        self.running: set[RequestOutput] = set()
        self.asked: list[dict[str, Any]] = []
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.stats: asyncio.Queue[Any] = asyncio.Queue()
        self.dead = False
        self.was_shut_down = False
        self._ids = itertools.count()
        self.say({"type": "created", "num_blocks_per_cache_level": [BLOCKS, 0]})
        LLM.started.append(self)

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: Any = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        if sampling_params.end_id is None and self.skip_tokenizer_init:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        self.asked.append(
            {"inputs": inputs, "cache_salt": cache_salt, "params": sampling_params, "split": disaggregated_params}
        )
        result = RequestOutput(self, inputs, sampling_params, streaming)
        if disaggregated_params is not None and disaggregated_params.request_type == "context_only":
            held = DisaggregatedParams(
                request_type="context_only", first_gen_tokens=[inputs[-1] + 1], ctx_request_id=17,
                opaque_state=b"\x00state\xff", first_gen_log_probs=[[{inputs[-1] + 1: Logprob(-0.5, 1)}]],
                schedule_style=DisaggScheduleStyle.CONTEXT_FIRST,
            )  # fmt: skip
            result.outputs[0].disaggregated_params = held
        self.running.add(result)
        self.report()
        self.store(inputs)
        return result

    def get_kv_cache_events_async(self, timeout: float | None = 2) -> IterationResult:
        return IterationResult(self.events, timeout)

    def get_stats_async(self, timeout: float | None = 2) -> IterationResult:
        if self.dead:
            raise RuntimeError("the executor is gone")
        return IterationResult(self.stats, timeout)

    def shutdown(self) -> None:
        self.was_shut_down = True

    def report(self) -> None:
        used = sum(-(-len(each.prompt_token_ids) // self.block_size) for each in self.running)
        cache = {"maxNumBlocks": BLOCKS, "usedNumBlocks": used}
        self.stats.put_nowait({"numActiveRequests": len(self.running), "numQueuedRequests": 0, "kvCacheStats": cache})

    def say(self, data: dict[str, Any], window_size: int = 4096) -> None:
        self.events.put_nowait({"event_id": next(self._ids), "data": data, "window_size": window_size})

    def lose_an_event(self) -> None:
        next(self._ids)

    def names(self, ids: list[int]) -> list[int]:
        """One for each block, the last of which may be partial."""
        found: list[int] = []
        for at in range(0, len(ids), self.block_size):
            text = repr((found[-1:], ids[at : at + self.block_size]))
            found.append(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
        return found

    def store(self, ids: list[int]) -> None:
        blocks = [
            {
                "type": "stored_block",
                "block_hash": name,
                "tokens": [
                    {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                    for token in ids[at * self.block_size : (at + 1) * self.block_size]
                ],
                "cache_level": 0,
                "priority": 35,
            }
            for at, name in enumerate(self.names(ids))
        ]
        self.say({"type": "stored", "parent_hash": None, "blocks": blocks})

"""One request that vLLM is answering."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any
from uuid import uuid4

from dynamo.engines.vllm.handoff import cached_before, offered
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, TopLogprob, Usage
from dynamo.protocols.errors import DynamoException, EngineShutdown
from dynamo.runtime.stream import Sink

_FINISH = ("stop", "length", "cancelled", "error: vLLM failed to run this request", "stop")
"""By vLLM's number: stop, length, abort, error, repetition."""
ABORTED = 2

PromptLogprobs = list[list[TopLogprob] | None]


def finish_reason(reason: int) -> str:
    return _FINISH[reason] if 0 <= reason < len(_FINISH) else f"error: vLLM ended with reason {reason}"


def sampled(output: EngineOutput, logprobs: Any, shown: int) -> None:
    """Add the log probabilities of the step's tokens, and of the `shown` likeliest at each place.

    vLLM puts the sampled token first, then the likeliest in their order, the sampled one among them or not.
    """
    ids, values, ranks = logprobs[0].tolist(), logprobs[1].tolist(), logprobs[2].tolist()
    output.log_probs = [row[0] for row in values]
    output.top_logprobs = [_row(*place, shown) for place in zip(ids, values, ranks, strict=True)]


def prompt(tensors: Any, shown: int) -> list[list[TopLogprob]]:
    """One list for each prompt token after the first: the token itself, then the likeliest in its place."""
    ids, values, ranks = tensors[0].tolist(), tensors[1].tolist(), tensors[2].tolist()
    return [_row(*place, shown) for place in zip(ids, values, ranks, strict=True)]


def _row(ids: list[int], values: list[float], rank: int, shown: int) -> list[TopLogprob]:
    """Without the second mention of the first token."""
    count = len(ids) if shown < 0 else shown + 1
    row = [TopLogprob(token_id=ids[0], logprob=values[0], rank=rank)]
    row += [TopLogprob(token_id=ids[at], logprob=values[at], rank=at) for at in range(1, count) if ids[at] != ids[0]]
    return row


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details={"cached_tokens": cached_tokens},
    )


_PROCESS = uuid4().hex
_numbers = count()


class VllmRequest:
    __slots__ = (
        "_forget",
        "_logprobs",
        "_prompt_logprobs",
        "_scored",
        "_sink",
        "cached_tokens",
        "completion_tokens",
        "ended",
        "id",
        "max_tokens",
        "preparing",
        "prompt_tokens",
        "request",
        "stats",
    )

    def __init__(self, request: PreprocessedRequest, sink: Sink, forget: Callable[[VllmRequest], None]) -> None:
        self.id = f"{_PROCESS}-{next(_numbers)}"
        self.request = request
        self.prompt_tokens = len(request.token_ids)
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.max_tokens = 0
        self.stats: Any = None
        self.preparing: asyncio.Task[None] | None = None
        self.ended = False
        self._sink = sink
        self._forget = forget
        self._logprobs = request.output_options.logprobs
        self._prompt_logprobs = request.output_options.prompt_logprobs
        self._scored: list[Any] = []

    def push(self, output: Any) -> None:
        """What one engine step produced."""
        ids = output.new_token_ids
        self.completion_tokens += len(ids)
        if output.prefill_stats is not None:
            self.cached_tokens = output.prefill_stats.num_cached_tokens
        if output.finish_reason is None and output.new_logprobs is None and self._prompt_logprobs is None:
            if ids:
                self._sink.tokens(ids)
            return
        self._push_more(output)

    def _push_more(self, output: Any) -> None:
        """A step that carries more than tokens: log probabilities, an embedding, or the end."""
        if output.pooling_output is not None:
            self.ended = True
            self._sink.item({"embedding": output.pooling_output.tolist()})
            self._sink.end()
            return
        if output.finish_reason == ABORTED:
            # Not by us, who forget a request first: another worker may go on with it.
            self.ended = True
            self._sink.fail(EngineShutdown("vLLM aborted the request"))
            return
        item = EngineOutput(token_ids=output.new_token_ids)
        if output.new_logprobs is not None and self._logprobs is not None:
            sampled(item, output.new_logprobs, self._logprobs)
        if self._prompt_logprobs is not None:
            if output.new_prompt_logprobs_tensors is not None:
                self._scored += prompt(output.new_prompt_logprobs_tensors, self._prompt_logprobs)
            if output.new_token_ids and not output.finish_reason:
                self._prompt_logprobs = None
                item.prompt_logprobs = [None, *self._scored]
        if output.finish_reason is None:
            if item.token_ids:
                self._sink.item(item)
            return
        if self._prompt_logprobs is not None:
            item.prompt_logprobs = [None, *self._scored]
        item.finish_reason = finish_reason(output.finish_reason)
        item.stop_reason = output.stop_reason
        item.kv_transfer_params = output.kv_transfer_params
        item.disaggregated_params = offered(output.kv_transfer_params)
        cached = cached_before(self.request)
        item.completion_usage = usage(
            self.prompt_tokens, self.completion_tokens, self.cached_tokens if cached is None else cached
        )
        self.ended = True
        self._sink.item(item)
        self._sink.end()

    def abort(self) -> None:
        if not self.ended:
            self._end()
            self._sink.item(EngineOutput(finish_reason="cancelled"))
            self._sink.end()

    def fail(self, error: DynamoException) -> None:
        if not self.ended:
            self._end()
            self._sink.fail(error)

    def _end(self) -> None:
        self.ended = True
        if self.preparing is not None:
            self.preparing.cancel()
        self._forget(self)

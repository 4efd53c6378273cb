"""One request that SGLang is answering."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from dynamo.engines.sglang.outputs import finish_reason, prompt_logprobs, refusal, sampled, step_facts
from dynamo.engines.stream_request import StreamRequest, usage
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest
from dynamo.protocols.errors import DynamoException, from_exception
from dynamo.runtime.stream import Sink


class SglangRequest(StreamRequest):
    def __init__(
        self,
        request: PreprocessedRequest,
        sink: Sink,
        forget: Callable[[StreamRequest], None],
        llm: Any,
        arguments: dict[str, Any],
    ) -> None:
        super().__init__(sink, forget)
        self._llm = llm
        self._arguments = arguments
        self._logprobs = request.output_options.logprobs
        self._prompt_logprobs = request.output_options.prompt_logprobs
        stops = request.stop_conditions
        own = {*request.eos_token_ids, *(stops.stop_token_ids_hidden or ())}
        self._own_ends = own.difference(stops.stop_token_ids or ())
        self._plain = self._logprobs is None and self._prompt_logprobs is None

    async def _pump(self) -> None:
        chunks = await self._llm.async_generate(**self._arguments)
        # Closing it early has SGLang drop the request, also one that it has not yet handed to its scheduler.
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                self._push(chunk)
                if self.ended:
                    return

    @property
    def rid(self) -> str:
        return str(self._arguments["rid"])

    def step(self, step: Any, at: int) -> None:
        """Push what a step of the scheduler has for this request, which is number `at` in it."""
        ids = step.output_ids[at]
        if self._plain and step.finished_reasons[at] is None:
            if ids:
                self._sink.tokens(list(ids))
            return
        self._push({"output_ids": list(ids), "meta_info": step_facts(step, at, scored=not self._plain)})

    def rest(self) -> None:
        """End the task that waits for the end of the answer, which has come."""
        if self._task is not None:
            self._task.cancel()

    def _push(self, chunk: dict[str, Any]) -> None:
        """`chunk` holds new tokens only."""
        ids, facts = chunk["output_ids"], chunk["meta_info"]
        reason = facts["finish_reason"]
        if reason is None and self._plain:
            if ids:
                self._sink.tokens(ids)
            return
        output = EngineOutput(token_ids=ids)
        if self._logprobs is not None:
            sampled(output, facts, self._logprobs)
        if self._prompt_logprobs is not None:
            output.prompt_logprobs = prompt_logprobs(facts, self._prompt_logprobs)
            self._prompt_logprobs = None
        if reason is None:
            self._sink.item(output)
            return
        if (error := refusal(reason)) is not None:
            self.ended = True
            self._sink.fail(error)
            return
        output.finish_reason, output.stop_reason = finish_reason(reason)
        if output.stop_reason in self._own_ends:  # the client did not ask for it
            output.stop_reason = None
        output.completion_usage = usage(facts["prompt_tokens"], facts["completion_tokens"], facts.get("cached_tokens"))
        self.finish(output)

    def _release(self) -> None:
        self._llm.tokenizer_manager.abort_request(rid=self._arguments["rid"])

    def _failure(self, error: Exception) -> DynamoException:
        return from_exception(error)

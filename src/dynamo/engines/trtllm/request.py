"""One request that TensorRT-LLM is answering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorrt_llm.llmapi import RequestError

from dynamo.engines.stream_request import StreamRequest, first_line, usage
from dynamo.engines.trtllm.handoff import to_wire
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, TopLogprob
from dynamo.protocols.errors import DynamoException, EngineDied, Unknown
from dynamo.runtime.stream import Sink

_FINISH = {"stop": "stop", "length": "length", "cancelled": "cancelled", "timeout": "error: the request timed out"}


class TrtllmRequest(StreamRequest):
    def __init__(
        self,
        request: PreprocessedRequest,
        sink: Sink,
        forget: Callable[[StreamRequest], None],
        died: Callable[[str], None],
    ) -> None:
        super().__init__(sink, forget)
        self._died = died
        self._result: Any = None
        self._prompt_tokens = len(request.token_ids)
        self._logprobs = request.output_options.logprobs
        self._offers = (request.kv_transfer_params or {}).get("request_type") == "context_only"

    def answered_by(self, result: Any) -> None:
        """`result` is what `generate_async` returned."""
        self._result = result
        self.start()

    async def _pump(self) -> None:
        async for result in self._result:
            self._push(result.outputs[0])
            if self.ended:
                return

    def _push(self, completion: Any) -> None:
        ids = completion.token_ids_diff
        if completion.finish_reason is None and self._logprobs is None:
            if ids:
                self._sink.tokens(ids)
            return
        output = EngineOutput(token_ids=ids)
        if self._logprobs is not None:
            _score(output, completion.logprobs_diff, self._logprobs)
        if completion.finish_reason is None:
            if ids:
                self._sink.item(output)
            return
        reason = completion.finish_reason
        output.finish_reason = _FINISH.get(reason, f"error: TensorRT-LLM ended with {reason}")
        output.stop_reason = completion.stop_reason
        output.disaggregated_params = to_wire(completion.disaggregated_params) if self._offers else None
        output.completion_usage = usage(self._prompt_tokens, completion.length, None)
        self.finish(output)

    def _release(self) -> None:
        self._result.abort()

    def _failure(self, error: Exception) -> DynamoException:
        """Whatever is not about this request means that the engine is gone: its errors reach every stream."""
        if isinstance(error, RequestError):
            return Unknown(f"TensorRT-LLM: {first_line(error)}")
        self._died(first_line(error))
        return EngineDied("the engine died")


def _score(output: EngineOutput, places: Any, shown: int) -> None:
    """Add log probabilities: a number for each token, or a map from the likeliest token ids, with the token's own."""
    output.log_probs, output.top_logprobs = [], []
    for token, place in zip(output.token_ids, places, strict=False):
        if isinstance(place, (int, float)):
            output.log_probs.append(float(place))
            output.top_logprobs.append([TopLogprob(token_id=token, logprob=float(place))])
            continue
        own = place[token]
        output.log_probs.append(own.logprob)
        others = sorted((item for item in place.items() if item[0] != token), key=lambda item: -item[1].logprob)
        room = shown - 1 if own.rank is not None and own.rank <= shown else shown
        row = [(token, own), *others[: max(0, room)]]
        output.top_logprobs.append(
            [TopLogprob(token_id=each, logprob=value.logprob, rank=value.rank) for each, value in row]
        )

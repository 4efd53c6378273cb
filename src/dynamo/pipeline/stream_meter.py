"""Measures one stream on its way to the postprocessor: when its tokens came, how many, and how it failed."""

from __future__ import annotations

from bisect import bisect_left
from time import perf_counter
from typing import Any

from dynamo.pipeline.postprocess import Postprocess
from dynamo.protocols.engine import EngineOutput, Usage
from dynamo.protocols.errors import DynamoException, Unknown
from dynamo.runtime.metrics import Histogram
from dynamo.runtime.stream import Sink


class _NeverDone:
    """Stands for a sink that reads its stream to the end."""

    done = False


class StreamMeter:
    """The stage in front of `sink`. It is on the hot path: see benchmarks/metering.py."""

    __slots__ = (
        "_bounds",
        "_counts",
        "_last",
        "_postprocess",
        "_reader",
        "_reported",
        "_settled",
        "_sink",
        "_tokens",
        "cached_tokens",
        "error",
        "first",
        "prompt_tokens",
    )

    def __init__(self, sink: Sink, inter_token: Histogram, prompt_tokens: int = 0) -> None:
        """`inter_token` gets the time of each token; its sum is left to `progress`."""
        self.first = 0.0
        """When the first token came, on the clock of `perf_counter`; 0 until then."""
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.error: DynamoException | None = None
        """Why the client did not get the whole answer."""
        self._bounds = inter_token.bounds
        self._counts = inter_token.counts
        self._sink = sink
        self._tokens = sink.tokens
        self._postprocess = sink if isinstance(sink, Postprocess) else None
        self._reader = self._postprocess or _NeverDone
        self._last = 0.0
        self._reported = 0
        self._settled = (0.0, 0)

    def tokens(self, ids: list[int]) -> None:
        if self._reader.done:
            # The worker has not yet heard that a stop string ended the answer.
            return
        now = perf_counter()
        if self._last:
            count = len(ids) or 1
            self._counts[bisect_left(self._bounds, (now - self._last) / count)] += count
        else:
            self.first = now
        self._last = now
        self._tokens(ids)

    def item(self, value: Any) -> None:
        if isinstance(value, EngineOutput):
            self._output(value)
        else:
            self._step(1)
            self._usage(value.get("usage") if isinstance(value, dict) else None)
        self._sink.item(value)

    def _usage(self, usage: Any) -> None:
        """Any chunk of a worker that takes text may report the usage so far."""
        if isinstance(usage, dict):
            generated, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
            if isinstance(generated, int) and isinstance(prompt, int):
                self._reported = generated
                self.prompt_tokens = prompt

    def _output(self, output: EngineOutput) -> None:
        if output.token_ids or output.text:
            self._step(len(output.token_ids) or 1)
        if output.completion_usage:
            self.cached_tokens += _cached_tokens(output.completion_usage)
        reason = output.finish_reason
        if reason and reason.startswith("error"):
            self.error = Unknown(reason)

    def _step(self, count: int) -> None:
        now = perf_counter()
        if self._last:
            self._counts[bisect_left(self._bounds, (now - self._last) / count)] += count
        else:
            self.first = now
        self._last = now

    def end(self) -> None:
        self._sink.end()

    def fail(self, error: DynamoException) -> None:
        if self._postprocess is None or not self._postprocess.complete:
            self.error = error
        self._sink.fail(error)

    @property
    def count(self) -> int:
        """Tokens generated so far, as in the usage the client sees."""
        return self._postprocess.count if self._postprocess else self._reported

    @property
    def streaming(self) -> float:
        """Seconds between the first token and the last."""
        return self._last - self.first

    def progress(self) -> tuple[float, int]:
        """Seconds of streaming and tokens generated since the last call."""
        seconds, count = self._settled
        self._settled = (self.streaming, self.count)
        return self.streaming - seconds, self.count - count


def _cached_tokens(usage: Usage) -> int:
    count = (usage.prompt_tokens_details or {}).get("cached_tokens")
    return count if isinstance(count, int) and count > 0 else 0

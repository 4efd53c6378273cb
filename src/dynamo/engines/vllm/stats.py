"""What vLLM's own statistics need from each step, and what they say of the load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY, Metric
from vllm.v1.metrics.stats import IterationStats, LoRARequestStates, RequestStateStats

from dynamo.engines.base import LoadListener, RankLoad
from dynamo.engines.vllm.request import VllmRequest

_LOAD_SECONDS = 0.1
"""Load is reported when it may have changed, but not more often than this."""
_LOG_SECONDS = 10.0
_NO_ADAPTERS = LoRARequestStates()


class Meter:
    """Feeds vLLM's stat loggers, among them the one for Prometheus, as its own output processor would."""

    def __init__(self, loggers: Any) -> None:
        self._loggers = loggers
        self._timer: asyncio.TimerHandle | None = None

    def record(self, step: StepStats | None, outputs: Any) -> None:
        """The statistics of a finished step, and of its scheduler."""
        self._loggers.record(
            scheduler_stats=outputs.scheduler_stats,
            iteration_stats=step.iteration if step is not None else None,
            engine_idx=outputs.engine_index,
        )
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOG_SECONDS, self._log)

    def _log(self) -> None:
        self._timer = None
        self._loggers.log()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class StepStats:
    """What vLLM counts of one step."""

    __slots__ = ("_at", "iteration")

    def __init__(self, at: float) -> None:
        self._at = at
        self.iteration = IterationStats()

    def tokens(self, output: Any, request: RequestStateStats) -> None:
        """Count one request's part of the step."""
        first = request.first_token_ts == 0.0
        if first or output.events is not None or output.num_nans_in_logits:
            self.iteration.update_from_output(output, self._at, first, request, _NO_ADAPTERS, None)
            return
        # The same for all but the first step, at a fraction of the cost: this runs for every token.
        count = len(output.new_token_ids)
        self.iteration.num_generation_tokens += count
        self.iteration.inter_token_latencies_iter.append(self._at - request.last_token_ts)
        request.num_generation_tokens += count
        request.last_token_ts = self._at

    def finished(self, output: Any, running: VllmRequest) -> None:
        self.iteration.update_from_finished_request(
            finish_reason=output.finish_reason,
            request_id=output.request_id,
            num_prompt_tokens=running.prompt_tokens,
            max_tokens_param=running.max_tokens,
            req_stats=running.stats,
            num_cached_tokens=running.cached_tokens,
        )
        self.iteration.max_num_generation_tokens_iter.append(running.stats.num_generation_tokens)
        self.iteration.n_params_iter.append(1)


class LoadReports:
    """Reports how full the cache of each rank is: at once where nothing was reported lately, else when it is due."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._listener: LoadListener | None = None
        self._used: dict[int, int] = {}
        self._guessed: dict[int, tuple[int, int]] = {}
        """The tokens that each rank has guessed since the start, and those of them that were right."""
        self._timer: asyncio.TimerHandle | None = None

    def listen(self, listener: LoadListener) -> None:
        self._listener = listener

    def step(self, rank: int, stats: Any) -> None:
        """`stats` are the scheduler's."""
        if (guesses := stats.spec_decoding_stats) is not None:
            drafted, accepted = self._guessed.get(rank, (0, 0))
            self._guessed[rank] = drafted + guesses.num_draft_tokens, accepted + guesses.num_accepted_tokens
        if self._listener is None:
            return
        self._used[rank] = round(stats.kv_cache_usage * self._blocks)
        if self._timer is None:
            self._report()

    def _report(self) -> None:
        self._timer = None
        if not self._used or self._listener is None:
            return
        used, self._used = self._used, {}
        for rank, blocks in used.items():
            drafted, accepted = self._guessed.get(rank, (0, 0))
            self._listener(
                RankLoad(
                    dp_rank=rank,
                    active_decode_blocks=blocks,
                    kv_used_blocks=blocks,
                    kv_total_blocks=self._blocks,
                    draft_tokens=drafted,
                    accepted_tokens=accepted,
                )
            )
        self._timer = asyncio.get_running_loop().call_later(_LOAD_SECONDS, self._report)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._listener = None


class VllmMetrics:
    """vLLM's metrics among those of this process's default registry."""

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in REGISTRY.collect() if metric.name.startswith("vllm:"))

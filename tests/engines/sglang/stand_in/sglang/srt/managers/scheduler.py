"""Answers requests by counting up from the last token of the prompt: a token for each of them in every step."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from typing import Any

import zmq
import zmq.asyncio

from .io_struct import BatchTokenIDOutput

REFUSED = 666
"""A prompt that ends with it is refused by the scheduler."""
VOCABULARY = 1000
Scores = tuple[list[Any], list[Any]]


class Running:
    def __init__(self, obj: Any, cached: int, context: int) -> None:
        self.obj = obj
        self.cached = cached
        limit = obj.sampling_params.get("max_new_tokens", 128)
        self.limit = context - len(obj.input_ids) if limit is None else limit
        self.given = 0
        self.token = obj.input_ids[-1]
        self.aborted = False

    def step(self) -> tuple[list[int], dict[str, Any] | None]:
        params = self.obj.sampling_params
        if self.token == REFUSED:
            return [], {"type": "abort", "message": "the grammar is wrong", "status_code": 400, "err_type": "x"}
        if self.aborted:
            return [], {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        self.token = (self.token + 1) % VOCABULARY
        self.given += 1
        reason = None
        if self.token in (params.get("stop_token_ids") or ()) and not params.get("ignore_eos"):
            reason = {"type": "stop", "matched": self.token}
        elif self.given >= self.limit:
            reason = {"type": "length", "length": self.given}
        return [self.token], reason

    def likeliest(self, token: int) -> Scores:
        shown = self.obj.top_logprobs_num or 0
        return [-0.25, -0.5, -3.0][:shown], [token + 1, token, token + 2][:shown]


class Scheduler:
    """In its own process for SGLang; here it runs on the loop of the test."""

    def __init__(self, port_args: Any, *, detokenized: bool, cached: Callable[[list[int]], int]) -> None:
        self._cached = cached
        self._running: dict[str, Running] = {}
        self._woken = asyncio.Event()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.connect(port_args.detokenizer_ipc_name if detokenized else port_args.tokenizer_ipc_name)
        self.task = asyncio.create_task(self._run())

    def take(self, obj: Any, context: int) -> None:
        self._running[obj.rid] = Running(obj, self._cached(obj.input_ids), context)
        self._woken.set()

    def abort(self, rid: str) -> None:
        if rid in self._running:
            self._running[rid].aborted = True

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            await asyncio.sleep(0.001)
            await self._socket.send_pyobj(self._step())
            if not self._running:
                self._woken.clear()

    def _step(self) -> BatchTokenIDOutput:
        running = list(self._running.items())
        done = [each.step() for _, each in running]
        for (rid, _), (_, reason) in zip(running, done, strict=True):
            if reason is not None:
                del self._running[rid]
        scores = [self._scores(each, ids) for (_, each), (ids, _) in zip(running, done, strict=True)]
        scored = any(each.obj.return_logprob for _, each in running)
        return BatchTokenIDOutput(
            rids=[rid for rid, _ in running],
            finished_reasons=[reason for _, reason in done],
            output_ids=[array("q", ids) for ids, _ in done],
            prompt_tokens=[len(each.obj.input_ids) for _, each in running],
            completion_tokens=[each.given for _, each in running],
            cached_tokens=[each.cached for _, each in running],
            # As if of the tokens guessed in each step two were right, which it then does not spare.
            spec_verify_ct=[each.given for _, each in running],
            spec_num_correct_drafts=[2 * each.given for _, each in running],
            **{name: [each[name] for each in scores] if scored else None for name in self._scores(None, [])},
        )

    @staticmethod
    def _scores(running: Running | None, new: list[int]) -> dict[str, list[Any]]:
        """Those of the prompt come only once, with the first token."""
        asked = running is not None and running.obj.return_logprob
        once = running is not None and asked and running.given == 1 and running.obj.logprob_start_len == 0
        prompt = running.obj.input_ids if running is not None and once else []
        found: dict[str, list[Any]] = {}
        for side, tokens in (("input", prompt), ("output", new if asked else [])):
            first = side == "input"
            found[f"{side}_token_logprobs_val"] = [None if first and at == 0 else -0.5 for at in range(len(tokens))]
            found[f"{side}_token_logprobs_idx"] = list(tokens)
            tops = [running.likeliest(token) for token in tokens] if running and running.obj.top_logprobs_num else []
            for column, part in (("val", 0), ("idx", 1)):
                found[f"{side}_top_logprobs_{column}"] = [
                    None if first and at == 0 else top[part] for at, top in enumerate(tops)
                ]
        return found

    def close(self) -> None:
        self._context.destroy(linger=0)

"""Answers requests by counting up from the last token of the prompt, and says what it was asked."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from .kv_events import KvPublisher

CONTEXT = 256
CACHE_TOKENS = 1024
REFUSED = 666
"""A prompt that ends with it is refused by the scheduler."""
VOCABULARY = 1000


class TokenizerManager:
    def __init__(self, server_args: Any, port_args: Any) -> None:
        self.server_args = server_args
        self.context_len = server_args.context_length or CONTEXT
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self.rid_to_state: dict[str, SimpleNamespace] = {}
        self.aborted: list[str] = []
        self.requests: list[Any] = []
        self.flushed = 0
        self.events = KvPublisher(json.loads(server_args.kv_events_config or "{}"), server_args.page_size or 1)

    def auto_create_handle_loop(self) -> None:
        if self.event_loop is not None:
            return
        self.event_loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGQUIT):
                self.event_loop.add_signal_handler(number, lambda: None)

    async def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[dict[str, Any]]:
        self.auto_create_handle_loop()
        self.requests.append(obj)
        state = self.rid_to_state[obj.rid] = SimpleNamespace(abort_sent=False)
        try:
            if len(obj.input_ids) >= self.context_len:
                raise ValueError(
                    f"The input ({len(obj.input_ids)} tokens) is longer than the model's context length "
                    f"({self.context_len} tokens)."
                )
            async for chunk in self._chunks(obj, state):
                yield chunk
        except BaseException:
            self.abort_request(obj.rid)
            raise
        finally:
            self.rid_to_state.pop(obj.rid, None)

    async def _chunks(self, obj: Any, state: SimpleNamespace) -> AsyncIterator[dict[str, Any]]:
        params = obj.sampling_params
        limit = params.get("max_new_tokens", 128)
        limit = self.context_len - len(obj.input_ids) if limit is None else limit
        ends = set(params.get("stop_token_ids") or ())
        token, given, reason = obj.input_ids[-1], [], None
        cached = self.events.take(obj.input_ids)
        while reason is None:
            await asyncio.sleep(0.001)
            new = []
            if token == REFUSED:
                reason = {"type": "abort", "message": "the grammar is wrong", "status_code": 400, "err_type": "x"}
            elif state.abort_sent:
                reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
            else:
                token = (token + 1) % VOCABULARY
                new = [token]
                given.append(token)
                if token in ends and not params.get("ignore_eos"):
                    reason = {"type": "stop", "matched": token}
                elif len(given) >= limit:
                    reason = {"type": "length", "length": len(given)}
            facts = {
                "id": obj.rid,
                "finish_reason": reason,
                "prompt_tokens": len(obj.input_ids),
                "completion_tokens": len(given),
                "cached_tokens": cached,
            }
            if obj.return_logprob:
                facts |= self._scores(obj, new)
            incremental = self.server_args.incremental_streaming_output
            yield {"output_ids": new if incremental else list(given), "meta_info": facts}

    @staticmethod
    def _scores(obj: Any, new: list[int]) -> dict[str, Any]:
        def likeliest(token: int) -> list[tuple[float, int, None]]:
            return [(-0.25, token + 1, None), (-0.5, token, None), (-3.0, token + 2, None)][: obj.top_logprobs_num]

        scores: dict[str, Any] = {
            "output_token_logprobs": [(-0.5, token, None) for token in new],
            "input_token_logprobs": [],
        }
        if obj.logprob_start_len == 0:
            first, *others = obj.input_ids
            scores["input_token_logprobs"] = [(None, first, None), *((-0.5, token, None) for token in others)]
        if obj.top_logprobs_num:
            scores["output_top_logprobs"] = [likeliest(token) for token in new]
            scores["input_top_logprobs"] = [
                None if at == 0 else likeliest(token) for at, (_, token, _) in enumerate(scores["input_token_logprobs"])
            ]
        return scores

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        state = self.rid_to_state.get(rid)
        if state is not None and not state.abort_sent:
            state.abort_sent = True
            self.aborted.append(rid)

    async def flush_cache(self, timeout_s: float | None = None) -> SimpleNamespace:
        if self.rid_to_state:
            return SimpleNamespace(success=False)
        self.flushed += 1
        self.events.clear()
        return SimpleNamespace(success=True)

    async def get_loads(self, include: list[str] | None = None, dp_rank: int | None = None) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(
                dp_rank=0,
                num_used_tokens=sum(len(request.input_ids) for request in self.requests[-len(self.rid_to_state) :])
                if self.rid_to_state
                else 0,
                num_waiting_uncached_tokens=0,
                max_total_num_tokens=CACHE_TOKENS,
            )
        ]

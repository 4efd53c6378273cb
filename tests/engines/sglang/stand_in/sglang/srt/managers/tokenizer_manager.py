"""Takes requests in and gives their answers out, and says what it was asked."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import zmq
import zmq.asyncio

from .kv_events import KvPublisher
from .scheduler import VOCABULARY, Scheduler

CONTEXT = 256
CACHE_TOKENS = 1024


class TokenizerManager:
    def __init__(self, server_args: Any, port_args: Any) -> None:
        self.server_args = server_args
        self.port_args = port_args
        self.context_len = server_args.context_length or CONTEXT
        self.model_config = SimpleNamespace(vocab_size=4 * VOCABULARY)
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self.rid_to_state: dict[str, SimpleNamespace] = {}
        self.aborted: list[str] = []
        self.requests: list[Any] = []
        self.flushed = 0
        self.events = KvPublisher(json.loads(server_args.kv_events_config or "{}"), server_args.page_size or 1)
        self._context = zmq.asyncio.Context()
        self.recv_from_detokenizer = self._context.socket(zmq.PULL)
        self.recv_from_detokenizer.bind(port_args.tokenizer_ipc_name)

    def auto_create_handle_loop(self) -> None:
        if self.event_loop is not None:
            return
        self.event_loop = asyncio.get_running_loop()
        self.scheduler = Scheduler(
            self.port_args, detokenized=not self.server_args.skip_tokenizer_init, cached=self.events.take
        )
        self._loop = asyncio.create_task(self.handle_loop())
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGQUIT):
                self.event_loop.add_signal_handler(number, lambda: None)

    async def handle_loop(self) -> None:
        while True:
            await self._handle_batch_output(await self.recv_from_detokenizer.recv_pyobj())

    async def _handle_batch_output(self, recv_obj: Any) -> None:
        for at, rid in enumerate(recv_obj.rids):
            if (state := self.rid_to_state.get(rid)) is None:
                continue
            facts = {
                "id": rid,
                "finish_reason": recv_obj.finished_reasons[at],
                "prompt_tokens": recv_obj.prompt_tokens[at],
                "completion_tokens": recv_obj.completion_tokens[at],
                "cached_tokens": recv_obj.cached_tokens[at],
            }
            if state.obj.return_logprob:
                facts |= self._scores(state, recv_obj, at)
            new = list(recv_obj.output_ids[at])
            state.given += new
            incremental = self.server_args.incremental_streaming_output
            state.chunks.put_nowait({"output_ids": new if incremental else list(state.given), "meta_info": facts})

    @staticmethod
    def _scores(state: Any, step: Any, at: int) -> dict[str, Any]:
        """Those of the prompt come again with every chunk."""
        made: dict[str, Any] = {}
        for side in ("input", "output"):
            values, ids = (getattr(step, f"{side}_token_logprobs_{column}")[at] for column in ("val", "idx"))
            made[f"{side}_token_logprobs"] = [(value, id, None) for value, id in zip(values, ids, strict=True)]
            values, ids = (getattr(step, f"{side}_top_logprobs_{column}")[at] for column in ("val", "idx"))
            made[f"{side}_top_logprobs"] = [
                None if value is None else [(each, id, None) for each, id in zip(value, row, strict=True)]
                for value, row in zip(values, ids, strict=True)
            ]
        return made

    async def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[dict[str, Any]]:
        self.auto_create_handle_loop()
        self.requests.append(obj)
        state = self.rid_to_state[obj.rid] = SimpleNamespace(abort_sent=False, obj=obj, given=[])
        state.chunks = asyncio.Queue()
        try:
            if len(obj.input_ids) >= self.context_len:
                raise ValueError(
                    f"The input ({len(obj.input_ids)} tokens) is longer than the model's context length "
                    f"({self.context_len} tokens)."
                )
            self.scheduler.take(obj, self.context_len)
            ended = False
            while not ended:
                chunk = await state.chunks.get()
                ended = chunk["meta_info"]["finish_reason"] is not None
                yield chunk
        except BaseException:
            self.abort_request(obj.rid)
            raise
        finally:
            self.rid_to_state.pop(obj.rid, None)

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        state = self.rid_to_state.get(rid)
        if state is not None and not state.abort_sent:
            state.abort_sent = True
            self.aborted.append(rid)
            self.scheduler.abort(rid)

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

    def close(self) -> None:
        if self.event_loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self.event_loop).result(10)
        self._context.destroy(linger=0)
        self.events.close()

    async def _end(self) -> None:
        tasks = (self._loop, self.scheduler.task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.scheduler.close()

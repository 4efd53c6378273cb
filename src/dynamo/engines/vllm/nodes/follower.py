"""A node that lends its GPUs to an engine whose leader runs on another node; it takes no requests."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from dynamo.engines.base import DeathListener, EngineError, EngineInfo
from dynamo.engines.vllm.arguments import EngineArguments
from dynamo.engines.vllm.nodes.cpu_ranks import announce_ranks
from dynamo.engines.vllm.nodes.followers import stay_with, until_leader_leaves
from dynamo.engines.vllm.nodes.layout import adopt, layout_of_leader
from dynamo.engines.vllm.nodes.orphans import OwnChildren
from dynamo.process.threads import in_thread
from dynamo.protocols.card import ModelInput
from dynamo.protocols.errors import EngineShutdown
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)


class VllmFollower:
    """vLLM's workers of this node. They join the leader's process group, so `start` waits for the leader."""

    model_input = ModelInput.Tokens

    def __init__(self, args: EngineArguments) -> None:
        self._args = args
        self._executor: Any = None
        self._closed = False
        self._watch: asyncio.Task[None] | None = None
        self._own = OwnChildren()
        self._held: socket.socket | None = None

    async def start(self) -> EngineInfo:
        try:
            self._executor = await in_thread(self._join)
        except Exception as error:
            raise EngineError(f"vLLM could not join {self._args.master_addr}: {error}") from error
        return EngineInfo(follower=True)

    def _join(self) -> Any:
        log.info("waiting for the leader at %s:%d", self._args.master_addr, self._args.master_port)
        layout = layout_of_leader(self._args, lambda: self._closed)
        if self._args.layout_from_leader:
            adopt(layout, self._args)
        if layout is not None:
            try:
                self._held = stay_with(self._args.master_addr, layout.port, layout.secret)
            except OSError as error:
                log.warning("the leader will not notice the end of this node at once: port %d: %s", layout.port, error)
        announce_ranks(os.environ, self._args)
        with self._own:
            return MultiprocExecutor(self._args.create_engine_config(headless=True))

    def generate(self, request: Any, sink: Sink) -> VllmFollower:
        sink.fail(EngineShutdown("a follower node takes no requests"))
        return self

    def abort(self) -> None:
        """There is nothing to free."""

    def quiet(self) -> bool:
        return True

    def on_death(self, listener: DeathListener) -> None:
        loop = asyncio.get_running_loop()

        def died() -> None:
            if not self._closed:
                loop.call_soon_threadsafe(listener, "a vLLM worker of this node died")

        self._executor.register_failure_callback(died)
        self._watch = asyncio.create_task(self._watch_leader(listener))

    async def _watch_leader(self, listener: DeathListener) -> None:
        await until_leader_leaves(self._args.master_addr, self._args.master_port)
        if not self._closed:
            listener(f"the leader at {self._args.master_addr}:{self._args.master_port} left")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._executor is not None:
            await in_thread(self._executor.shutdown)
        self._own.kill()
        if self._held is not None:
            self._held.close()

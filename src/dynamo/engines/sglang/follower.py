"""A node that lends its GPUs to an engine whose leader runs on another node; it takes no requests."""

from __future__ import annotations

from typing import Any

from dynamo.engines.base import DeathListener, EngineError, EngineInfo
from dynamo.engines.owner_thread import OwnerThread
from dynamo.engines.sglang.processes import DeathWatch, load
from dynamo.engines.stream_request import first_line
from dynamo.protocols.card import ModelInput
from dynamo.protocols.errors import EngineShutdown
from dynamo.runtime.stream import Sink


class SglangFollower:
    """SGLang's schedulers of this node. They join the leader's process group, so `start` waits for the leader."""

    model_input = ModelInput.Tokens

    def __init__(self, args: Any) -> None:
        self._args = args
        self._owner = OwnerThread("dynamo-sglang", lambda: load(args), lambda llm: llm.shutdown())
        self._watch = DeathWatch(self._died)
        self._on_death: DeathListener | None = None
        self._death: str | None = None

    async def start(self) -> EngineInfo:
        self._watch.take_signal()
        try:
            llm = await self._owner.start()
        except Exception as error:
            raise EngineError(f"SGLang could not join {self._args.dist_init_addr}: {first_line(error)}") from error
        self._watch.watch(llm.get_all_child_pids())
        return EngineInfo(follower=True)

    def generate(self, request: Any, sink: Sink) -> SglangFollower:
        sink.fail(EngineShutdown("a follower node takes no requests"))
        return self

    def abort(self) -> None:
        """There is nothing to free."""

    def quiet(self) -> bool:
        return True

    def _died(self, reason: str) -> None:
        self._death = f"{reason}, or the leader left"
        if self._on_death is not None:
            self._on_death(self._death)

    def on_death(self, listener: DeathListener) -> None:
        self._on_death = listener
        if self._death is not None:
            listener(self._death)

    async def close(self) -> None:
        self._watch.close()
        await self._owner.close()
        self._watch.release_signal()

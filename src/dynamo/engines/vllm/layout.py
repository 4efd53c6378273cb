"""Over how many processes an engine on several nodes is spread: the leader says it, and followers need not repeat it.

It is kept in the store at which all processes of the engine meet, which the leader's first process opens.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError, TCPStore

from dynamo.engines.base import EngineError

_KEY = "dynamo/layout"
_FIELDS = ("tensor_parallel_size", "pipeline_parallel_size")
_TRY = timedelta(seconds=2)
_WAIT = timedelta(minutes=1)
"""A leader says it as soon as its store is open."""


class Announcement:
    """Tells followers the leader's layout; to be stopped if the leader does not come up."""

    def __init__(self, args: Any) -> None:
        self._stopped = threading.Event()
        said = json.dumps({name: getattr(args, name) for name in _FIELDS})
        thread = threading.Thread(target=self._tell, args=(args.master_addr, args.master_port, said), daemon=True)
        thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _tell(self, host: str, port: int, said: str) -> None:
        if store := _reach(host, port, self._stopped.is_set):
            store.set(_KEY, said)


def adopt_layout(args: Any, given_up: Callable[[], bool]) -> None:
    """Wait for the leader and take its layout into `args`; `given_up` ends the wait."""
    store = _reach(args.master_addr, args.master_port, given_up)
    if store is None:
        raise EngineError("it was stopped before its leader came")
    try:
        store.wait([_KEY], _WAIT)
        layout = json.loads(store.get(_KEY))
    except DistStoreError as error:
        raise EngineError("the leader does not say its --tensor-parallel-size: give it here too") from error
    for name in _FIELDS:
        setattr(args, name, int(layout[name]))


def _reach(host: str, port: int, given_up: Callable[[], bool]) -> TCPStore | None:
    while not given_up():
        try:
            return TCPStore(host, port, is_master=False, timeout=_TRY, wait_for_workers=False)
        except DistNetworkError:
            """The leader's store is not open yet."""
    return None

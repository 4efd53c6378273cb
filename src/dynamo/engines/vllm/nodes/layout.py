"""Over how many processes an engine on several nodes is spread: the leader says it, and followers need not repeat it.

It is kept in the store at which all processes of the engine meet, which the leader's first process opens.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec import Struct, ValidationError, json
from torch.distributed import DistNetworkError, DistStoreError, TCPStore

from dynamo.engines.base import EngineError

_KEY = "dynamo/layout"
_TRY = timedelta(seconds=2)
_PAUSE = 0.2
_WAIT = timedelta(seconds=20)
"""A leader says it as soon as its store is open."""


class Layout(Struct):
    """`port` and `secret` are for `followers.stay_with`."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    port: int
    secret: str


class Announcement:
    """Tells followers the leader's layout; to be stopped if the leader does not come up."""

    def __init__(self, args: Any, port: int, secret: str) -> None:
        self._stopped = threading.Event()
        layout = Layout(args.tensor_parallel_size, args.pipeline_parallel_size, port, secret)
        said = json.encode(layout).decode()
        words = args.master_addr, args.master_port, said
        self._thread = threading.Thread(target=self._tell, args=words, name="dynamo-vllm-layout", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Blocks for as long as an attempt to connect takes."""
        self._stopped.set()
        self._thread.join()

    def _tell(self, host: str, port: int, said: str) -> None:
        if store := _reach(host, port, self._stopped.is_set):
            store.set(_KEY, said)


def layout_of_leader(args: Any, given_up: Callable[[], bool]) -> Layout | None:
    """Waits for the leader; `given_up` ends the wait. None: it is not one of ours, and says nothing."""
    store = _reach(args.master_addr, args.master_port, given_up)
    if store is None:
        raise EngineError("it was stopped before its leader came")
    try:
        store.wait([_KEY], _WAIT)
        return json.decode(store.get(_KEY), type=Layout)
    except (DistStoreError, ValidationError):
        return None


def adopt(layout: Layout | None, args: Any) -> None:
    if layout is None:
        raise EngineError("the leader does not say its --tensor-parallel-size: give it here too")
    args.tensor_parallel_size = layout.tensor_parallel_size
    args.pipeline_parallel_size = layout.pipeline_parallel_size


def _reach(host: str, port: int, given_up: Callable[[], bool]) -> TCPStore | None:
    while not given_up():
        try:
            # Each attempt of the store itself to connect in vain is logged with a stack trace.
            socket.create_connection((host, port), _TRY.total_seconds()).close()
            return TCPStore(host, port, is_master=False, timeout=_TRY, wait_for_workers=False)
        except (OSError, DistNetworkError):
            time.sleep(_PAUSE)  # the leader's store is not open yet
    return None

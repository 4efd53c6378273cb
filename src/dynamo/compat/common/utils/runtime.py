"""Makes a runtime from a worker's flags."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import EndpointId

Result = TypeVar("Result")


def parse_endpoint(endpoint: str) -> tuple[str, str, str]:
    """Namespace, component and endpoint of `dyn://NAMESPACE.COMPONENT.ENDPOINT`, also without `dyn://`."""
    id = EndpointId.exact(endpoint.removeprefix("dyn://"))
    return id.namespace, id.component, id.name


def create_runtime(
    discovery_backend: str,
    request_plane: str,
    event_plane: str | None = None,
    use_kv_events: bool | None = None,
) -> tuple[DistributedRuntime, asyncio.AbstractEventLoop]:
    """A runtime on the running event loop, and the loop. `use_kv_events` has no effect."""
    if use_kv_events is not None:
        warnings.warn("use_kv_events has no effect; choose the event plane", DeprecationWarning, stacklevel=2)
    loop = asyncio.get_running_loop()
    return DistributedRuntime(loop, discovery_backend, request_plane, event_plane=event_plane), loop


def run_async(func: Callable[..., Coroutine[Any, Any, Result]], *args: Any, **options: Any) -> Result:
    """The result of a coroutine function, called from code that is not async; in a thread if a loop runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(func(*args, **options))
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(func(*args, **options))).result()

"""What ai-dynamo's workers import from `dynamo.common`: a constant, and how they read their flags."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, TypeVar

from dynamo.protocols.card import ModelType
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import EndpointId


class DisaggregationMode(Enum):
    """What a worker does of a request."""

    AGGREGATED = "agg"
    PREFILL = "prefill"
    DECODE = "decode"
    ENCODE = "encode"


_TYPES = {"chat": ModelType.Chat, "completions": ModelType.Completions}


def parse_endpoint_types(endpoint_types_str: str) -> ModelType:
    """`chat`, `completions` or both with a comma."""
    names = [name.strip().lower() for name in endpoint_types_str.split(",") if name.strip()]
    if not names:
        raise ValueError("there is no endpoint type; give chat, completions or both with a comma")
    result = ModelType(0)
    for name in names:
        if name not in _TYPES:
            raise ValueError(f"Invalid endpoint type: '{name}'. There are chat and completions.")
        result |= _TYPES[name]
    return result


def get_worker_namespace(namespace: str | None = None) -> str:
    """The given one or else that of DYN_NAMESPACE, with DYN_NAMESPACE_WORKER_SUFFIX after a hyphen if that is set."""
    name = namespace or os.environ.get("DYN_NAMESPACE") or "dynamo"
    suffix = os.environ.get("DYN_NAMESPACE_WORKER_SUFFIX")
    return f"{name}-{suffix}" if suffix else name


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

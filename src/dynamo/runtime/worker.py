"""The decorators for engine authors: `@dynamo_worker` and `@dynamo_endpoint`."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, overload

import msgspec

from dynamo.protocols.errors import InvalidArgument
from dynamo.runtime.distributed import DistributedRuntime
from dynamo.runtime.handler import takes_context
from dynamo.runtime.logging import configure_dynamo_logging
from dynamo.runtime.process import run_until_signalled, start_or_exit

WorkerFunction = Callable[..., Coroutine[Any, Any, Any]]


@overload
def dynamo_worker(function: WorkerFunction, /) -> WorkerFunction: ...


@overload
def dynamo_worker(
    *, static: bool = False, enable_nats: bool | None = None
) -> Callable[[WorkerFunction], WorkerFunction]: ...


def dynamo_worker(
    function: WorkerFunction | None = None, /, *, static: bool = False, enable_nats: bool | None = None
) -> WorkerFunction | Callable[[WorkerFunction], WorkerFunction]:
    """Call an async function with the runtime as its first argument; start, signals and shutdown are handled.

    Written `@dynamo_worker`, `@dynamo_worker()` or `@dynamo_worker(static=False)`. A `static` worker uses
    no discovery, so only its own process reaches it.
    """
    if enable_nats is not None:
        warnings.warn("enable_nats has no effect; choose the planes", DeprecationWarning, stacklevel=2)

    def decorate(function: WorkerFunction) -> WorkerFunction:
        @functools.wraps(function)
        async def worker(*args: Any, **kwargs: Any) -> Any:
            configure_dynamo_logging()
            backend = "memory" if static else None
            runtime = await start_or_exit(lambda: DistributedRuntime(discovery_backend=backend))
            return await run_until_signalled(runtime, function(runtime, *args, **kwargs), only_serves=True)

        return worker

    return decorate(function) if function else decorate


def dynamo_endpoint(
    request_model: type[Any], response_model: type[Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Parse each request into `request_model` (pydantic, msgspec, dataclass, plain type) before the handler sees it."""
    del response_model  # only documents what the handler yields

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(handler).parameters)
        is_method = bool(parameters) and parameters[0] == "self"

        @functools.wraps(handler)
        async def endpoint(*args: Any, context: Any = None) -> AsyncIterator[Any]:
            *before, request = args[: 1 + is_method]
            extra = {"context": context} if context is not None and takes_context(handler) else {}
            async for item in handler(*before, parse(request_model, request), *args[1 + is_method :], **extra):
                yield plain(item)

        # The wrapper always accepts a context, even if the handler does not.
        endpoint.__signature__ = inspect.signature(endpoint, follow_wrapped=False)  # type: ignore[attr-defined]
        return endpoint

    return decorate


def parse(model: type[Any], value: Any) -> Any:
    """The request as `model`; raises InvalidArgument if it does not fit."""
    try:
        return _parse(model, value)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(str(error)) from error


def _parse(model: type[Any], value: Any) -> Any:
    if hasattr(model, "model_validate"):
        return model.model_validate_json(value) if isinstance(value, str | bytes) else model.model_validate(value)
    if isinstance(value, str | bytes) and model not in (str, bytes):
        return msgspec.json.decode(value, type=model)
    return msgspec.convert(value, model)


def plain(item: Any) -> Any:
    return item.model_dump() if hasattr(item, "model_dump") else item

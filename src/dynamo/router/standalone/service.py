"""The router as a service: three endpoints of the component `router` in the workers' namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import Cancelled, CannotConnect, InvalidArgument, Unavailable, from_exception
from dynamo.router.standalone.standalone import StandaloneRouter, prompt
from dynamo.runtime import Context, DistributedRuntime, Endpoint, EndpointId
from dynamo.runtime.plane.route import log_failure
from dynamo.runtime.stream import Outlet

COMPONENT = "router"


class PromptQuery(Struct, kw_only=True):
    """A prompt to choose a worker for, or to look up in the caches."""

    token_ids: list[int]
    router_config_override: dict[str, Any] | None = None
    cache_namespace: str | None = None
    lora_name: str | None = None


class RoutedRequest(PreprocessedRequest, kw_only=True):
    """A request to forward, with its own cost settings."""

    router_config_override: dict[str, Any] | None = None

    def plain(self) -> PreprocessedRequest:
        return PreprocessedRequest(**{name: getattr(self, name) for name in PreprocessedRequest.__struct_fields__})


class Forwarder:
    """The handler of `generate`: one task per request until it is sent, direct calls from then on."""

    def __init__(self, router: StandaloneRouter) -> None:
        self._router = router
        self._sending: set[asyncio.Task[None]] = set()

    def __call__(self, request: RoutedRequest, context: Context, outlet: Outlet) -> None:
        task = asyncio.create_task(self._send(request, context, outlet))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, request: RoutedRequest, context: Context, outlet: Outlet) -> None:
        sending = asyncio.current_task()
        assert sending
        forget = context.on_stop(lambda _: sending.cancel())
        try:
            if context.is_stopped():
                raise asyncio.CancelledError
            override = self._router.override(request.router_config_override)
            await self._router.send(request.plain(), context, outlet, override)
        except asyncio.CancelledError:
            outlet.fail(Cancelled("request was cancelled"))
        except CannotConnect as error:
            # The instance the request names is unreachable. Forwarded as it is, the error would speak of this router.
            outlet.fail(Unavailable(error.message))
        except Exception as error:
            log_failure(context, error)
            outlet.fail(from_exception(error))
        finally:
            forget()

    async def close(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)


async def serve_router(
    runtime: DistributedRuntime, namespace: str, router: StandaloneRouter, on_found: Callable[[], None] | None = None
) -> None:
    """Serve until the runtime shuts down. `on_found` is called when `generate` is registered."""

    async def best_worker_id(request: Any) -> AsyncIterator[int]:
        query = read_query(request)
        choice = router.core.peek(prompt_of(query), router.override(query.router_config_override))
        yield choice.worker.worker_id

    async def get_overlap_scores(request: Any) -> AsyncIterator[dict[str, Any]]:
        yield router.overlap_scores(prompt_of(read_query(request)))

    def endpoint(name: str) -> Endpoint:
        return Endpoint(runtime, EndpointId(namespace, COMPONENT, name))

    if runtime.status:
        runtime.status.add_families(router.families)
    forwarder = Forwarder(router)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(endpoint("best_worker_id").serve_endpoint(best_worker_id))
            group.create_task(endpoint("get_overlap_scores").serve_endpoint(get_overlap_scores))
            group.create_task(endpoint("generate").serve(forwarder, RoutedRequest, on_found=on_found))
    finally:
        await forwarder.close()


def read_query(request: Any) -> PromptQuery:
    """An object, or the token ids alone."""
    fields = {"token_ids": request} if isinstance(request, list) else request
    try:
        return msgspec.convert(fields, PromptQuery)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"request: {error}") from None


def prompt_of(query: PromptQuery) -> PreprocessedRequest:
    return prompt(query.token_ids, lora_name=query.lora_name, cache_salt=query.cache_namespace)

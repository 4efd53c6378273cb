"""The router as a service: three endpoints of a component `router` beside the workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import Cancelled, InvalidArgument, from_exception
from dynamo.router.standalone import StandaloneRouter, prompt
from dynamo.runtime import Context, DistributedRuntime, Endpoint, EndpointId
from dynamo.runtime.plane.route import log_failure
from dynamo.runtime.stream import Outlet

COMPONENT = "router"


class Question(Struct, kw_only=True):
    """A prompt that somebody asks about."""

    token_ids: list[int]
    router_config_override: dict[str, Any] | None = None
    cache_namespace: str | None = None
    lora_name: str | None = None


class Asked(PreprocessedRequest, kw_only=True):
    """A request to be sent on, and how to choose for it."""

    router_config_override: dict[str, Any] | None = None

    def plain(self) -> PreprocessedRequest:
        return PreprocessedRequest(**{name: getattr(self, name) for name in PreprocessedRequest.__struct_fields__})


class Forwarder:
    """The handler of `generate`: one task per request until it is placed, and direct calls from there on."""

    def __init__(self, router: StandaloneRouter) -> None:
        self._router = router
        self._placing: set[asyncio.Task[None]] = set()

    def __call__(self, request: Asked, context: Context, outlet: Outlet) -> None:
        task = asyncio.create_task(self._place(request, context, outlet))
        self._placing.add(task)
        task.add_done_callback(self._placing.discard)

    async def _place(self, request: Asked, context: Context, outlet: Outlet) -> None:
        sending = asyncio.current_task()
        assert sending
        forget = context.on_stop(lambda _: _cancel(sending))
        try:
            if context.is_stopped():
                raise asyncio.CancelledError
            override = self._router.override(request.router_config_override)
            await self._router.send(request.plain(), context, outlet, override)
        except asyncio.CancelledError:
            outlet.fail(Cancelled("request was cancelled"))
        except Exception as error:
            log_failure(context, error)
            outlet.fail(from_exception(error))
        finally:
            forget()

    async def close(self) -> None:
        for task in self._placing:
            task.cancel()
        await asyncio.gather(*self._placing, return_exceptions=True)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


async def serve_router(
    runtime: DistributedRuntime, namespace: str, router: StandaloneRouter, on_found: Callable[[], None] | None = None
) -> None:
    """Serve until the runtime shuts down. `on_found` is called when `generate` can be found."""

    async def best_worker_id(request: Any) -> AsyncIterator[int]:
        question = read_question(request)
        choice = router.peek(prompt_of(question), router.override(question.router_config_override))
        yield choice.worker.worker_id

    async def get_overlap_scores(request: Any) -> AsyncIterator[dict[str, Any]]:
        yield router.overlap_scores(prompt_of(read_question(request)))

    def place(name: str) -> Endpoint:
        return Endpoint(runtime, EndpointId(namespace, COMPONENT, name))

    forwarder = Forwarder(router)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(place("best_worker_id").serve_endpoint(best_worker_id))
            group.create_task(place("get_overlap_scores").serve_endpoint(get_overlap_scores))
            group.create_task(place("generate").serve(forwarder, Asked, on_found=on_found))
    finally:
        await forwarder.close()


def read_question(request: Any) -> Question:
    """An object, or the token ids alone."""
    told = {"token_ids": request} if isinstance(request, list) else request
    try:
        return msgspec.convert(told, Question)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"request: {error}") from None


def prompt_of(question: Question) -> PreprocessedRequest:
    return prompt(question.token_ids, lora_name=question.lora_name, cache_salt=question.cache_namespace)

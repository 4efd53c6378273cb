"""Engines that repeat their input, one token or character at a time."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, to_builtins

from dynamo.engines.base import EngineInfo, Running
from dynamo.engines.registry import EngineSpec, reject_arguments
from dynamo.engines.request_options import reject_options
from dynamo.protocols.card import ModelInput
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Usage
from dynamo.protocols.errors import Cancelled, DynamoException, EngineShutdown, InvalidArgument
from dynamo.runtime.stream import Sink
from dynamo.settings import Setting, Settings

_LACKS = ("use_beam_search", "best_of", "guided_decoding", "logprobs", "prompt_logprobs", "a LoRA adapter")


class EchoSettings(Settings, frozen=True, kw_only=True):
    delay_ms: Annotated[
        float,
        Meta(ge=0, lt=1e9),
        Setting(variables="DYN_TOKEN_ECHO_DELAY_MS", help="milliseconds between two tokens of the echo engines"),
    ] = 10.0


def echo_core(spec: EngineSpec) -> EchoCore:
    reject_arguments("echo_core", spec)
    return EchoCore(EchoSettings.from_env(spec.environ).delay_ms / 1000)


def echo_full(spec: EngineSpec) -> EchoFull:
    reject_arguments("echo_full", spec)
    return EchoFull(EchoSettings.from_env(spec.environ).delay_ms / 1000)


class Metronome:
    """One step for all running requests every `delay` seconds, like an engine that batches."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._running: dict[Echoed, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    def add(self, echoed: Echoed) -> None:
        self._running[echoed] = None
        self._begun.set()
        if self._task is None:
            self._task = asyncio.create_task(self._tick())

    def quiet(self) -> bool:
        return not self._running

    def remove(self, echoed: Echoed) -> None:
        self._running.pop(echoed, None)

    async def _tick(self) -> None:
        while True:
            await self._begun.wait()
            while self._running:
                await asyncio.sleep(self._delay)
                for echoed in tuple(self._running):
                    echoed.step()
            self._begun.clear()

    async def close(self) -> None:
        for echoed in tuple(self._running):
            echoed.fail(EngineShutdown("engine shutting down"))
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Echoed(Running):
    """One running request: a list of steps, then the end."""

    def __init__(self, metronome: Metronome, sink: Sink, steps: list[Callable[[Sink], None]]) -> None:
        self._metronome = metronome
        self._sink = sink
        self._steps = iter(steps)
        self._done = False
        metronome.add(self)

    def step(self) -> None:
        if self._done:
            return
        step = next(self._steps, None)
        if step is not None:
            step(self._sink)
        else:
            self._finish()
            self._sink.end()

    def abort(self) -> None:
        self.fail(Cancelled("request was cancelled"))

    def fail(self, error: DynamoException) -> None:
        if not self._done:
            self._finish()
            self._sink.fail(error)

    def _finish(self) -> None:
        self._done = True
        self._metronome.remove(self)


class _NeverStarted(Running):
    def abort(self) -> None:
        """There is nothing to free."""


_NEVER_STARTED = _NeverStarted()


class EchoCore:
    """Tokens in, the same tokens out: shows the prompt after chat template and tokenizer."""

    model_input = ModelInput.Tokens

    def __init__(self, delay: float) -> None:
        self._metronome = Metronome(delay)

    async def start(self) -> EngineInfo:
        return EngineInfo(guided_decoding=False)

    def generate(self, request: PreprocessedRequest, sink: Sink) -> Running:
        try:
            reject_options("echo_core", request, *_LACKS)
        except InvalidArgument as error:
            sink.fail(error)
            return _NEVER_STARTED
        prompt = request.token_ids
        limit = request.stop_conditions.max_tokens
        echoed = prompt if limit is None else prompt[:limit]
        steps: list[Callable[[Sink], None]] = [lambda sink, id=id: sink.tokens([id]) for id in echoed]  # type: ignore[misc]
        last = EngineOutput(
            finish_reason="stop" if len(echoed) == len(prompt) else "length",
            completion_usage=Usage(
                prompt_tokens=len(prompt), completion_tokens=len(echoed), total_tokens=len(prompt) + len(echoed)
            ),
        )
        steps.append(lambda sink: sink.item(last))
        return Echoed(self._metronome, sink, steps)

    def quiet(self) -> bool:
        return self._metronome.quiet()

    async def close(self) -> None:
        await self._metronome.close()


class EchoFull:
    """The OpenAI request in, its last user message (or its prompt) out, a character at a time."""

    model_input = ModelInput.Text

    def __init__(self, delay: float) -> None:
        self._metronome = Metronome(delay)

    async def start(self) -> EngineInfo:
        return EngineInfo(guided_decoding=False)

    def generate(self, request: dict[str, Any], sink: Sink) -> Running:
        chat = "messages" in request
        text = last_user_text(request["messages"]) if chat else prompt_text(request.get("prompt"))
        head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4()}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": request.get("model", ""),
        }

        def chunk(content: str | None, finish: str | None) -> dict[str, Any]:
            if chat:
                delta = {} if content is None else {"role": "assistant", "content": content}
                return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
            return {**head, "choices": [{"index": 0, "text": content or "", "finish_reason": finish}]}

        limit = request.get("max_completion_tokens") or request.get("max_tokens") or len(text)
        steps: list[Callable[[Sink], None]] = [
            lambda sink, c=character: sink.item(chunk(c, None))  # type: ignore[misc]
            for character in text[:limit]
        ]
        end = chunk(None, "stop" if limit >= len(text) else "length")
        # A character is this engine's token.
        counts = Usage(prompt_tokens=len(text), completion_tokens=min(limit, len(text)))
        end["usage"] = to_builtins(counts.consistent())
        steps.append(lambda sink: sink.item(end))
        return Echoed(self._metronome, sink, steps)

    def quiet(self) -> bool:
        return self._metronome.quiet()

    async def close(self) -> None:
        await self._metronome.close()


def last_user_text(messages: Any) -> str:
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "user":
        raise InvalidArgument("the echo engine answers a user message: the last message must be one")
    content = last.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise InvalidArgument("the echo engine can only repeat text")
    return content


def prompt_text(prompt: Any) -> str:
    match prompt:
        case str():
            return prompt
        case [str(), *_]:
            return " ".join(map(str, prompt))
        case [int(), *_]:
            return " ".join(map(str, prompt))
        case [[*_], *_]:
            return " | ".join(" ".join(map(str, ids)) for ids in prompt)
    raise InvalidArgument("the echo engine needs a prompt")

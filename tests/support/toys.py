"""A live frontend in this process, and engines that answer from a script."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import structs

import dynamo.model
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.server import Server
from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType
from dynamo.llm.register import register_card
from dynamo.model import HubConfig, Tokenizer, build_card, resolve
from dynamo.protocols.card import ModelCard
from dynamo.runtime import Context, DistributedRuntime, Local, RuntimeConfig
from support.models import write
from support.waiting import until

OFFLINE = HubConfig.from_env({"HF_HUB_OFFLINE": "1"})
BOTH = ModelType.Chat | ModelType.Completions
EOS = "<|im_end|>"

Handler = Callable[..., AsyncIterator[Any]]


def toy_folder(folder: Path) -> Path:
    """The bundled vocabulary and template, as a model of 2048 tokens of context."""
    folder.mkdir(parents=True, exist_ok=True)
    bundled = Path(dynamo.model.__file__).parent / "tiny"
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(bundled / name, folder / name)
    eos = toy_tokenizer().id_of(EOS)
    write(folder / "config.json", {"model_type": "llama", "max_position_embeddings": 2048, "eos_token_id": eos})
    return folder


@cache
def toy_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(Path(dynamo.model.__file__).parent / "tiny" / "tokenizer.json")


def toy_card(folder: Path, name: str = "toy", model_type: ModelType = BOTH, **runtime: Any) -> ModelCard:
    model = resolve(str(folder), config=OFFLINE)
    return build_card(model, name=name, model_type=model_type, runtime_config=ModelRuntimeConfig(**runtime))


def text_card(name: str, model_type: ModelType = BOTH, **runtime: Any) -> ModelCard:
    config = ModelRuntimeConfig(**runtime)
    return ModelCard(name=name, model_type=model_type.value, model_input=ModelInput.Text, runtime_config=config)


class Scripted:
    """A token engine: what it says is looked up by what stands in the prompt, or the prompt's last line again.

    It gives probabilities when asked, counts down from -0.5 with each token, and knows two alternatives of each.
    """

    def __init__(self, answers: dict[str, str] | None = None) -> None:
        self.answers = answers or {}
        self.requests: list[dict[str, Any]] = []
        self.tokenizer = toy_tokenizer()

    def answer(self, prompt: str, request: dict[str, Any]) -> str:
        guided = request["sampling_options"]["guided_decoding"]
        for key, answer in self.answers.items():
            if key in prompt and ("guided" in key) == (guided is not None):
                return answer
        seed = request["sampling_options"]["seed"]
        return "seen: " + prompt[-40:].replace("\n", " ") if seed is None else f"seed {seed}"

    async def generate(self, request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        self.requests.append(request)
        prompt = self.tokenizer.decode(request["token_ids"])
        ids = self.tokenizer.encode(self.answer(prompt, request))
        limit = request["stop_conditions"]["max_tokens"] or 10_000
        wanted = request["output_options"]["logprobs"]
        if request["output_options"]["prompt_logprobs"]:
            told = [None, *([self._top(id, -1.0)] for id in request["token_ids"][1:])]
            yield {"token_ids": [], "prompt_logprobs": told}
        eos = self.tokenizer.id_of(EOS)
        assert eos is not None
        ids.append(eos)
        for number, id in enumerate(ids[:limit]):
            if context.is_stopped():
                return
            step: dict[str, Any] = {"token_ids": [id]}
            if wanted:
                tops = [self._top(id, -0.5 - number), self._top(id + 1, -3.0 - number), self._top(id + 2, -math.inf)]
                step |= {"log_probs": [-0.5 - number], "top_logprobs": [tops]}
            yield step
            await asyncio.sleep(0)
        usage = {"prompt_tokens": len(request["token_ids"]), "prompt_tokens_details": {"cached_tokens": 3}}
        yield {
            "token_ids": [],
            "finish_reason": "length" if len(ids) > limit else "eos",
            "completion_usage": usage,
        }

    def _top(self, id: int, logprob: float) -> dict[str, Any]:
        return {"token_id": id, "logprob": logprob}


async def embed_tokens(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """As many numbers as asked for, else four; the first is how many tokens there were."""
    size = request["dimensions"] or 4
    yield {"embedding": [float(len(request["token_ids"])), *(0.25 * n for n in range(1, size))]}


async def embed_text(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    inputs = request["input"] if isinstance(request["input"], list) else [request["input"]]
    data = [{"index": n, "object": "embedding", "embedding": [float(len(each)), 0.5]} for n, each in enumerate(inputs)]
    yield {"object": "list", "data": data, "model": request["model"], "usage": {"prompt_tokens": 7, "total_tokens": 7}}


async def chat_text(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """A text engine: says its last message back, in two chunks, or calls the first tool there is."""
    head = {"id": "chatcmpl-text", "object": "chat.completion.chunk", "created": 1, "model": request["model"]}
    text = request["messages"][-1]["content"]
    text = text if isinstance(text, str) else "".join(part["text"] for part in text)

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    if request.get("tools"):
        name = request["tools"][0]["function"]["name"]
        call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}
        yield chunk({"role": "assistant", "tool_calls": [call]})
        yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Lyon"}'}}]})
        yield chunk({}, "tool_calls")
    else:
        yield chunk({"role": "assistant", "reasoning_content": "hm", "content": text[:3]})
        yield chunk({"content": text[3:]})
        yield chunk({}, "stop")
    yield {**head, "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}


def samples(exposition: str) -> dict[str, float]:
    """Every sample by its name and labels, as Prometheus writes them."""
    lines = [line.rpartition(" ") for line in exposition.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def metrics_once(
    metrics: Callable[[], Awaitable[dict[str, float]]], holds: Callable[[dict[str, float]], bool]
) -> dict[str, float]:
    """The first metrics of which `holds` is true."""

    async def matching() -> dict[str, float] | None:
        seen = await metrics()
        return seen if holds(seen) else None

    return await until(matching)


class Live:
    """A frontend on a free port, with workers in the same process."""

    def __init__(self, **config: Any) -> None:
        self.local = Local()
        self._config = FrontendConfig(port=0, graceful_shutdown_timeout=1.0, **config)
        self._stack = AsyncExitStack()
        self.url = ""
        self.server: Server
        self.http: aiohttp.ClientSession

    async def __aenter__(self) -> Live:
        runtime = await self._stack.enter_async_context(self._runtime())
        self.server = Server(runtime, self._config, OFFLINE)
        await self.server.start()
        self._stack.push_async_callback(self.server.stop)
        self.url = self.server.url
        self.http = await self._stack.enter_async_context(aiohttp.ClientSession(self.url))
        return self

    async def get(self, path: str, **headers: str) -> Any:
        async with self.http.get(path, headers=headers) as answer:
            return await answer.json()

    async def metrics(self) -> dict[str, float]:
        async with self.http.get("/metrics") as answer:
            assert answer.status == 200
            return samples(await answer.text())

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        async with self.http.post(path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def events(self, path: str, body: Any, **headers: str) -> str:
        """The whole of a stream, as it came."""
        async with self.http.post(path, json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            return await answer.text()

    async def __aexit__(self, *_: Any) -> None:
        await self._stack.aclose()

    def _runtime(self) -> DistributedRuntime:
        config = structs.replace(RuntimeConfig.in_process({}), graceful_shutdown_timeout=1.0)
        return DistributedRuntime(config=config, local=self.local)

    async def serve(
        self, handler: Handler, card: ModelCard | None, endpoint: str = "toy.backend.generate", **others: Handler
    ) -> DistributedRuntime:
        """One worker; `others` are further endpoints of its component. Returns when the frontend serves its model."""
        runtime = await self._stack.enter_async_context(self._runtime())
        place = runtime.endpoint(endpoint)
        if card:
            await register_card(place, card)
        tasks = [asyncio.create_task(place.serve_endpoint(handler))]
        path = endpoint.rpartition(".")[0]
        tasks += [
            asyncio.create_task(runtime.endpoint(f"{path}.{name}").serve_endpoint(other))
            for name, other in others.items()
        ]

        async def leave() -> None:
            runtime.shutdown()
            await asyncio.gather(*tasks)

        self._stack.push_async_callback(leave)
        if card:
            await self._until_served(card.name)
        return runtime

    async def _until_served(self, name: str) -> None:
        async def served() -> bool:
            keys = self._config.api_keys
            found = await self.get("/v1/models", **({"Authorization": f"Bearer {keys[0]}"} if keys else {}))
            return name in {model["id"] for model in found["data"]}

        await until(served)

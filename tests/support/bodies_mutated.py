"""Bodies that are nearly right, and whether the answer to one is an answer at all."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from dynamo.api.anthropic.request import CountTokensRequest, MessagesRequest
from dynamo.api.responses.request import ResponsesRequest
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from support.request_bodies import BODIES

PATHS: dict[str, Any] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
}
WORDS = sorted({key for body in BODIES.values() for key in body} | {"type", "role", "content", "text", "$ref", "x"})
SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 2, 2**31, 2**63, 2**64, -(2**80), 0.5, -0.0, 1e308, 1e-320, "", "x", "\0", "\ud800",
    "\U0001f389", "a" * 5000, [], {}, [[]], [None], {"a": {"a": {"a": 1}}}, "none", "auto", "required", "toy",
]  # fmt: skip


def valid_body(path: str) -> dict[str, Any]:
    """A body this server answers: no pin to a worker that is not there, and no pictures."""
    body: dict[str, Any] = copy.deepcopy(BODIES[PATHS[path]])
    body["model"] = "embed" if path == "/v1/embeddings" else "toy"
    if "nvext" in body:
        body["nvext"].pop("backend_instance_id", None)
    for message in body.get("messages", ()):
        if isinstance(message["content"], list):
            message["content"] = [part for part in message["content"] if not _shows_image(part)]
    return body


def _shows_image(part: dict[str, Any]) -> bool:
    content = part.get("content")
    return part["type"] == "image" or (isinstance(content, list) and any(map(_shows_image, content)))


def mutated_body(rng: random.Random, path: str) -> bytes:
    body = valid_body(path)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        spots = places(body)
        if not spots:
            break
        container, key = rng.choice(spots)
        match rng.choice(("replace", "replace", "remove", "add", "swap")):
            case "replace":
                container[key] = junk(rng)
            case "remove":
                del container[key]
            case "swap":
                other, there = rng.choice(spots)
                container[key], other[there] = copy.deepcopy(other[there]), copy.deepcopy(container[key])
            case "add" if isinstance(container, dict):
                container[rng.choice(WORDS)] = junk(rng)
            case "add":
                container.append(junk(rng))
    data = json.dumps(body).encode()
    if rng.random() < 0.15:
        return broken(rng, data)
    return data


def broken(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + rng.randbytes(rng.randrange(1, 4)) + data[at:]
        case 2:
            return b"[" * 3000 + data
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def junk(rng: random.Random, depth: int = 2) -> Any:
    if depth and rng.random() < 0.3:
        if rng.random() < 0.5:
            return [junk(rng, depth - 1) for _ in range(rng.randrange(3))]
        return {rng.choice(WORDS): junk(rng, depth - 1) for _ in range(rng.randrange(3))}
    return copy.deepcopy(rng.choice(SCALARS)) if rng.random() < 0.7 else rng.choice(WORDS)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below this value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, child in items:
        found.append((value, key))
        found += places(child)
    return found


def allowed(path: str, status: int, text: str) -> bool:
    """An answer, a stream that ends well, or a refusal in the shape of the path's API that names what is wrong."""
    if status == 200 and text.startswith(("data: ", "event: ")):
        return '"error":{' not in text
    try:
        answer = json.loads(text)
    except ValueError:
        return False
    if status == 200:
        return isinstance(answer, dict)
    told = answer.get("error")
    if status not in (400, 404) or not isinstance(told, dict) or not told.get("message"):
        return False
    return not path.startswith("/v1/messages") or answer.get("type") == "error"

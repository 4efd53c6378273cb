"""Mutated bodies through every stage between the socket and an engine."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo.api.anthropic.request import PromptFields
from dynamo.api.anthropic.to_chat import anthropic_to_chat
from dynamo.api.responses.answers import ResponseObject
from dynamo.api.responses.request import ResponsesRequest
from dynamo.api.responses.to_chat import responses_to_chat
from dynamo.pipeline.options import ModelDefaults, engine_request, template_arguments
from dynamo.pipeline.validate import validate_chat, validate_completion, validate_embedding
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.protocols.errors import InvalidRequest
from dynamo.runtime.plane.frames import encode_request
from support.bodies_mutated import places
from support.request_bodies import BODIES

DECODERS = {kind: BodyDecoder(kind) for kind in BODIES}
MODEL = ModelDefaults(eos_token_ids=(2,), context_length=4096)
WORDS = sorted({key for body in BODIES.values() for key in body} | {"type", "role", "content", "text", "$ref", "x"})
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(WORDS)
)
junk = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS) | st.text("ab", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


def served(request: Any) -> None:
    """Everything a frontend does with a request before it calls an engine."""
    match request:
        case EmbeddingRequest():
            validate_embedding(request)
            return
        case ResponsesRequest():
            msgspec.json.encode(ResponseObject.in_progress(request, "resp_1", "m", 1))
            request = responses_to_chat(request)
        case PromptFields():
            request = anthropic_to_chat(request)
    if isinstance(request, CompletionRequest):
        validate_completion(request)
    else:
        validate_chat(request)
        msgspec.json.encode([request.messages, template_arguments(request)])
    encode_request(engine_request(request, [1, 2, 3], MODEL))


@st.composite
def mutated(draw: st.DrawFn, kind: type[Any]) -> bytes:
    body = copy.deepcopy(BODIES[kind])
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(places(body)))
        match draw(st.sampled_from(["replace", "remove", "add", "drop-all"])):
            case "replace":
                container[key] = draw(junk)
            case "remove":
                del container[key]
            case "add" if isinstance(container, dict):
                container[draw(st.sampled_from(WORDS))] = draw(junk)
            case "add":
                container.append(draw(junk))
            case "drop-all":
                container.clear()
        if not places(body):
            break
    encoded = bytearray(msgspec.json.encode(encodable(body)))
    if draw(st.integers(0, 3)) == 0:
        for _ in range(draw(st.integers(1, 3))):
            encoded[draw(st.integers(0, len(encoded) - 1))] = draw(st.integers(0, 255))
    return bytes(encoded)


def encodable(value: Any) -> Any:
    """Integers beyond 64 bits, written as a client could write them."""
    if isinstance(value, dict):
        return {key: encodable(child) for key, child in value.items()}
    if isinstance(value, list):
        return [encodable(child) for child in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return msgspec.Raw(str(value).encode())
    return value


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_the_body_before_mutation_is_valid(kind: type[Any]) -> None:
    served(DECODERS[kind].decode(msgspec.json.encode(BODIES[kind])))


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("ignore_unknown", [False, True], ids=["strict", "lenient"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_mutated_body_is_accepted_or_rejected_and_never_fails_otherwise(
    kind: type[Any], ignore_unknown: bool, data: st.DataObject
) -> None:
    body = data.draw(mutated(kind))
    try:
        served(DECODERS[kind].decode(body, [] if ignore_unknown else None))
    except InvalidRequest as error:
        refusal = error
    else:
        return
    assert refusal.message
    assert refusal.code


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=40))
def test_any_bytes_are_rejected_as_a_bad_request(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        DECODERS[EmbeddingRequest].decode(body)

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.frontend.openapi import document
from dynamo.frontend.routes.table import routes
from support.request_bodies import BODIES

DOCUMENT = document(routes())


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        found = [child for key, child in value.items() if key == "$ref" and isinstance(child, str)]
        return found + [each for child in value.values() for each in references(child)]
    if isinstance(value, list):
        return [each for child in value for each in references(child)]
    return []


def test_the_document_is_json_and_every_reference_in_it_leads_somewhere() -> None:
    again = msgspec.json.decode(msgspec.json.encode(DOCUMENT))
    found = references(again)
    assert found
    for reference in found:
        assert reference.removeprefix("#/components/schemas/") in again["components"]["schemas"]


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_every_field_of_a_request_is_documented_and_no_other_is_allowed(kind: type[Any]) -> None:
    schema = DOCUMENT["components"]["schemas"][kind.__name__]
    assert set(schema["properties"]) == set(kind.__struct_fields__)
    assert schema["additionalProperties"] is False


def test_ranges_are_documented() -> None:
    temperature = DOCUMENT["components"]["schemas"]["ChatRequest"]["properties"]["temperature"]
    assert {"type": "number", "minimum": 0, "maximum": 2} in temperature["anyOf"]


def test_a_route_says_what_it_takes_and_gives() -> None:
    chat = DOCUMENT["paths"]["/v1/chat/completions"]["post"]
    reference = "#/components/schemas/ChatRequest"
    assert chat["requestBody"]["content"]["application/json"]["schema"] == {"$ref": reference}
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert {"200", "400", "404", "503"} <= set(chat["responses"])
    (parameter,) = DOCUMENT["paths"]["/v1/models/{id}"]["get"]["parameters"]
    assert (parameter["name"], parameter["in"]) == ("id", "path")


def test_routes_of_one_path_stand_together() -> None:
    assert set(DOCUMENT["paths"]["/busy_threshold"]) == {"get", "post"}


def test_routes_without_a_summary_are_left_out() -> None:
    assert "/metrics" in {route.path for route in routes()}
    assert "/metrics" not in DOCUMENT["paths"]

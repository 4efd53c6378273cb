"""The OpenAPI document, built from the route table and the structs that decode the requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from dynamo import __version__
from dynamo.api.route import AnyRoute

TITLE = "Dynamo"
_REASONS = {
    400: "The request is wrong; the message names the field.",
    401: "The API key is missing or wrong.",
    403: "The key is not an administrator's.",
    404: "There is no such model.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "The key is over one of its limits; try again later.",
    500: "The engine failed.",
    502: "The worker was lost and no other could take over.",
    503: "No worker is free or ready; try again later.",
    504: "A worker did not answer in time.",
}


def document(routes: Sequence[AnyRoute]) -> dict[str, Any]:
    """An OpenAPI 3.1 document of the routes that have a summary."""
    routes = [route for route in routes if route.summary is not None]
    kinds = dict.fromkeys(
        kind for route in routes for kind in (route.body, route.answer, route.dialect.error) if kind is not None
    )
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = re.sub(r"{(\w+):[^}]*}", r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: AnyRoute, path: str, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema_of.get(route.answer, {"type": "object"})}}
    if route.streams:
        content[route.stream_type] = {}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    for status in route.statuses:
        error = {"application/json": {"schema": schema_of[route.dialect.error]}}
        responses[str(status)] = {"description": _REASONS.get(status, "An error."), "content": error}
    operation: dict[str, Any] = {"summary": route.summary, "responses": responses}
    if names := re.findall(r"{(\w+)}", path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if route.body is not None:
        body = {"application/json": {"schema": schema_of[route.body]}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation

"""The state of the fleet as a JSON document without nulls, and its changes as merge patches (RFC 7396)."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]


def merge_patch(before: Document, after: Document) -> Document:
    """What turns `before` into `after`: null removes a field, an object is merged, all else replaces. Empty: equal."""
    patch: Document = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if old == value:
            continue
        patch[name] = merge_patch(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return patch


def apply_merge_patch(document: Document, patch: Document) -> None:
    """Change `document` in place."""
    for name, value in patch.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, dict):
            known = document.get(name)
            if not isinstance(known, dict):
                known = document[name] = {}
            apply_merge_patch(known, value)
        else:
            document[name] = value

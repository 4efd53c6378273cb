"""The namespace of a worker."""

from __future__ import annotations

import os


def get_worker_namespace(namespace: str | None = None) -> str:
    """The given one or else that of DYN_NAMESPACE, with DYN_NAMESPACE_WORKER_SUFFIX after a hyphen if that is set."""
    name = namespace or os.environ.get("DYN_NAMESPACE") or "dynamo"
    suffix = os.environ.get("DYN_NAMESPACE_WORKER_SUFFIX")
    return f"{name}-{suffix}" if suffix else name

"""The roles of SGLang workers, as SGLang names them: both get a request at once and meet by `bootstrap_info`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamo.process.addresses import own_address
from dynamo.protocols.card import WorkerType
from dynamo.protocols.engine import BootstrapInfo

FAKE_HOST = "2.2.2.2"
"""With this host SGLang transfers nothing: what its own health checks send."""
ROLES = {"null": WorkerType.Aggregated, "prefill": WorkerType.Prefill, "decode": WorkerType.Decode}


def bootstrap_arguments(info: BootstrapInfo | None) -> dict[str, Any]:
    """The arguments of `async_generate`."""
    if info is None:
        return {}
    return {
        "bootstrap_host": info.bootstrap_host,
        "bootstrap_port": info.bootstrap_port,
        "bootstrap_room": info.bootstrap_room,
    }


def bootstrap_host(environ: Mapping[str, str]) -> str:
    """Where decode engines find the bootstrap server of a prefill engine, which is bound to all addresses."""
    host = environ.get("DYN_TCP_RPC_HOST", "0.0.0.0")
    return own_address() if host in ("0.0.0.0", "::") else host


def health_check(role: WorkerType) -> dict[str, Any]:
    request: dict[str, Any] = {
        "token_ids": [1],
        "sampling_options": {"temperature": 0.0},
        "stop_conditions": {"max_tokens": 1, "ignore_eos": True},
    }
    if role is not WorkerType.Aggregated:
        request["bootstrap_info"] = {"bootstrap_host": FAKE_HOST, "bootstrap_port": 0, "bootstrap_room": 0}
    return request


def transfer_form(resolved: Mapping[str, Any]) -> str:
    """What must be equal on both sides."""
    return f"SGLang by {resolved['disaggregation_transfer_backend']}, KV in {resolved['kv_cache_dtype']}"

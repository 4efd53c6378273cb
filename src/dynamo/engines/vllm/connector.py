"""The connectors of vLLM: with `--disaggregation-mode` one moves computed prompts, and says where others find it; with
`--kv-offload-gb N` one keeps the KV blocks that leave the GPU in host memory."""

from __future__ import annotations

import importlib.util
import random
import socket
from argparse import ArgumentParser
from collections.abc import MutableMapping
from typing import Any, Literal

from vllm.config import KVTransferConfig

from dynamo.engines.base import EngineError
from dynamo.engines.vllm.handoff import connectors
from dynamo.process.addresses import own_address
from dynamo.protocols.card import WorkerType

Mode = Literal["agg", "prefill", "decode"]
NIXL = "NixlConnector"
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_HOST, _PORT = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"
_PORTS = range(20_000, 32_000)
"""Below those that the system gives to connections: vLLM binds its port minutes after it is chosen."""
_GB = 10**9


def add_mode(parser: ArgumentParser) -> None:
    """ai-dynamo's flag, and its older spellings."""
    parser.add_argument("--disaggregation-mode", choices=["agg", "prefill", "decode"], default="agg")
    for mode in _ROLES:
        parser.add_argument(
            f"--is-{mode}-worker", dest="disaggregation_mode", action="store_const", const=mode, default="agg"
        )


def worker_type(mode: Mode) -> WorkerType:
    return WorkerType.Aggregated if mode == "agg" else WorkerType(mode)


def transferring(mode: Mode, *, cpu: bool, configured: Any = None) -> KVTransferConfig:
    """The connector's configuration; `configured` is the user's own. Raises EngineError where it cannot work."""
    config = configured
    if config is None:
        device = {"kv_buffer_device": "cpu"} if cpu else {}
        config = KVTransferConfig(kv_connector=NIXL, kv_role=_ROLES[mode], **device)
    fits = config.is_kv_producer if mode == "prefill" else config.is_kv_consumer
    if not fits:
        raise EngineError(
            f"--disaggregation-mode {mode} needs the kv_role {_ROLES[mode]} or kv_both in --kv-transfer-config, "
            f"not {config.kv_role}"
        )
    if NIXL in connectors(config) and not any(importlib.util.find_spec(name) for name in ("nixl", "rixl")):
        raise EngineError(
            f"--disaggregation-mode {mode} needs NIXL: pip install --no-deps nixl nixl-cu12 (nixl-cu13 for CUDA 13)"
        )
    if mode == "decode" and hasattr(config, "kv_load_failure_policy"):
        # By default vLLM fails a request whose prompt cannot be fetched.
        config.kv_load_failure_policy = "recompute"
    return config


def announce(environ: MutableMapping[str, str], ranks: int = 1) -> None:
    """Choose where other engines ask this one for its NIXL address, unless the user has; each rank needs a port."""
    host = environ.get("DYN_TCP_RPC_HOST", "0.0.0.0")
    environ.setdefault(_HOST, own_address() if host in ("0.0.0.0", "::") else host)
    if _PORT not in environ:
        environ[_PORT] = str(_free_port(environ[_HOST], ranks))


def _free_port(host: str, count: int) -> int:
    starts = random.sample(_PORTS, 100)
    for first in starts:
        if all(_is_free(host, first + offset) for offset in range(count)):
            return first
    raise EngineError(f"no {count} free ports for NIXL from {_PORTS[0]} on: set {_PORT}")


def _is_free(host: str, port: int) -> bool:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
    except OSError:
        return False
    return True


def offloading(gigabytes: float, *, cpu: bool, configured: Any = None) -> KVTransferConfig:
    """The connector's configuration; `configured` is the user's own. Raises EngineError where it cannot work."""
    if not 0 < gigabytes < 1e6:
        raise EngineError(f"--kv-offload-gb must be a number of gigabytes above 0, not {gigabytes:g}")
    if cpu:
        raise EngineError("--kv-offload-gb needs a GPU: on CPUs vLLM keeps its whole KV cache in host memory already")
    if configured is not None:
        raise EngineError(
            "--kv-offload-gb and vLLM's --kv-transfer-config both choose a connector: give one, or name "
            "OffloadingConnector inside a MultiConnector"
        )
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        # Without the second one its KV events have no tokens, and no router can tell which prompts they are of.
        kv_connector_extra_config={"cpu_bytes_to_use": int(gigabytes * _GB), "self_describing_kv_events": True},
    )

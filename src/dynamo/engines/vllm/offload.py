"""`--kv-offload-gb N`: vLLM's own connector keeps the KV blocks that leave the GPU in host memory."""

from __future__ import annotations

from typing import Any

from vllm.config import KVTransferConfig

from dynamo.engines.base import EngineError

_GB = 10**9


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

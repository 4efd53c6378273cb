"""`--base-gpu-id` for engines that see the GPUs which CUDA_VISIBLE_DEVICES names."""

from __future__ import annotations

from collections.abc import MutableMapping

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def show_gpus(spec: EngineSpec, environ: MutableMapping[str, str]) -> None:
    """Leave the GPUs from the asked one on visible. Raises EngineError if the variable names too few."""
    if not spec.base_gpu_id:
        return
    count = max(1, spec.tensor_parallel_size // spec.num_nodes)
    last = spec.base_gpu_id + count
    given = environ.get(_VARIABLE)
    visible = [str(gpu) for gpu in range(last)] if given is None else [each.strip() for each in given.split(",")]
    chosen = visible[spec.base_gpu_id : last]
    if len(chosen) < count:
        raise EngineError(
            f"--base-gpu-id {spec.base_gpu_id} counts within {_VARIABLE}={given}, which has too few GPUs for {count} "
            "from there on"
        )
    environ[_VARIABLE] = ",".join(chosen)

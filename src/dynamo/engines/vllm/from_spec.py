"""`out=vllm`: vLLM as dynamo-run and `python -m dynamo.vllm` ask for it."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path

from dynamo.engines.base import Engine
from dynamo.engines.registry import EngineSpec
from dynamo.engines.vllm.environment import installed, prepare, unlike_tested
from dynamo.engines.vllm.nodes.orphans import mark

# vLLM is imported only when its environment is set, but if it is missing, that must be known before a model is fetched.
_found = importlib.util.find_spec("vllm")
if _found is None or _found.origin is None:  # a folder of that name is not vLLM
    raise ModuleNotFoundError("No module named 'vllm'", name="vllm")


def vllm_from_spec(spec: EngineSpec) -> Engine:
    """Imports vLLM, which takes seconds, and reads its arguments; raises EngineError for those it does not have."""
    build = installed()
    prepare(os.environ, build, [*spec.arguments, *spec.extra_engine_args])
    mark(os.environ)
    if spec.base_gpu_id:
        gpus = range(spec.base_gpu_id, spec.base_gpu_id + spec.tensor_parallel_size)
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, gpus)))
    try:
        from dynamo.engines.vllm.arguments import engine_arguments
        from dynamo.engines.vllm.connector import announce
        from dynamo.engines.vllm.engine import VllmEngine
        from dynamo.engines.vllm.nodes.follower import VllmFollower
        from dynamo.engines.vllm.steps import announce_steps
    except (ImportError, AttributeError) as error:
        raise unlike_tested(build, error) from error
    sockets = tempfile.TemporaryDirectory(prefix="dynamo-vllm-", ignore_cleanup_errors=True)
    try:
        args = engine_arguments(spec, cpu=build.cpu, sockets=Path(sockets.name))
        announce_steps(os.environ, Path(sockets.name) if spec.steps else None)
        if args.disaggregation_mode != "agg":
            announce(os.environ, args.data_parallel_size)
    except BaseException:
        sockets.cleanup()
        raise
    if spec.node_rank:
        sockets.cleanup()
        return VllmFollower(args)
    return VllmEngine(args, sockets)

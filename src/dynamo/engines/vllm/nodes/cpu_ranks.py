"""How many of vLLM's processes run on each of several nodes without GPUs.

vLLM finds out which processes share a node from the number of devices, and takes all CPUs of a machine for one.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Any

from vllm.platforms import current_platform, interface

_RANKS = "_DYNAMO_VLLM_CPU_RANKS"


def announce_ranks(environ: MutableMapping[str, str], args: Any) -> None:
    """For vLLM's processes, which inherit the environment."""
    if args.nnodes > 1 and current_platform.is_cpu():
        environ[_RANKS] = str(args.tensor_parallel_size * args.pipeline_parallel_size // args.nnodes)


def learn_ranks() -> None:
    """To be called in vLLM's processes. Versions that lack the function run one process per node on CPUs."""
    ranks = os.environ.get(_RANKS)
    if ranks and hasattr(interface, "set_assigned_physical_gpu_ids"):
        interface.set_assigned_physical_gpu_ids(list(range(int(ranks))))

"""The first GPU that is asked for counts within those that are visible."""

from __future__ import annotations

import pytest

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.visible_gpus import show_gpus


@pytest.mark.parametrize(
    ("spec", "before", "after"),
    [
        (EngineSpec(), None, None),
        (EngineSpec(), "3", "3"),
        (EngineSpec(base_gpu_id=2), None, "2"),
        (EngineSpec(base_gpu_id=2, tensor_parallel_size=2), None, "2,3"),
        (EngineSpec(base_gpu_id=1, tensor_parallel_size=2), "4, 5,6,7", "5,6"),
        (EngineSpec(base_gpu_id=1), "GPU-a,GPU-b", "GPU-b"),
        (EngineSpec(base_gpu_id=4, tensor_parallel_size=8, num_nodes=2), None, "4,5,6,7"),
    ],
)
def test_the_gpus_from_the_asked_one_on_are_visible(spec: EngineSpec, before: str | None, after: str | None) -> None:
    environ = {} if before is None else {"CUDA_VISIBLE_DEVICES": before}
    show_gpus(spec, environ)
    assert environ.get("CUDA_VISIBLE_DEVICES") == after


@pytest.mark.parametrize("visible", ["0", "0,1", ""])
def test_too_few_visible_gpus_are_refused_by_name(visible: str) -> None:
    spec = EngineSpec(base_gpu_id=1, tensor_parallel_size=2)
    with pytest.raises(EngineError, match=f"--base-gpu-id 1 counts within CUDA_VISIBLE_DEVICES={visible}, .* for 2"):
        show_gpus(spec, {"CUDA_VISIBLE_DEVICES": visible})

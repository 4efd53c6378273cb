"""What the engine is told is checked before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynamo.engines.base import EngineError
from dynamo.engines.llamacpp.args import LlamaCppArgs
from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.model import LocalModel
from dynamo.model.bundled import bundled


def test_flags_and_the_file_of_arguments_are_one_table() -> None:
    spec = EngineSpec(arguments=["--n-batch", "1024", "--max-num-seqs=8"], extra_engine_args={"n_threads": 2})
    args = LlamaCppArgs.from_spec(spec)
    assert (args.n_batch, args.max_num_seqs, args.n_threads) == (1024, 8, 2)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"arguments": ["--n-bach", "8"]}, "did you mean '--n-batch'"),
        ({"arguments": ["--n-batch", "many"]}, "--n-batch must be a whole number, not 'many'"),
        ({"arguments": ["--n-batch"]}, "--n-batch must be a whole number"),
        ({"arguments": ["--n-batch", "1"]}, "at least 32"),
        ({"arguments": ["--n-batch", "64"], "extra_engine_args": {"n_batch": 128}}, "--extra-engine-args says 128"),
        ({"extra_engine_args": {"n_gpu_layer": 1}}, "did you mean 'n_gpu_layers'"),
        ({"extra_engine_args": {"cache_type": "f8"}}, "f8"),
        ({"extra_engine_args": {"max_num_seqs": 200, "cached_seqs": 200}}, "at most 256 together"),
        ({"arguments": ["--disaggregation-mode", "encode"]}, "must be one of agg, prefill or decode, not 'encode'"),
        ({"extra_engine_args": {"n_batch": 32}}, "n_batch must be at least"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size"),
        ({"num_nodes": 2}, "--num-nodes"),
    ],
    ids=str,
)
def test_what_is_unknown_or_wrong_is_refused_before_anything_loads(spec: dict[str, Any], reason: str) -> None:
    missing = LocalModel(source="none", path=Path("/nonexistent/model.gguf"))
    with pytest.raises(EngineError) as refused:
        LlamaCppEngine(EngineSpec(model=missing, **spec))
    assert reason in str(refused.value)


def test_a_folder_without_a_gguf_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="loads GGUF files"):
        LlamaCppEngine(EngineSpec(model=LocalModel(source="x", path=tmp_path)))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(EngineError, match="has 2 of them"):
        LlamaCppEngine(EngineSpec(model=LocalModel(source="x", path=tmp_path)))


async def test_a_broken_file_fails_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes((bundled() / "tiny.gguf").read_bytes()[:200_000])
    engine = make_engine("llama_cpp", EngineSpec(model=LocalModel(source="x", path=broken)))
    with pytest.raises(EngineError, match=r"broken\.gguf") as refused:
        await engine.start()
    assert "\n" not in str(refused.value)
    await engine.close()


async def test_a_context_longer_than_the_models_is_refused() -> None:
    local = LocalModel(source="tiny", path=bundled())
    engine = LlamaCppEngine(EngineSpec(model=local, context_length=1 << 20, extra_engine_args={"n_ctx": 1024}))
    with pytest.raises(EngineError, match="context length 1048576"):
        await engine.start()
    await engine.close()

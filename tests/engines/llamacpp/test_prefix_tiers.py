"""Prefixes that the KV cache has no room for come back from memory and from a folder, also after a restart."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from dynamo.engines.base import EngineError
from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import ActiveLoad, Cleared, KvChange, Stored, Tier
from dynamo.runtime import DistributedRuntime, Local, RuntimeConfig
from dynamo.worker import serve_engine
from engines.llamacpp.conftest import Starting
from engines.llamacpp.test_batching import _cached
from support.asking import answer, asking, chat
from support.kv_reader import Reader, ask_snapshot, content
from support.limits import full_disk
from support.waiting import until

ONE = chat("The first document, which is read with care. " * 60)
TWO = chat("Another text that is as long as the other was. " * 60)
SEGMENT = 256
HELD = (len(ONE) - 1) // SEGMENT * SEGMENT
SMALL = {"n_ctx": 1024, "context_length": 1024, "max_num_seqs": 4, "cached_seqs": 4}


async def started(starting: Starting, **options: Any) -> LlamaCppEngine:
    """With tiers that pay, however loaded this machine is."""
    engine = await starting(**SMALL, **options)
    if engine.tiers is not None:
        engine.tiers.store.prefill.seconds_per_token = 1e6
    return engine


def follow_tiers(engine: LlamaCppEngine) -> dict[Tier, set[int]]:
    """The blocks of each tier, according to the events."""
    held: dict[Tier, set[int]] = {Tier.Host: set(), Tier.Disk: set()}

    def on_device(rank: int, changes: list[KvChange]) -> None:
        if any(isinstance(change, Cleared) for change in changes):
            for blocks in held.values():
                blocks.clear()

    def in_tier(rank: int, tier: Tier, change: KvChange) -> None:
        assert not isinstance(change, Cleared)
        blocks, hashes = held[tier], set(change.sequence_hashes)
        if isinstance(change, Stored):
            assert not hashes & blocks
            blocks |= hashes
        else:
            assert hashes <= blocks
            blocks -= hashes

    engine.on_kv_events(on_device)
    engine.on_kv_tier_events(in_tier)
    return held


def figures(engine: LlamaCppEngine, tier: Tier) -> Any:
    assert engine.tiers is not None
    return engine.tiers.store.costs[tier]


async def asked(engine: LlamaCppEngine, prompt: list[int]) -> tuple[list[int], int]:
    sink = await answer(engine, asking(prompt, ignore_eos=True, max_tokens=8))
    if tiers := engine.tiers:
        await until(lambda: not tiers.unsaved)
    return sink.ids, _cached(sink) or 0


async def test_an_evicted_prefix_comes_back_from_memory(starting: Starting) -> None:
    assert HELD >= 2 * SEGMENT
    plain = await started(starting)
    engine = await started(starting, kv_offload_gb=0.1)
    held = follow_tiers(engine)
    first = await asked(engine, ONE)
    await asked(engine, TWO)
    again, cached = await asked(engine, ONE)
    assert cached == HELD
    assert again == first[0] == (await asked(plain, ONE))[0]
    assert len(held[Tier.Host]) == 2 * HELD // 16
    assert figures(engine, Tier.Host).restored_tokens > 0
    assert figures(engine, Tier.Host).saved_seconds > figures(engine, Tier.Host).restore_seconds
    await engine._running().call(engine.blocks.check)


async def test_a_prefix_comes_back_from_disk_after_a_restart(starting: Starting, tmp_path: Path) -> None:
    options = {"kv_offload_disk_gb": 0.1, "kv_offload_dir": str(tmp_path)}
    engine = await started(starting, **options)
    follow_tiers(engine)
    first, _ = await asked(engine, ONE)
    await until(lambda: figures(engine, Tier.Disk).stored_tokens == HELD)
    await engine.close()
    later = await started(starting, **options)
    held = follow_tiers(later)
    await until(lambda: len(held[Tier.Disk]) == HELD // 16)
    again, cached = await asked(later, ONE)
    assert (again, cached) == (first, HELD)
    assert figures(later, Tier.Disk).restored_tokens == HELD
    metrics = generate_latest(later.metrics_registry()).decode()
    assert f'dynamo_kv_tier_restored_tokens_total{{tier="disk"}} {HELD}.0' in metrics
    assert f"kvbm_matched_tokens_total {HELD}.0" in metrics
    await later._running().call(later.blocks.check)


async def test_a_damaged_file_is_computed_again(starting: Starting, tmp_path: Path) -> None:
    options = {"kv_offload_disk_gb": 0.1, "kv_offload_dir": str(tmp_path)}
    engine = await started(starting, **options)
    first, _ = await asked(engine, ONE)
    await until(lambda: figures(engine, Tier.Disk).stored_tokens == HELD)
    await engine.close()
    for file in tmp_path.glob("*/*.kv"):
        whole = bytearray(file.read_bytes())
        whole[-100] ^= 1
        file.write_bytes(whole)
    later = await started(starting, **options)
    assert await asked(later, ONE) == (first, 0)


async def test_clearing_the_cache_clears_the_tiers(starting: Starting, tmp_path: Path) -> None:
    engine = await started(starting, kv_offload_gb=0.1, kv_offload_disk_gb=0.1, kv_offload_dir=str(tmp_path))
    held = follow_tiers(engine)
    await asked(engine, ONE)
    await until(lambda: len(held[Tier.Disk]) == HELD // 16)
    assert await engine.clear_cache()
    await until(lambda: not list(tmp_path.glob("*/*.kv")) and not held[Tier.Host] and not held[Tier.Disk])
    assert (await asked(engine, ONE))[1] == 0


async def test_salts_are_kept_apart(starting: Starting) -> None:
    engine = await started(starting, kv_offload_gb=0.1)
    await asked(engine, ONE)
    sink = await answer(engine, asking(ONE, max_tokens=1, cache_salt="another tenant"))
    assert _cached(sink) == 0


@pytest.mark.parametrize("place", ["file", "locked", "read-only", "zero"])
async def test_a_folder_that_cannot_be_used_is_named_and_requests_are_answered(
    starting: Starting, tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    folder = tmp_path
    if place == "file":
        folder = tmp_path / "file"
        folder.write_text("")
    if place == "read-only":
        folder = Path("/sys/dynamo-kv")  # root, too, can make nothing there
    options = {"kv_offload_disk_gb": 0.0 if place == "zero" else 0.1, "kv_offload_dir": str(folder)}
    if place == "locked":
        await started(starting, **options)
    with caplog.at_level(logging.WARNING):
        engine = await started(starting, **options)
    (line,) = [record.getMessage() for record in caplog.records if record.name.endswith("tier_setup")]
    assert str(folder) in line
    assert (await asked(engine, ONE))[1] == 0
    assert engine.tiers is None


async def test_a_disk_that_is_full_is_named_once_and_requests_are_answered(
    starting: Starting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await started(starting, kv_offload_disk_gb=0.1, kv_offload_dir=str(tmp_path))
    with caplog.at_level(logging.WARNING), full_disk():
        first = await asked(engine, ONE)
        await until(lambda: figures(engine, Tier.Disk).failures)
        assert (await asked(engine, TWO))[0]
        assert (await asked(engine, ONE))[0] == first[0]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "dynamo.kv.tiers.store"]
    assert line.startswith("cannot write KV blocks into ")
    assert line.endswith("; trying again later")
    assert not list(tmp_path.glob("*/*.part"))


async def test_a_disk_tier_without_a_folder_is_refused(starting: Starting) -> None:
    with pytest.raises(EngineError, match="--kv-offload-disk-gb needs a folder: --kv-offload-dir FOLDER"):
        await starting(kv_offload_disk_gb=1)


async def test_the_names_of_kvbm_set_the_tiers(starting: Starting, tmp_path: Path) -> None:
    environ = {
        "DYN_KVBM_CPU_CACHE_GB": "0.1",
        "DYN_KVBM_DISK_CACHE_GB": "0.2",
        "DYN_KVBM_DISK_CACHE_DIR": str(tmp_path),
    }
    engine = await started(starting, environ=environ)
    assert engine.tiers is not None
    store = engine.tiers.store
    assert store.memory is not None
    assert store.folder is not None
    assert (store.memory.limit, store.folder.limit) == (10**8, 2 * 10**8)


async def test_a_worker_publishes_the_blocks_of_its_tiers_and_what_they_are_worth(starting: Starting) -> None:
    engine = await started(starting, kv_offload_gb=0.1)
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=Local())
    loads: list[ActiveLoad] = []
    async with runtime:
        await runtime.events.subscribe(
            "namespace.ns.component.backend.kv_metrics",
            lambda _, data: loads.append(msgspec.msgpack.decode(data, type=ActiveLoad)),
        )
        reader = await Reader().listen(runtime)
        serving = asyncio.create_task(serve_engine(runtime.endpoint("ns.backend.generate"), engine))
        client = await runtime.endpoint("ns.backend.generate").client()
        await client.wait_for_instances()
        await asked(engine, ONE)
        blocks = {(Tier.Host, block) for block in prompt_hashes(ONE, 16)[: HELD // 16]}
        await until(lambda: blocks <= reader.blocks[runtime.instance_id, 0])
        await until(lambda: any(load.host_weight == 1.0 for load in loads))
        assert blocks <= content(await ask_snapshot(runtime, runtime.instance_id))
        runtime.shutdown()
        await serving

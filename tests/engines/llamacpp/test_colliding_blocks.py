"""A prompt whose blocks have the routers' hash of another prompt's blocks does not change the other's answer."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.kv import hashing
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import Tier
from dynamo.protocols.errors import InvalidArgument
from engines.llamacpp.conftest import Starting
from engines.llamacpp.test_prefix_tiers import HELD, asked, figures, started
from support.asking import answer, asking, chat
from support.waiting import until

VICTIM = chat("The first document, which is read with care. " * 60)
ATTACKER = [*reversed(VICTIM[:16]), *VICTIM[16:]]


@pytest.fixture(autouse=True)
def colliding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the first blocks of the two prompts one hash, as a search for a collision would; all others follow."""
    ours, theirs = (array("I", prompt[:16]).tobytes() for prompt in (VICTIM, ATTACKER))
    digest = hashing.digest
    monkeypatch.setattr(hashing, "digest", lambda data, *seed: digest(ours if bytes(data) == theirs else data, *seed))
    assert VICTIM[:16] != ATTACKER[:16]
    assert prompt_hashes(VICTIM, 16) == prompt_hashes(ATTACKER, 16)


async def undisturbed(starting: Starting) -> list[int]:
    ids, _ = await asked(await started(starting), VICTIM)
    return ids


async def test_in_memory_each_prompt_is_answered_from_its_own_blocks(starting: Starting) -> None:
    expected = await undisturbed(starting)
    engine = await started(starting)
    await asked(engine, ATTACKER)
    assert await asked(engine, VICTIM) == (expected, 0)
    assert await asked(engine, VICTIM) == (expected, (len(VICTIM) - 1) // 16 * 16)
    await engine._running().call(engine.blocks.check)


async def test_a_colliding_prefix_is_not_restored_from_memory(starting: Starting) -> None:
    expected = await undisturbed(starting)
    engine = await started(starting, kv_offload_gb=0.1)
    await asked(engine, ATTACKER)
    await asked(engine, chat("Another text that is as long as the other was. " * 60))
    assert await asked(engine, VICTIM) == (expected, 0)


async def test_a_colliding_prefix_is_not_restored_from_disk_after_a_restart(starting: Starting, tmp_path: Path) -> None:
    expected = await undisturbed(starting)
    options = {"kv_offload_disk_gb": 0.1, "kv_offload_dir": str(tmp_path)}
    engine = await started(starting, **options)
    await asked(engine, ATTACKER)
    await until(lambda: figures(engine, Tier.Disk).stored_tokens == HELD)
    await engine.close()
    later = await started(starting, **options)
    assert await asked(later, VICTIM) == (expected, 0)
    await later.close()
    last = await started(starting, **options)
    assert (await asked(last, ATTACKER))[1] == HELD


async def test_a_colliding_state_is_not_taken_by_hand_off(starting: Starting) -> None:
    expected = await undisturbed(starting)
    prefill, decode = await starting(), await starting()
    state = await _held_state(prefill, ATTACKER)
    with pytest.raises(InvalidArgument):
        await decode.import_prefix(VICTIM, state)
    assert (await asked(decode, VICTIM)) == (expected, 0)
    assert await prefill.hold_prefix(VICTIM) is None
    assert await prefill.export_prefix(VICTIM) is None


async def test_a_state_under_one_salt_is_not_taken_under_another(starting: Starting) -> None:
    prefill, decode = await starting(), await starting()
    state = await _held_state(prefill, VICTIM)
    with pytest.raises(InvalidArgument):
        await decode.import_prefix(VICTIM, state, cache_salt="theirs")
    assert await decode.import_prefix(VICTIM, state) == len(VICTIM) // 16 * 16


async def _held_state(engine: LlamaCppEngine, prompt: list[int]) -> bytes:
    await answer(engine, asking(prompt, max_tokens=1))
    held = await engine.hold_prefix(prompt)
    assert held is not None
    return await engine.held_state(held)

"""A prefix computed by one engine, used by another."""

from __future__ import annotations

import pytest

from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.kv.hashing import prompt_hashes
from dynamo.protocols.errors import InvalidArgument, ResourceExhausted
from engines.llamacpp.conftest import Starting
from engines.llamacpp.test_batching import _cached, follow
from support.asking import answer, asking, chat

PROMPT = chat("Please read this with care, because it stands before many questions. " * 6)


async def exported(engine: LlamaCppEngine) -> bytes:
    await answer(engine, asking(PROMPT, max_tokens=1))
    state = await engine.export_prefix(PROMPT)
    assert state is not None
    return state


async def test_another_engine_goes_on_from_an_imported_prefix(starting: Starting) -> None:
    one, two = await starting(), await starting()
    state = await exported(one)
    known = follow(two)
    full = len(PROMPT) // 16 * 16
    assert await two.import_prefix(PROMPT, state) == full
    sink = await answer(two, asking(PROMPT, ignore_eos=True))
    assert _cached(sink) == (len(PROMPT) - 1) // 16 * 16
    assert sink.ids == (await answer(one, asking(PROMPT, ignore_eos=True))).ids
    assert known == two.blocks.hashes() >= set(prompt_hashes(PROMPT, 16))
    two.blocks.check()
    one.blocks.check()


async def test_a_prefix_that_is_there_already_is_not_stored_twice(engine: LlamaCppEngine) -> None:
    state = await exported(engine)
    used = engine.blocks.used
    assert await engine.import_prefix(PROMPT, state) == len(PROMPT) // 16 * 16
    assert engine.blocks.used == used


async def test_what_is_not_cached_cannot_be_exported(engine: LlamaCppEngine) -> None:
    assert await engine.export_prefix(PROMPT) is None
    assert await engine.export_prefix([]) is None


async def test_wrong_states_are_refused_and_leave_nothing(starting: Starting) -> None:
    one, two = await starting(), await starting()
    state = await exported(one)
    for tokens, wrong in ((PROMPT[::-1], state), (PROMPT, state[:-200]), (PROMPT, b""), (PROMPT, b"\x93abc")):
        with pytest.raises(InvalidArgument):
            await two.import_prefix(tokens, wrong)
    other = await starting(cache_type="f32")
    with pytest.raises(InvalidArgument):
        await other.import_prefix(PROMPT, state)
    for engine in (two, other):
        assert engine.blocks.used == 0
        engine.blocks.check()
        assert (await answer(engine, asking(PROMPT))).ids == (await answer(one, asking(PROMPT))).ids


async def test_a_state_that_does_not_fit_is_refused(starting: Starting) -> None:
    one = await starting()
    prompt = chat("word " * 400)
    await answer(one, asking(prompt, max_tokens=1))
    state = await one.export_prefix(prompt)
    assert state is not None
    small = await starting(n_ctx=256, context_length=256)
    with pytest.raises(ResourceExhausted):
        await small.import_prefix(prompt, state)

"""Sessions whose blocks are kept while they pause, on a simulated worker that has room for few of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import structs

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.simulate.agents import with_pauses
from dynamo.router.config import RoutingConfig
from dynamo.simulate import SimulatedRequest, SimulationConfig, simulate

ROUND = 20.0
SESSIONS, TURNS, BLOCKS = 6, 12, 10


def traffic() -> Iterator[SimulatedRequest]:
    """Each session sends the same prompt again after 20 s, so that in turn each is idle for longest."""
    for session in range(SESSIONS):
        for turn in range(TURNS):
            yield SimulatedRequest(
                at=None if turn else session * ROUND / SESSIONS,
                input_tokens=64 * BLOCKS + 10,
                output_tokens=2,
                block_ids=tuple(range(session * BLOCKS, (session + 1) * BLOCKS)),
                block_size=64,
                session=f"s{session}",
                delay=ROUND if turn else 0.0,
                label=f"{session} {turn}",
                ended_by="Bash",
            )


def cached(*, keep: bool, pauses: Literal["learned", "known"] = "learned") -> float:
    config = SimulationConfig(
        engine=MockerArgs(num_gpu_blocks=4 * BLOCKS, block_size=64),
        routing=RoutingConfig(mode="kv", keep_paused=keep),
        pauses=pauses,
    )
    report = simulate(config, lambda: with_pauses(traffic()))
    assert (report.completed, report.failed) == (SESSIONS * TURNS, 0)
    return report.prefix_reuse


def test_without_knowledge_of_pauses_each_session_is_gone_when_it_returns() -> None:
    assert cached(keep=False) < 0.05


def test_known_pauses_keep_those_that_return_next() -> None:
    assert cached(keep=True, pauses="known") > 0.4


def test_learned_pauses_do_most_of_that() -> None:
    assert cached(keep=True) > 0.2


def test_each_request_knows_the_pause_after_it_and_the_last_of_a_session_is_final() -> None:
    found = with_pauses(traffic())
    assert [each.pause for each in found] == ([ROUND] * (TURNS - 1) + [None]) * SESSIONS
    assert [each.final for each in found] == ([False] * (TURNS - 1) + [True]) * SESSIONS
    assert [structs.replace(each, pause=None, final=False) for each in found] == list(traffic())

"""More arrivals for a while."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.simulate.bursts import with_burst
from dynamo.lab.simulate.incidents import read_incident, with_bursts
from dynamo.lab.simulate.report import as_json
from dynamo.protocols.errors import InvalidArgument
from dynamo.simulate import Incident, SimulatedRequest, SimulationConfig, Synthetic, simulate

STEADY = Synthetic(requests=300, input_tokens=640, output_tokens=4, interval=0.1, shared_prefix=0.5, groups=4, seed=2)
SESSIONS = structs.replace(STEADY, turns=3, think=1.0)
BURST = Incident("burst", 10.0, factor=3.0, duration=8.0)
TIMES = st.lists(st.floats(0, 100), max_size=30).map(sorted)


def row(number: int, at: float | None, session: str = "") -> SimulatedRequest:
    return SimulatedRequest(
        at=at, input_tokens=130, output_tokens=1, block_ids=(number, number + 1), block_size=64, session=session,
        label=f"row {number}",
    )  # fmt: skip


def added(traffic: Iterable[SimulatedRequest], *bursts: Incident, seed: int = 0) -> list[SimulatedRequest]:
    """What the bursts add; all else must be as it was, in the same order."""
    before, after = list(traffic), list(with_bursts(traffic, bursts, seed))
    known = {request.label for request in before}
    assert [request for request in after if request.label in known] == before
    times = [request.at for request in after if request.at is not None]
    assert times == sorted(times)
    return [request for request in after if request.label not in known]


@settings(max_examples=200, deadline=None)
@given(TIMES, st.floats(0, 100), st.floats(0.1, 50), st.integers(2, 5))
def test_arrivals_of_the_burst_are_multiplied_and_all_others_stay(
    times: list[float], begin: float, seconds: float, factor: int
) -> None:
    traffic = [row(number, at) for number, at in enumerate(times)]
    inside = [at for at in times if begin <= at < begin + seconds]
    more = added(traffic, Incident("burst", begin, factor=factor, duration=seconds))
    assert len(more) == (factor - 1) * len(inside)
    assert all(request.at is not None and begin <= request.at <= begin + seconds for request in more)


def test_a_factor_that_is_no_whole_number_holds_on_average() -> None:
    inside = sum(request.at is not None and 10.0 <= request.at < 18.0 for request in STEADY)
    more = len(added(STEADY, structs.replace(BURST, factor=1.5)))
    assert 0.3 * inside < more < 0.7 * inside


def test_what_comes_has_prompts_of_its_own_and_shares_what_the_originals_share() -> None:
    one, other = row(1, 0.0), row(2, 0.0)
    other = structs.replace(other, block_ids=(1, 7))
    copies = added([one, other], Incident("burst", 0.0, factor=3.0, duration=1.0))
    prompts = {request.label: request.token_ids() for request in copies}
    assert len({prompt[0] for prompt in prompts.values()} | {one.token_ids()[0]}) == 3
    firsts = sorted(prompt[:64].tolist() for prompt in prompts.values())
    assert firsts[0] == firsts[1] != firsts[2] == firsts[3]
    assert len({tuple(prompt) for prompt in prompts.values()}) == 4


def test_prompts_without_block_ids_are_their_own_too() -> None:
    plain = structs.replace(row(1, 0.0), block_ids=())
    (copy,) = added([plain], Incident("burst", 0.0, factor=2.0, duration=1.0))
    assert copy.token_ids() != plain.token_ids()


def test_copies_of_a_session_go_on_as_the_session_does() -> None:
    traffic = [row(1, 1.0, "a"), row(2, None, "a"), row(3, 2.0, "b"), row(4, None, "a"), row(5, None, "b")]
    after = list(with_burst(traffic, 1.0, 1.5, 3.0, "x"))
    sessions: dict[str, list[str]] = {}
    for request in after:
        sessions.setdefault(request.session, []).append(request.label.partition("/")[0])
    assert sessions.pop("b") == ["row 3", "row 5"]
    assert list(sessions.values()) == [["row 1", "row 2", "row 4"]] * 3
    for number, request in enumerate(after):
        if request.at is None:
            assert any(before.session == request.session for before in after[:number])


@pytest.mark.parametrize("traffic", [STEADY, SESSIONS])
def test_the_seed_decides_what_comes(traffic: Synthetic) -> None:
    assert added(traffic, BURST, seed=1) == added(traffic, BURST, seed=1)
    assert added(traffic, BURST, seed=1) != added(traffic, BURST, seed=2)


def test_two_bursts_at_once_multiply_each_other() -> None:
    traffic = [row(number, float(number)) for number in range(10)]
    more = added(
        traffic, Incident("burst", 0.0, factor=2.0, duration=20), Incident("burst", 0.0, factor=3.0, duration=20)
    )
    assert len(more) == 50
    assert len({request.token_ids()[0] for request in more}) == 50


CONFIG = SimulationConfig(workers=2, engine=MockerArgs(num_gpu_blocks=256), seed=7, incidents=[BURST])


def test_a_fleet_answers_the_burst_later_and_reports_it_the_same_way_each_time() -> None:
    calm, busy = simulate(structs.replace(CONFIG, incidents=[]), lambda: STEADY), simulate(CONFIG, lambda: STEADY)
    assert (calm.completed, busy.completed) == (300, 300 + len(added(STEADY, BURST, seed=7)))
    assert calm.ttft_ms
    assert busy.ttft_ms
    assert busy.ttft_ms.p99 > calm.ttft_ms.p99
    assert as_json(busy) == as_json(simulate(CONFIG, lambda: STEADY))


def test_sessions_of_a_burst_are_answered_to_their_end() -> None:
    early = structs.replace(BURST, at=2.0)
    report = simulate(structs.replace(CONFIG, incidents=[early]), lambda: SESSIONS)
    more = added(SESSIONS, early, seed=7)
    assert len(more) % 3 == 0
    assert report.completed == 300 + len(more) > 500


def test_a_burst_is_refused_where_the_times_of_requests_do_not_count() -> None:
    with pytest.raises(InvalidArgument, match="a burst needs requests that arrive at their times"):
        simulate(structs.replace(CONFIG, concurrency=4), lambda: STEADY)


@pytest.mark.parametrize(
    ("text", "incident"),
    [
        ("kill:2@60", Incident("kill", 60.0, 2)),
        ("drain:0@1.5", Incident("drain", 1.5, 0)),
        ("join@0", Incident("join", 0.0)),
        ("slow:2x10@60", Incident("slow", 60.0, 2, 10.0)),
        ("burst:x2.5@60+30", Incident("burst", 60.0, factor=2.5, duration=30.0)),
    ],
)
def test_incidents_are_read_from_text(text: str, incident: Incident) -> None:
    assert read_incident(text) == incident


@pytest.mark.parametrize(
    "text",
    ["", "burst", "burst@60", "burst:x3@60", "burst:3@60+30", "burst:2x3@60+30", "burst:x3@+30", "burst:xx@60+30",
     "kill:1@60+30", "kill@60", "kill:x3@60", "join:1@60", "slow:1@60", "slow:x3@60", "slow:ax3@60", "explode@60"],
)  # fmt: skip
def test_what_is_no_incident_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be kill:N@SECONDS, .* or burst:xFACTOR@SECONDS\+DURATION, not "):
        read_incident(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("burst:x1@60+30", "the factor must be above 1 and at most 10000"),
        ("burst:x1e9@60+30", "the factor must be above 1 and at most 10000"),
        ("burst:xnan@60+30", "the factor must be above 1 and at most 10000"),
        ("burst:x3@60+0", "the duration must be above 0 seconds"),
        ("burst:x3@60+inf", "the duration must be above 0 seconds"),
        ("burst:x3@-1+30", "the time must be 0 seconds or more"),
        ("join@nan", "the time must be 0 seconds or more"),
        ("kill:-1@60", "workers are counted from 0"),
        ("slow:1x0@60", "the factor must be above 0"),
    ],
)
def test_values_that_make_no_sense_are_named(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"^'.*': {error}$"):
        read_incident(text)

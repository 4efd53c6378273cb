from __future__ import annotations

from dynamo.kv.pauses import AGES
from dynamo.router.sessions.pauses import FORGET_SECONDS, MOST_KINDS, PauseBook


def at(rates: tuple[float, ...], age: float) -> float:
    return next((rate for rate, edge in zip(rates, AGES, strict=False) if age < edge), rates[-1])


def turns(book: PauseBook, name: str, kind: str, pauses: list[float], now: float = 0.0) -> tuple[float, ...]:
    """What is said of a session after these pauses."""
    key = "", name.encode()
    book.began(key, now)
    for pause in pauses:
        book.paused(key, kind, now)
        now += pause
        book.began(key, now)
    return book.paused(key, kind, now)


def test_without_knowledge_the_longest_idle_session_is_worth_least() -> None:
    rates = turns(PauseBook(), "a", "Bash", [])
    assert len(rates) == len(AGES) + 1
    assert list(rates) == sorted(rates, reverse=True)
    assert rates[0] > 10 * rates[-1] > 0


def test_a_tool_that_takes_seconds_is_expected_back_before_a_user() -> None:
    book = PauseBook()
    for number in range(20):
        turns(book, f"tool {number}", "Read", [2.0, 3.0, 2.5])
        turns(book, f"user {number}", "end_turn", [300.0, 500.0, 200.0])
    tool, user = turns(book, "new", "Read", []), turns(book, "other", "end_turn", [])
    assert at(tool, 1.5) > 10 * at(user, 1.5)
    assert at(tool, 60.0) < at(user, 250.0)


def test_a_session_that_returns_late_is_expected_late_though_others_are_not() -> None:
    book = PauseBook()
    for number in range(20):
        turns(book, f"quick {number}", "Bash", [4.0] * 4)
    slow, quick = turns(book, "slow", "Bash", [200.0] * 4), turns(book, "quick", "Bash", [4.0] * 4)
    assert at(quick, 2.0) > 4 * at(slow, 2.0)
    assert at(slow, 150.0) / at(slow, 2.0) > 4 * at(quick, 150.0) / at(quick, 2.0)


def test_what_is_expected_soon_is_worth_its_blocks_now() -> None:
    """A pause that never ends in its first seconds, and always soon after, is no reason to give the blocks away."""
    book = PauseBook()
    for number in range(50):
        rates = turns(book, f"{number}", "Sleep", [10.0] * 3)
    assert at(rates, 0.5) > 1 / 20
    assert at(rates, 100.0) < at(rates, 0.5) / 10


def test_a_session_that_never_came_back_counts() -> None:
    stayed, left = PauseBook(), PauseBook()
    for number in range(20):
        turns(stayed, f"{number}", "Bash", [30.0])
        turns(left, f"{number}", "Bash", [30.0])
    left.sweep(31 + FORGET_SECONDS)
    assert at(turns(left, "a", "Bash", []), 20.0) < at(turns(stayed, "a", "Bash", []), 20.0)


def test_an_ended_session_is_forgotten() -> None:
    book = PauseBook()
    turns(book, "a", "Bash", [5.0])
    before = turns(book, "b", "Bash", [])
    book.ended(("", b"a"))
    book.began(("", b"a"), 1e6)
    assert turns(book, "c", "Bash", []) == before


def test_invented_tools_cost_a_bounded_table() -> None:
    book = PauseBook()
    for number in range(3 * MOST_KINDS):
        turns(book, f"{number}", f"tool {number}", [1.0, 5.0, 40.0])
    assert len(book._kinds) <= MOST_KINDS + 1
    assert len(book._after) <= 8 * (MOST_KINDS + 1)

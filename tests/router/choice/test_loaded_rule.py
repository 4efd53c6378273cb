"""Rules from files, good and bad ones."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import threading
from pathlib import Path

import pytest

from dynamo.kv.index.overlaps import Overlap, Overlaps
from dynamo.kv.messages import WorkerRank
from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.worker_name import worker_name
from dynamo.router.choice.choose import Choice, choose
from dynamo.router.choice.cost import CostConfig
from dynamo.router.choice.fleet import Capacity, Fleet
from dynamo.router.choice.interrupt import Stalled, limited
from dynamo.router.choice.loaded_rule import LoadedRule, load, shipped
from dynamo.router.load_book import Loads
from dynamo.router.rules import Prompt, Worker

BAD = {
    "raised": ["raise RuntimeError('no')", "return workers[0].nothing", "return 1 / 0"],
    "nonsense": [
        "return [float('nan')] * len(workers)",
        "return [float('inf')] * len(workers)",
        "return [float('-inf')] + [0.0] * (len(workers) - 1)",
        "return len(workers)",
        "return -1",
        "return [1.0]",
        "return None",
        "return 'here'",
    ],
    "stalled": [
        "while True: pass",
        "import time; time.sleep(10)",
        "import itertools; return itertools.count()",
        "while True:\n        try:\n            1 / 0\n        except Exception: pass",
        "while True:\n        try:\n            1 / 0\n        except BaseException: pass",
    ],
}


def written(folder: Path, body: str) -> Path:
    path = folder / "own.py"
    path.write_text(f"def rule(prompt, workers):\n    {body}\n")
    return path


def asked(rule: LoadedRule, count: int = 3, overlaps: dict[int, Overlap] | None = None) -> Choice:
    fleet = Fleet({WorkerRank(n): Capacity(total_blocks=100, max_batched_tokens=2048) for n in range(count)}, 16)
    held = Overlaps.of({WorkerRank(n): overlap for n, overlap in (overlaps or {}).items()})
    loads = Loads([0.0] * count, [0.0] * count, [0] * count, [0.0] * count, [0.0] * count)
    return choose(1600, 100, fleet, held, loads, CostConfig(), random.Random(0), rule)


@pytest.mark.parametrize(("reason", "body"), [(reason, body) for reason, all in BAD.items() for body in all])
def test_a_bad_rule_leaves_the_choice_to_the_built_in_one_and_says_so_in_one_line(
    reason: str, body: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, body)
    rule = load(str(path))
    for _ in range(3):
        choice = asked(rule, overlaps={1: Overlap(90)})
        assert (choice.at, choice.rule) == (1, "")
    assert rule.fallbacks == {reason: 3}
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert str(path) in lines[0]


def test_a_rule_that_stalls_is_interrupted_once_and_not_asked_again_until_it_is_loaded(tmp_path: Path) -> None:
    path = written(tmp_path, "with open(__file__ + '.asked', 'a') as file: file.write('x')\n    while True: pass")
    rule = load(str(path))
    for _ in range(5):
        asked(rule)
    assert path.with_suffix(".py.asked").read_text() == "x"
    assert rule.set_aside == "stalled"


def test_a_rule_that_is_slow_every_time_is_set_aside_though_no_call_stalls(tmp_path: Path) -> None:
    body = "import time; end = time.thread_time() + 0.003\n    while time.thread_time() < end: pass\n    return 0"
    rule = load(str(written(tmp_path, body)))
    chosen = [asked(rule).rule for _ in range(10)]
    assert not chosen[-1]
    assert rule.set_aside in ("slow", "stalled"), "a busy machine makes of the one the other"


def test_an_alarm_that_somebody_else_set_still_rings(tmp_path: Path) -> None:
    rang = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: rang.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        asked(load(str(written(tmp_path, "while True: pass"))))
        assert rang.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_garbage_is_collected_after_limited_code_and_not_in_it() -> None:
    assert limited(1, gc.isenabled)[0] is False
    assert gc.isenabled()
    with pytest.raises(Stalled):
        limited(0.001, lambda: [None for _ in iter(int, 1)])
    assert gc.isenabled()


def test_a_rule_is_asked_on_other_threads_too(tmp_path: Path) -> None:
    rule, found = load(str(written(tmp_path, "return 2"))), list[int]()
    thread = threading.Thread(target=lambda: found.append(asked(rule).at))
    thread.start()
    thread.join()
    assert found == [2]


def test_a_rule_gives_an_index_or_costs_and_the_choice_names_it(tmp_path: Path) -> None:
    path = written(tmp_path, "return 2")
    choice = asked(load(str(path)), overlaps={0: Overlap(50)})
    assert (choice.at, choice.rule) == (2, str(path))
    assert (
        choice.passed_over
        == f"worker {worker_name(0)} rank 0 holds 50 blocks more, but the rule '{path}' prefers another"
    )
    written(tmp_path, "return [float('inf'), 1, 2]")
    choice = asked(load(str(path)))
    assert (choice.at, choice.costs) == (1, [float("inf"), 1.0, 2.0])


def test_a_rule_sees_the_prompt_and_what_each_worker_has(tmp_path: Path) -> None:
    body = "with open(__file__ + '.seen', 'w') as file: file.write(repr((prompt, workers[1])))\n    return 0"
    written(tmp_path, body)
    asked(load(str(tmp_path / "own.py")), overlaps={1: Overlap(10, 4, 2, 1)})
    seen = (tmp_path / "own.py.seen").read_text()
    prompt = Prompt(tokens=1600, blocks=100, block_size=16)
    worker = Worker(10, 4, 2, 1, 13.75, 0, 0.0, 0.0, 0.0, 100, 2048, 0.0)
    assert seen == repr((prompt, worker))


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_rule_gives_something_to_choose_from(name: str) -> None:
    rule = load(name)
    for count in (1, 4):
        assert asked(rule, count, {0: Overlap(90)}).rule == name
    assert not rule.fallbacks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def rule(", "SyntaxError"),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("costs = 1", "has no function"),
    ],
)
def test_a_file_that_holds_no_rule_is_refused_by_name(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=words) as refused:
        load(str(path))
    assert str(path) in refused.value.message


@pytest.mark.parametrize("name", ["nobodys", "/nowhere/own.py"])
def test_a_rule_that_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        load(name)


def test_a_changed_file_is_loaded_again_and_asked_again_though_it_was_set_aside(tmp_path: Path) -> None:
    path = written(tmp_path, "while True: pass")
    rule = load(str(path))
    asked(rule)
    assert rule.set_aside
    assert rule.reloaded() is None
    written(tmp_path, "return 1")
    os.utime(path, (1, 1))
    again = rule.reloaded()
    assert again is not None
    assert asked(again).at == 1


def test_no_alarm_is_left_on_however_often_a_rule_is_interrupted(tmp_path: Path) -> None:
    path = str(written(tmp_path, "while True: pass"))
    for _ in range(100):
        asked(load(path))
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

"""`dynamo rules` on small traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynamo.lab.rules import command
from dynamo.lab.rules.scoreboard import optimum
from dynamo.lab.simulate.agents import AgentTraffic, read_agents
from dynamo.lab.simulate.traces import format_of, read_azure
from dynamo.lab.simulate.traffic import SimulatedRequest
from dynamo.protocols.errors import InvalidArgument


def turn(first: int, blocks: int, **more: Any) -> dict[str, Any]:
    return {"type": "n", "t": 0, "in": 64 * blocks + 5, "out": 8, "hash_ids": [*range(first, first + blocks)]} | more


def agents(folder: Path, count: int = 2) -> Path:
    for number in range(count):
        helper = {
            "type": "subagent", "t": 30.0, "duration_ms": 20_000, "agent_id": "a1", "tool_tokens": 70,
            "system_tokens": 10, "requests": [turn(100, 2), turn(100, 3, think_time=2.0)],
        }  # fmt: skip
        session = {
            "id": f"s{number}", "block_size": 64, "tool_tokens": 100, "system_tokens": 40,
            "requests": [turn(1, 3, api_time=4.0), helper, turn(1, 5, t=40.0, think_time=900.0)],
        }  # fmt: skip
        (folder / f"trace_{number:04}.json").write_text(json.dumps(session))
    return folder


def test_turns_of_an_agent_follow_each_other_and_a_sub_agent_begins_where_it_began(tmp_path: Path) -> None:
    first, helper, again, last = read_agents(agents(tmp_path, 1), AgentTraffic(pauses=60))
    assert (first.at, first.session, first.input_tokens, len(first.block_ids)) == (0.0, "s0", 197, 3)
    assert (helper.at, helper.after, helper.session, helper.delay) == (None, "s0", "s0/a1", 6.0)
    assert (again.session, again.after, again.delay) == ("s0/a1", "", 2.0)
    assert (last.session, last.delay) == ("s0", 60.0)
    assert last.block_ids[:3] == first.block_ids
    assert again.block_ids[:2] == helper.block_ids


@pytest.mark.parametrize("share", [False, True])
def test_sessions_share_blocks_only_where_they_are_said_to_have_the_same_tools(tmp_path: Path, share: bool) -> None:
    found = list(read_agents(agents(tmp_path), AgentTraffic(share_tools=share)))
    one, other = ([each.block_ids for each in found if each.session == name] for name in ("s0", "s1"))
    assert set(one[0]) & set(other[0]) == (set(one[0][:2]) if share else set())
    assert one[0][2:] != other[0][2:]
    assert one[1][:3] == one[0]


def test_some_of_the_sessions_can_be_drawn(tmp_path: Path) -> None:
    folder = agents(tmp_path, 6)
    assert {each.session for each in read_agents(folder, AgentTraffic(parity=1))} >= {"s1", "s3", "s5"}
    assert len({each.session[:2] for each in read_agents(folder, AgentTraffic(sessions=2))}) == 2
    with pytest.raises(InvalidArgument, match="no agent session"):
        list(read_agents(folder, AgentTraffic(largest=1)))
    (folder / "trace_0001.json").write_text("{}")
    with pytest.raises(InvalidArgument, match="trace_0001"):
        list(read_agents(folder))


def test_azures_rows_are_read_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "code.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n"
                    "2023-11-16 18:17:05.4799600,318,8\n")  # fmt: skip
    assert [(each.at, each.input_tokens, each.output_tokens) for each in read_azure(path)] == [
        (0.0, 48, 10),
        (1.5, 318, 8),
    ]
    assert format_of(path) == "azure"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,48,10\n")
    with pytest.raises(InvalidArgument, match=r"code\.csv:2"):
        list(read_azure(path))


def test_the_optimum_counts_each_block_once_and_the_last_token_never() -> None:
    def asked(tokens: int, *ids: int) -> SimulatedRequest:
        return SimulatedRequest(at=0.0, input_tokens=tokens, output_tokens=1, block_ids=ids, block_size=64)

    assert optimum([asked(192, 1, 2, 3)], 64) == 0
    assert optimum([asked(193, 1, 2, 3), asked(193, 1, 2, 3)], 64) == pytest.approx(192 / 386)
    assert optimum([asked(192, 1, 2, 3), asked(192, 1, 2, 3)], 64) == pytest.approx(128 / 384)
    assert optimum([asked(193, 1, 2, 3), asked(193, 1, 7, 3)], 64) == pytest.approx(64 / 386)
    assert optimum([asked(193, 1, 2, 3), asked(193, 1, 2, 4)], 16) == pytest.approx(128 / 386)


def test_each_rule_gets_a_line_for_each_trace_as_text_as_json_and_on_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(
        json.dumps({"timestamp": 100 * n, "input_length": 1100, "output_length": 4, "hash_ids": [7, 8]})
        for n in range(20)
    ))  # fmt: skip
    own = tmp_path / "own.py"
    own.write_text("def rule(prompt, workers):\n    raise ValueError('never')\n")
    made = [tmp_path / "scores.json", tmp_path / "scores.html"]
    command.main([
        str(agents(folder)), str(rows), "--rule", "built-in", "--rule", "lmetric", "--rule", str(own),
        "--num-workers", "2", "--report-json", str(made[0]), "--report-html", str(made[1]),
    ])  # fmt: skip
    text = capsys.readouterr().out
    scores = json.loads(made[0].read_text())
    assert [(each["trace"], each["rule"]) for each in scores] == [
        (trace, rule) for trace in ("agents", "rows.jsonl") for rule in ("built-in", "lmetric", str(own))
    ]
    assert all(each["failed"] == 0 and each["cached"] <= each["optimum"] for each in scores)
    assert [each["fallbacks"] for each in scores] == [0, 0, 8, 0, 0, 20]
    assert scores[2] == scores[0] | {"rule": str(own), "fallbacks": 8}, "the built-in rule decided instead"
    page = made[1].read_text()
    for shown in ("lmetric", "rows.jsonl: 20 requests", "rule failed 20 times"):
        assert shown in text
        assert shown in page


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["/nowhere/rows.jsonl"], "there is no trace /nowhere/rows.jsonl"),
        (["/nowhere/rows.jsonl", "--rule", "nobodys"], "nobodys"),
        (["/nowhere/rows.jsonl", "--report-json", "/nowhere/scores.json"], "/nowhere/scores.json"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err

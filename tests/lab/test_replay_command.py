"""`python -m dynamo.replay`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from dynamo.engines.mocker.profile import About
from dynamo.lab.profile.fit_profile import DecodeFit, PrefillTime, profile_from, write_profile
from dynamo.lab.replay.command import main
from dynamo.lab.replay.inputs import engine_of

pytestmark = pytest.mark.usefixtures("logging_untouched")
MADE_UP = ("--request-count", "20", "--input-tokens", "256", "--output-tokens", "8", "--arrival-interval-ms", "20")


@pytest.fixture
def logging_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets up logging for its process, which here is that of all tests."""
    monkeypatch.setattr("dynamo.lab.experiment.configure_dynamo_logging", lambda config: None)


def test_two_fleets_are_compared_and_written_as_json_and_as_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json, page = tmp_path / "r.json", tmp_path / "r.html"
    other = "--router-mode round_robin --num-workers 3"
    main([*MADE_UP, "--num-workers", "2", "--against", other, "--report-json", str(json), "--report-html", str(page)])
    shown = capsys.readouterr()
    assert "kv, 2 workers" in shown.out.splitlines()[0]
    assert "20" in next(line for line in shown.out.splitlines() if line.startswith("requests completed"))
    one, two = msgspec.json.decode(json.read_bytes())
    assert (one["router_mode"], one["workers"]) == ("kv", 2)
    assert (two["router_mode"], two["workers"]) == ("round-robin", 3)
    assert "<svg" in page.read_text()


def test_a_burst_adds_requests_to_a_trace_that_is_limited(tmp_path: Path) -> None:
    trace, report = tmp_path / "trace.jsonl", tmp_path / "r.json"
    rows = [{"timestamp": 1000 * at, "input_length": 640, "output_length": 2, "hash_ids": [at]} for at in range(20)]
    trace.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    main([str(trace), "--request-limit", "10", "--incident", "burst:x4@2+3", "--report-json", str(report)])
    found = msgspec.json.decode(report.read_bytes())
    assert (found["completed"], found["failed"]) == (10 + 3 * 3, 0)


def test_prefill_workers_are_simulated_beside_decode_workers(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    split = ("--num-prefill-workers", "1", "--num-decode-workers", "2", "--prefill-engine-args", '{"speedup_ratio": 2}')
    main([*MADE_UP, *split, "--report-json", str(report)])
    found = msgspec.json.decode(report.read_bytes())
    assert (found["prefill_workers"], found["workers"], found["completed"]) == (1, 2, 20)
    assert sum(found["splits"].values()) == 20


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "name a trace, or give --request-count, --input-tokens and --output-tokens"),
        (("/no/such/trace",), "there is no trace /no/such/trace"),
        ((*MADE_UP, "--num-workers", "0"), "--num-workers must be at least 1, not 0"),
        ((*MADE_UP, "--incident", "explode@3"), "--incident must be kill:N@SECONDS"),
        ((*MADE_UP, "--incident", "burst:x0@3+4"), "--incident 'burst:x0@3+4': the factor must be above 1"),
        (
            (*MADE_UP, "--incident", "burst:x2@0+4", "--replay-concurrency", "2"),
            "a burst needs requests that arrive at their times, not a fixed number under way",
        ),
        ((*MADE_UP, "--incident", "kill:5@0"), "there is no worker 5, only 1"),
        ((*MADE_UP, "--extra-engine-args", '{"nope": 1}'), "unknown mocker argument 'nope'"),
        ((*MADE_UP, "--extra-engine-args", "/no/file"), "--extra-engine-args: "),
        ((*MADE_UP, "--router-config", '{"nope": 1}'), "--router-config: "),
        ((*MADE_UP, "--router-mode", "cleverest"), "--router-mode must be one of"),
        ((*MADE_UP, "--num-g2-blocks", "-1"), "--num-g2-blocks must be at least 0"),
        (
            (*MADE_UP, "--num-g2-blocks", "9", "--extra-engine-args", '{"enable_prefix_caching": false}'),
            "'num_g2_blocks' keeps cached blocks: leave prefix caching on",
        ),
        (
            (*MADE_UP, "--num-g2-blocks", "9", "--extra-engine-args", '{"num_g2_blocks": 8}'),
            "--num-g2-blocks says 9, the file of engine arguments says 8",
        ),
        ((*MADE_UP, "--num-g3-blocks", "-1"), "--num-g3-blocks must be at least 0"),
        ((*MADE_UP, "--num-g3-blocks", "9"), "'num_g3_blocks' keeps what host memory has no room for: give"),
        ((*MADE_UP, "--bandwidth-g3-to-g2-gbps", "-1"), "--bandwidth-g3-to-g2-gbps must be at least 0"),
        (
            (*MADE_UP, "--num-g2-blocks", "9", "--num-g3-blocks", "9", "--extra-engine-args", '{"num_g3_blocks": 8}'),
            "--num-g3-blocks says 9, the file of engine arguments says 8",
        ),
        ((*MADE_UP, "--bandwidth-g2-to-g3-gbps", "inf"), "--bandwidth-g2-to-g3-gbps must be a finite number"),
        ((*MADE_UP, "--extra-engine-args", '{"enable_g4_storage": true}'), "'enable_g4_storage' is not implemented"),
        ((os.devnull,), f"there is no trace {os.devnull}"),
        ((*MADE_UP, "--num-decode-workers", "2"), "--num-decode-workers needs --num-prefill-workers"),
        ((*MADE_UP, "--report-json", "/no/folder/r.json"), "the folder of /no/folder/r.json does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    # Beside it there may be the log of an engine that was started, where another test has set up logging.
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert error in line


@pytest.mark.parametrize(
    "text", ["", '{"schema": "dynamo.request.trace.v1", "event_type": "request_payload", "payload": {}}\n']
)
def test_a_trace_without_requests_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main([str(trace), "--trace-format", "dynamo"])
    assert stopped.value.code == 2
    assert f"{trace} has no request that can be replayed" in capsys.readouterr().err


def test_the_first_error_is_shown_beside_their_number(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--request-count", "3", "--input-tokens", "2000000", "--output-tokens", "1"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("requests failed"))
    assert "3 (3 InvalidArgument; the first: a prompt of 2000000 tokens does not fit" in line


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    decode = DecodeFit(idle=6.0, per_request=0.3, per_token=0.002)
    about = About(model="m", frontend_ms=7.0, engine={"block_size": 32, "num_gpu_blocks": 500})
    made = profile_from([PrefillTime(16, 10.0), PrefillTime(1016, 60.0)], decode, 4096, 16, about)
    write_profile(made, tmp_path / "profile.npz")
    return tmp_path / "profile.npz"


def traced(path: Path, model: str) -> Path:
    replay = {"trace_block_size": 64, "input_length": 16, "input_sequence_hashes": []}
    request = {"model": model, "output_tokens": 1, "request_received_ms": 5.0, "replay": replay}
    row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}
    path.write_bytes(msgspec.json.encode(row) + b"\n")
    return path


def test_a_profile_says_what_the_flags_leave_open(profile: Path, tmp_path: Path) -> None:
    trace, report = traced(tmp_path / "trace.jsonl", "m"), tmp_path / "r.json"
    args = msgspec.json.encode({"planner_profile_data": str(profile)}).decode()
    words = [str(trace), "--trace-format", "dynamo", "--extra-engine-args", args, "--report-json", str(report)]
    main(words)
    assert msgspec.json.decode(report.read_bytes())["ttft_ms"]["mean"] == pytest.approx(17.0, abs=0.01)
    main([*words, "--frontend-ms", "0"])
    assert msgspec.json.decode(report.read_bytes())["ttft_ms"]["mean"] == pytest.approx(10.0, abs=0.01)
    engine, _ = engine_of({"planner_profile_data": str(profile), "block_size": 16})
    assert (engine.block_size, engine.num_gpu_blocks) == (16, 500)


def test_a_profile_of_another_model_is_refused(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = traced(tmp_path / "trace.jsonl", "other")
    args = msgspec.json.encode({"planner_profile_data": str(profile)}).decode()
    with pytest.raises(SystemExit) as stopped:
        main([str(trace), "--trace-format", "dynamo", "--extra-engine-args", args])
    assert stopped.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert f"{trace}:1 asks for 'other', but {profile} is a profile of 'm'" in line

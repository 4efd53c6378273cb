"""`python -m dynamo.replay`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dynamo.replay.__main__ import main

pytestmark = pytest.mark.usefixtures("logging_untouched")
MADE_UP = ("--request-count", "20", "--input-tokens", "256", "--output-tokens", "8", "--arrival-interval-ms", "20")


@pytest.fixture
def logging_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets up logging for its process, which here is that of all tests."""
    monkeypatch.setattr("dynamo.replay.__main__.configure_dynamo_logging", lambda config: None)


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


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "name a trace, or give --request-count, --input-tokens and --output-tokens"),
        (("/no/such/trace",), "there is no trace /no/such/trace"),
        ((*MADE_UP, "--num-workers", "0"), "--num-workers must be at least 1, not 0"),
        ((*MADE_UP, "--incident", "explode@3"), "--incident must be kill:N@SECONDS"),
        ((*MADE_UP, "--incident", "kill:5@0"), "there is no worker 5, only 1"),
        ((*MADE_UP, "--extra-engine-args", '{"nope": 1}'), "unknown mocker argument 'nope'"),
        ((*MADE_UP, "--extra-engine-args", "/no/file"), "--extra-engine-args: "),
        ((*MADE_UP, "--router-config", '{"nope": 1}'), "--router-config: "),
        ((*MADE_UP, "--router-mode", "cleverest"), "--router-mode must be one of"),
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

"""Flags that published manifests of ai-dynamo give: none ends the process, and each is explained once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynamo.frontend.__main__ import parser as frontend_parser
from dynamo.router.__main__ import parser as router_parser
from dynamo.settings import given
from dynamo.settings.foreign import FRONTEND_FLAGS, ROUTER_FLAGS, ForeignFlag
from dynamo.settings.router import RouterSettings
from support.running import running

GUIDE = (Path(__file__).parents[2] / "docs" / "coming-from-ai-dynamo.md").read_text()
PUBLISHED = [
    "--trust-remote-code",
    *("--kv-cache-block-size", "64"),
    *("--dyn-chat-processor", "vllm"),
    *("--model-name", "x"),
    *("--model-path", "/y"),
    *("--dyn-tool-call-parser", "hermes"),
    *("--dyn-reasoning-parser", "qwen3"),
    *("--router-min-initial-workers", "2"),
    *("--router-prefill-load-scale", "1.0"),
]


def test_a_frontend_takes_what_manifests_give_and_says_what_it_means(tmp_path: Path) -> None:
    words = ["-m", "dynamo.frontend", "--http-port", "0", *PUBLISHED, "--router-mode", "kv", "--trust-remote-code"]
    with running(tmp_path, *words, program=[sys.executable]) as process:
        process.line_with("serving on http")
        said = [line for line in process.said if "has no effect here: " in line]
        assert [line.partition("WARN dynamo.settings.foreign: ")[2].split()[0] for line in said] == [
            word for word in PUBLISHED if word.startswith("--")
        ]
        assert process.end() == 0


def test_no_kv_events_is_heeded() -> None:
    settings = RouterSettings.from_env(
        {}, **given(vars(frontend_parser().parse_args(["--no-kv-events"])), RouterSettings)
    )
    assert not settings.use_kv_events


@pytest.mark.parametrize("each", FRONTEND_FLAGS, ids=lambda each: each.flag)
def test_each_is_taken_in_every_form_and_documented(each: ForeignFlag) -> None:
    flag, takes = each.flag, each.takes
    forms = [[flag], [flag, "true"], [f"--no-{flag[2:]}"]] if takes == "bool" else [[flag, "1"], [f"{flag}=1"]]
    for words in forms:
        for parser in (frontend_parser, router_parser) if each in ROUTER_FLAGS else (frontend_parser,):
            needed = ["--endpoint", "a.b.c"] if parser is router_parser else []
            assert vars(parser().parse_args([*needed, *words]))["foreign"] == [flag]
    assert f"`{flag}`" in GUIDE


def test_a_typing_mistake_is_still_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        frontend_parser().parse_args(["--trust-remote-cod"])
    assert "unknown flag '--trust-remote-cod'; did you mean '--trust-remote-code'?" in capsys.readouterr().err

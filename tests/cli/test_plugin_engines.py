"""Engines of other distributions, found by their entry points."""

from __future__ import annotations

from pathlib import Path

from support.running import SOURCE, run

ENGINE = """
from dynamo.engines import EngineEntry

ENTRY = EngineEntry(name="shout", factory="shouting.engine:Shout", takes="text", model_types=("Chat",))
"""
SHOUT = """
from dynamo.engines.base import EngineInfo
from dynamo.protocols.card import ModelInput


class Shout:
    model_input = ModelInput.Text

    def __init__(self, spec):
        self.arguments = spec.arguments

    async def start(self):
        return EngineInfo()

    def generate(self, request, sink):
        text = request["messages"][-1]["content"].upper()
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        sink.item({"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "shout", "choices": [choice]})
        sink.end()
        return self

    def quiet(self):
        return True

    def abort(self):
        pass

    async def close(self):
        pass
"""


def installed(folder: Path, points: str) -> str:
    """A distribution in a folder, as pip would leave it; the PYTHONPATH that finds it."""
    package = folder / "shouting"
    package.mkdir()
    (package / "__init__.py").write_text(ENGINE)
    (package / "engine.py").write_text(SHOUT)
    info = folder / "shouting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dynamo.engines]\n{points}\n")
    return f"{SOURCE}:{folder}"


def test_an_engine_of_another_distribution_answers(tmp_path: Path) -> None:
    path = installed(tmp_path, "shout = shouting:ENTRY")
    done = run(tmp_path, "in=stdin", "out=shout", input="hello", PYTHONPATH=path)
    assert (done.returncode, done.stdout.decode()) == (0, "HELLO\n"), done.stderr.decode()


def test_its_name_is_completed_and_suggested_without_importing_it(tmp_path: Path) -> None:
    path = installed(tmp_path, "shout = no_such_module:ENTRY")
    assert b"trtllm shout pystr:" in run(tmp_path, "--completion", "bash", PYTHONPATH=path).stdout
    wrong = run(tmp_path, "out=shuot", PYTHONPATH=path)
    assert (wrong.returncode, wrong.stderr.decode()) == (
        2,
        "error: unknown output 'out=shuot'; did you mean 'shout'?\n",
    )


def test_an_entry_point_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    path = installed(tmp_path, "shout = no_such_module:ENTRY\nword = shouting:ENGINE_NAME\nbare = shouting:EngineEntry")
    for name, words in (
        ("shout", "No module named 'no_such_module'"),
        ("word", "AttributeError"),
        ("bare", "must be an EngineEntry"),
    ):
        done = run(tmp_path, "in=stdin", f"out={name}", input="hello", PYTHONPATH=path)
        assert done.returncode == 1
        assert done.stderr.decode().startswith(f"error: cannot load the engine '{name}': ")
        assert words in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1


def test_an_entry_point_does_not_replace_an_engine_of_this_build(tmp_path: Path) -> None:
    path = installed(tmp_path, "echo_full = shouting:ENTRY")
    assert run(tmp_path, "in=stdin", "out=echo_full", input="hello", PYTHONPATH=path).stdout == b"hello\n"

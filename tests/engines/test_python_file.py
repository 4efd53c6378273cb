from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.engines.base import Engine, EngineError
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.protocols.card import ModelInput
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, StopConditions
from dynamo.protocols.errors import Cancelled, EngineShutdown, HttpError, InvalidArgument, Unknown
from support.sinks import Kept

EXAMPLES = Path(__file__).parents[2] / "examples" / "engines"
REQUEST = PreprocessedRequest(token_ids=[1, 2, 3], stop_conditions=StopConditions(max_tokens=5), eos_token_ids=[9])


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Files may import their neighbours and read their arguments; the next test must not see either."""
    path, argv, modules = sys.path[:], sys.argv[:], set(sys.modules)
    yield
    assert sys.argv == argv
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("dynamo_engine_") or name == "neighbour":
            del sys.modules[name]


def write(tmp_path: Path, text: str, name: str = "engine.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


async def started(kind: str, path: Path, *arguments: str) -> Engine:
    engine = make_engine(kind, EngineSpec(file=str(path), arguments=list(arguments)))
    await engine.start()
    return engine


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Any]:
    """Start a file of the given text; stopped with the test."""
    engines: list[Engine] = []

    async def start(kind: str, text: str, *arguments: str) -> Engine:
        engine = await started(kind, write(tmp_path, text, f"engine{len(engines)}.py"), *arguments)
        engines.append(engine)
        return engine

    yield start
    for engine in reversed(engines):
        await engine.close()


async def ask(engine: Engine, request: Any = REQUEST) -> Kept:
    kept = Kept()
    engine.generate(request, kept)
    await kept.done
    return kept


async def test_the_pystr_example_says_its_sentence() -> None:
    engine = await started("pystr", EXAMPLES / "pystr_engine.py")
    kept = await ask(engine, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    await engine.close()
    assert engine.model_input is ModelInput.Text
    deltas = [chunk["choices"][0]["delta"]["content"] for chunk in kept.items]
    assert "".join(deltas) == "The capital of France is Paris."
    assert kept.items[-1]["choices"][0]["finish_reason"] == "stop"


async def test_the_pytok_example_gives_its_ids() -> None:
    engine = await started("pytok", EXAMPLES / "pytok_engine.py")
    kept = await ask(engine)
    await engine.close()
    assert engine.model_input is ModelInput.Tokens
    assert kept.ids == [791, 6864, 315, 9822, 374, 12366, 13]
    assert kept.error is None


async def test_a_token_request_is_the_map_of_the_guide(running: Any) -> None:
    engine = await running(
        "pytok",
        "seen = []\nasync def generate(asked):\n    seen.append(asked)\n    yield {'token_ids': asked['token_ids']}",
    )
    kept = await ask(engine)
    assert kept.ids == [1, 2, 3]
    seen = sys.modules["dynamo_engine_engine0"].seen[0]
    assert type(seen) is dict
    assert seen["stop_conditions"]["max_tokens"] == 5
    assert seen["sampling_options"]["temperature"] is None
    assert seen["eos_token_ids"] == [9]
    assert {"mdc_sum", "annotations"} <= seen.keys()


async def test_token_maps_may_say_more_than_ids(running: Any) -> None:
    engine = await running(
        "pytok",
        """
async def generate(request):
    empty = {"tokens": None, "text": None, "cum_log_probs": None, "log_probs": None, "finish_reason": None}
    yield {"token_ids": [7], **empty}
    yield {"token_ids": [8], "log_probs": [-0.5]}
    yield {"token_ids": [], "text": " exact"}
    yield {"token_ids": [9], "finish_reason": "length", "completion_usage": {"prompt_tokens": 3}}
""",
    )
    kept = await ask(engine)
    assert kept.ids == [7, 8, 9]
    assert [type(item) for item in kept.items] == [EngineOutput] * 3
    assert (kept.items[0].log_probs, kept.items[1].text, kept.last.finish_reason) == ([-0.5], " exact", "length")


async def test_a_context_is_given_to_those_who_ask_for_it(running: Any) -> None:
    engine = await running(
        "pystr",
        "async def generate(request, context):\n    yield {'id': context.id(), 'on': not context.is_stopped()}",
    )
    kept = await ask(engine, {})
    assert kept.items[0]["on"] is True


async def test_arguments_after_the_dashes_are_the_files_own(running: Any, tmp_path: Path) -> None:
    engine = await running(
        "pystr",
        """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--word")
options = parser.parse_args()
given = []
async def initialize(args):
    given.extend(args)
async def generate(request):
    yield {"word": options.word, "argv": sys.argv, "given": given}
""",
        "--word",
        "hello",
    )
    kept = await ask(engine, {})
    assert kept.items == [
        {"word": "hello", "argv": [str(tmp_path / "engine0.py"), "--word", "hello"], "given": ["--word", "hello"]}
    ]


async def test_the_file_is_loaded_once_and_can_import_its_neighbours(running: Any, tmp_path: Path) -> None:
    write(tmp_path, "loads = []", "neighbour.py")
    engine = await running(
        "pystr",
        "import neighbour\nneighbour.loads.append(1)\nasync def generate(request):\n    yield {'n': neighbour.loads}",
    )
    assert [(await ask(engine, {})).items for _ in range(2)] == [[{"n": [1]}]] * 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("async def generate(request):\n    yield {\n", r"engine\.py:2: SyntaxError: '\{' was never closed"),
        ("x = 1\n  y = 2\n", r"engine\.py:2: IndentationError: unexpected indent"),
        ("import os\nimport nothing_like_this\n", r"engine\.py:2: ModuleNotFoundError: No module named 'nothing_like"),
        ("\n\nraise RuntimeError('two\\nlines')\n", r"engine\.py:3: RuntimeError: two lines"),
        ("import sys\nsys.exit(3)\n", r"engine\.py:2: the file exited with status 3"),
        ("x = 1\n", r"engine\.py:1: it has no `generate`"),
        ("\ndef generate(request):\n    yield {}\n", r"engine\.py:2: `generate` is not async"),
        ("generate = 1\n", r"engine\.py:1: `generate` is not async"),
        ("\n\nasync def generate():\n    yield {}\n", r"engine\.py:3: `generate` must take \(request\)"),
        (
            "async def initialize(args):\n    int('x')\nasync def generate(request):\n    yield {}\n",
            r"engine\.py:2: ValueError: invalid literal",
        ),
        (
            "def initialize(args):\n    raise SystemExit(2)\nasync def generate(request):\n    yield {}\n",
            r"engine\.py:2: the file exited with status 2",
        ),
    ],
)
async def test_a_mistake_in_the_file_is_reported_with_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(EngineError, match=complaint) as raised:
        await started("pystr", path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["pystr", "pytok", "echo_core", "echo_full"])
def test_settings_for_an_engine_that_has_none_are_refused(name: str) -> None:
    with pytest.raises(EngineError, match=f"--extra-engine-args changes nothing: the engine '{name}' has no settings"):
        make_engine(name, EngineSpec(file=__file__, extra_engine_args={"max_num_seqs": 4}))


@pytest.mark.parametrize("kind", ["pystr", "pytok"])
def test_a_file_is_needed_and_must_be_there(kind: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=f"out={kind}:FILE"):
        make_engine(kind, EngineSpec())
    with pytest.raises(EngineError, match=f"out={kind}: no such file: .*missing"):
        make_engine(kind, EngineSpec(file=str(tmp_path / "missing.py")))


async def test_an_exception_fails_its_own_request_only(running: Any) -> None:
    engine = await running(
        "pytok",
        """
from dynamo.protocols.errors import HttpError
async def generate(request):
    yield {"token_ids": [1]}
    if request["model"] == "value":
        raise ValueError("bad value")
    if request["model"] == "http":
        raise HttpError(429, "slow down")
    if request["model"] == "any":
        raise KeyError("oops")
    yield {"token_ids": [2]}
""",
    )
    for model, error, message in (
        ("value", InvalidArgument, "bad value"),
        ("http", HttpError, "slow down"),
        ("any", Unknown, "KeyError: 'oops'"),
    ):
        kept = await ask(engine, PreprocessedRequest(token_ids=[1], model=model))
        assert type(kept.error) is error
        assert kept.error.message == message
        assert kept.ids == [1]
    assert (await ask(engine)).ids == [1, 2]


@pytest.mark.parametrize(
    ("kind", "yielded", "complaint"),
    [
        ("pystr", "'text'", "must yield maps, not str"),
        ("pystr", "None", "must yield maps, not NoneType"),
        ("pytok", "[1]", "must yield maps, not list"),
        ("pytok", "{'token_ids': ['a']}", "invalid token_ids"),
        ("pytok", "{'token_ids': [-1]}", "invalid token_ids"),
        ("pytok", "{'token_ids': 'abc'}", "token_ids"),
        ("pytok", "{'token_ids': [1], 'finish_reason': 7}", "finish_reason"),
    ],
)
async def test_what_is_no_answer_is_the_engines_fault(running: Any, kind: str, yielded: str, complaint: str) -> None:
    engine = await running(kind, f"async def generate(request):\n    yield {yielded}")
    kept = await ask(engine)
    assert type(kept.error) is Unknown
    assert complaint in kept.error.message


@pytest.mark.parametrize("signature", ["request", "request, context"])
async def test_cancelling_ends_the_generator(running: Any, signature: str) -> None:
    engine = await running(
        "pytok",
        f"""
import asyncio
closed = asyncio.Event()
async def generate({signature}):
    try:
        while True:
            yield {{"token_ids": [1]}}
            await asyncio.sleep(0)
    finally:
        closed.set()
""",
    )
    begun = asyncio.Event()
    kept = Kept(on_tokens=begun.set)
    request = engine.generate(REQUEST, kept)
    await begun.wait()
    assert not engine.quiet()
    request.abort()
    await kept.done
    assert engine.quiet()
    await sys.modules["dynamo_engine_engine0"].closed.wait()
    assert kept.error is None or isinstance(kept.error, Cancelled)


async def test_stopping_fails_what_runs_so_that_it_can_go_elsewhere(tmp_path: Path) -> None:
    text = "import asyncio\nasync def generate(request):\n    yield {'token_ids': [1]}\n    await asyncio.sleep(3600)"
    engine = await started("pytok", write(tmp_path, text))
    begun = asyncio.Event()
    kept = Kept(on_tokens=begun.set)
    engine.generate(REQUEST, kept)
    await begun.wait()
    await engine.close()
    await engine.close()
    assert isinstance(kept.error, EngineShutdown)
    late = await ask(engine)
    assert isinstance(late.error, EngineShutdown)

"""What docs/coming-from-ai-dynamo.md and the messages about missing names say is tried."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import dynamo.llm
import dynamo.runtime
from dynamo.compat.missing_names import ABSENT
from dynamo.engines.mocker import MockerArgs
from dynamo.frontend.__main__ import parser
from dynamo.frontend.config import FrontendConfig
from dynamo.llm import KvRouterConfig, ModelRuntimeConfig, ModelType, register_llm
from dynamo.pipeline.parse import reasoning_formats, tool_formats
from dynamo.protocols.errors import InvalidArgument
from dynamo.runtime import Context, DistributedRuntime, Endpoint
from dynamo.runtime.discovery.etcd import EtcdConfig
from dynamo.settings import options
from dynamo.settings.worker import StepTraceSettings, WorkerSettings
from support.toys import Live, Scripted, toy_card, toy_folder

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-ai-dynamo.md").read_text()
CHAT: dict[str, Any] = {"model": "org/toy", "messages": [{"role": "user", "content": "STOPS"}]}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def cells(text: str, column: int) -> str:
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return "\n".join(row[column].strip("| ") for row in rows if len(row) > column)


def names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


FLAGS = [flag for flag in names(cells(section("Flags that are not here"), 0)) if flag.startswith("--")]
NOT_FOUND = re.findall(r"`(GET|POST) (/\S+)`", cells(section("Requests that differ"), 0))
MISSING_METRICS = names(cells(section("Metrics").partition("Missing, as")[2], 0))
LIBRARY = section("The library").partition("### Its own tests")[0]


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with Live() as frontend:
        await frontend.serve(Scripted().generate, toy_card(toy_folder(tmp_path / "toy"), "org/toy"))
        yield frontend


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_that_is_listed_as_not_there_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([flag.replace("*", "x"), "x"])
    assert ended.value.code == 2
    assert "unknown flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    "instead", [flag for flag in names(cells(section("Flags that are not here"), 1)) if flag.startswith("--")]
)
def test_a_flag_that_is_listed_as_its_replacement_is_taken(instead: str) -> None:
    known = {word for action in parser()._actions for word in action.option_strings}
    assert {word for word in instead.split() if word.startswith("--")} <= known


def test_choices_that_are_listed_as_refused_are() -> None:
    text = section("Flags that are not here")
    assert "`--router-mode device-aware-weighted`" in text
    with pytest.raises(ValueError, match="device-aware-weighted"):
        FrontendConfig.from_env({}, router_mode="device-aware-weighted")


@pytest.mark.parametrize("argument", [{"engine_type": "sglang"}, {"engine_type": "trtllm"}, {"aic_system": "h200"}])
def test_the_mocker_refuses_to_imitate_others(argument: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        MockerArgs.from_json(argument)


def test_the_defaults_are_those_of_the_table() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section("Defaults that differ"), re.MULTILINE))
    config = FrontendConfig.from_env({})
    assert rows["address and port of the frontend"] == f"`{config.host}:{config.port}`"
    assert rows["status when all workers are busy"].startswith(str(config.overload_status_code))
    assert rows["graceful shutdown of the frontend"] == f"{config.graceful_shutdown_timeout:.0f} s"
    assert rows["limit of open files asked for"] == str(config.open_files)
    etcd = EtcdConfig.from_env({"ETCD_ENDPOINTS": "http://127.0.0.1:2379"})
    assert rows["lease in etcd"] == f"{etcd.lease_ttl} s"
    assert f"below `{etcd.prefix}`" in section("The two do not mix").replace("\n", " ")
    assert rows["mocker: blocks kept free (`--watermark`)"] == str(MockerArgs().watermark)


@pytest.mark.parametrize(("method", "path"), NOT_FOUND)
async def test_a_route_that_is_listed_as_404_is(live: Live, method: str, path: str) -> None:
    async with live.http.request(method, path.replace("{id}", "toy"), json={}) as response:
        assert response.status == 404


async def test_files_and_batches_are_there(live: Live) -> None:
    for path in re.findall(r"`(/v1/\w+)`", section("Requests that differ").partition("Files and batches")[2]):
        assert (await live.get(path))["data"] == []


async def test_fields_that_are_listed_as_ignored_are_named_in_the_header(live: Live) -> None:
    text = section("Requests that differ").partition("That goes for")[2].partition(".\n")[0]
    fields = [name for name in names(text) if not name.startswith(("x-", "--"))]
    assert len(fields) == 4
    for field in fields:
        outer, _, inner = field.partition(".")
        extra = {outer: {inner: "x"}} if inner else {outer: "x"}
        async with live.http.post("/v1/chat/completions", json={**CHAT, **extra}) as response:
            assert response.status == 200
            assert response.headers["x-dynamo-warning"] == f"ignored unknown fields: {field}"


async def test_what_is_listed_as_refused_with_400_is(live: Live) -> None:
    refused = names(cells(section("Requests that differ").partition("| refused with 400")[2].partition("| 404")[0], 0))
    annotation, _, *fields = refused
    assert len(fields) == 4
    bodies: list[dict[str, Any]] = [{"nvext": {"annotations": [annotation]}}]
    bodies += [{"nvext": {"extra_fields": [field]}} for field in fields]
    for part in (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}},
    ):
        bodies.append({"messages": [{"role": "user", "content": [part]}]})
    for body in bodies:
        assert (await live.post("/v1/chat/completions", {**CHAT, **body}))[0] == 400, body


async def test_a_metric_that_is_listed_as_missing_is_not_there(live: Live) -> None:
    assert (await live.post("/v1/chat/completions", CHAT))[0] == 200
    found = "\n".join(await live.metrics())
    assert "dynamo_frontend_requests_total" in found
    stem = ""
    for name in MISSING_METRICS:
        if name.startswith("dynamo_"):
            stem = re.match(r"dynamo_[a-z]+_", name)[0]  # type: ignore[index]
        whole = name if name.startswith("dynamo_") else stem + name.lstrip("_")
        several = re.sub(r"\{([\w, ]+)\}", lambda match: f"({'|'.join(match[1].split(', '))})", whole)
        assert not re.search(several.replace("*", ".*").replace("{", "{[^}]*"), found), name


def library_names(column: int) -> list[str]:
    return [name for name in names(cells(LIBRARY, column)) if re.fullmatch(r"[\w.]+", name)]


@pytest.mark.parametrize("name", ["Endpoint.metrics", "ModelType.Empty", "Descriptor.register_with_connector"])
def test_an_attribute_that_is_listed_as_not_there_is_absent(name: str) -> None:
    assert name in library_names(1)
    owner, _, attribute = name.partition(".")
    home: Any = {"Endpoint": Endpoint, "ModelType": ModelType}.get(owner) or importlib.import_module(
        "dynamo.nixl_connect"
    )
    assert not hasattr(getattr(home, owner, home), attribute)


def test_no_name_that_is_listed_as_not_there_is_there() -> None:
    there = {*dynamo.llm.__all__, *dynamo.runtime.__all__, *dynamo.llm._EMBEDDED}
    for owner in (DistributedRuntime, Endpoint, Context):
        there |= {name for name in dir(owner) if not name.startswith("_")}
    listed = set(library_names(1))
    assert len(listed) > 30
    assert listed & there == set()
    modules = [name for name in listed if name.startswith("dynamo.") and "." in name]
    modules += [f"dynamo.common.{name}" for name in names(cells(LIBRARY, 1).splitlines()[-1]) if name != "utils"]
    assert [name for name in modules if found(name)] == []


def found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def test_every_name_that_is_listed_as_there_is() -> None:
    modules = [name for name in library_names(0) if name.startswith("dynamo.")]
    homes = [importlib.import_module(name) for name in [*modules, "dynamo._core", "dynamo.nixl_connect"]]
    for name in library_names(0):
        if not name.startswith(("dynamo.", "unregister_…", "fetch_…")):
            inside = any(hasattr(home, name) for home in homes if home.__name__ != "dynamo.common")
            assert inside or found(f"dynamo.common.{name.removesuffix('.DisaggregationMode')}"), name


async def test_options_that_are_listed_as_not_there_are_refused_by_name() -> None:
    refused = names(LIBRARY.partition("options ")[2].partition(";")[0])
    assert len(refused) == 8
    for option in refused:
        with pytest.raises(TypeError, match=f"does not know the option '{option}'"):
            await register_llm(**{option: 1})


def test_fields_of_the_runtime_config_that_nothing_reads_are_fields() -> None:
    text = LIBRARY.partition("nothing here reads:")[2].partition(". A program")[0]
    assert len(names(text)) == 14
    assert set(names(text)) <= set(ModelRuntimeConfig.__struct_fields__)


def test_formats_that_are_listed_as_not_there_are_not() -> None:
    text = section("Engines").replace("\n", " ")
    tools = names(text.partition("Tool call formats not there:")[2].partition(".")[0])
    thoughts = names(text.partition("Reasoning formats not there:")[2].partition(".")[0])
    assert (len(tools), len(thoughts)) == (2, 3)
    assert set(tools) & set(tool_formats()) == set()
    assert set(thoughts) & set(reasoning_formats()) == set()


FLAGS_OF_WORKERS = {
    word for table in (WorkerSettings, StepTraceSettings) for option in options(table) for word in option.flags
}
HOMES = [
    importlib.import_module(name)
    for name in ("dynamo.llm", "dynamo.runtime", "dynamo.nixl_connect", "dynamo.planner.act")
]
OPTIONS = {*KvRouterConfig.__struct_fields__, *MockerArgs.__struct_fields__}
CLASS = r"\b(?:[A-Z]\w*[a-z][A-Z]\w*|Client|Connector)\b(?:\.\w+)?"
FUNCTION = r"(?<![\w.])[a-z]+(?:_[a-z]+)+\b"


@pytest.mark.parametrize(("name", "instead"), ABSENT.items())
def test_what_to_use_instead_of_an_absent_name_is_there(name: str, instead: str) -> None:
    for module in re.findall(r"(?:python -m |of |from )(dynamo[\w.]+)", instead):
        assert found(module)
    for flag in re.findall(r"--[\w-]+", instead):
        assert flag in FLAGS_OF_WORKERS
    for function in re.findall(FUNCTION, instead):
        assert hasattr(Endpoint, function) or hasattr(dynamo.llm, function) or function in OPTIONS, function
    for word in re.findall(CLASS, instead):
        owner, _, attribute = word.partition(".")
        (there, *_) = [getattr(home, owner) for home in HOMES if hasattr(home, owner)]
        assert not attribute or hasattr(there, attribute)
    if "import it from" in instead:
        assert hasattr(importlib.import_module(instead.rpartition(" ")[2]), name)

"""The flags of workers and what they refuse; nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec, check_names, make_engine
from dynamo.model import HubConfig, ModelError, bundled
from dynamo.protocols.card import ModelType, WorkerType
from dynamo.settings import given
from dynamo.settings.worker import WorkerSettings
from dynamo.worker.config import asked_types, check, engine_spec
from dynamo.worker.main import Place, parse
from dynamo.worker.model import find_model


def settings(*words: str, environ: dict[str, str] | None = None) -> tuple[WorkerSettings, dict[str, Any], list[str]]:
    flags, rest = parse("python -m dynamo.x", words)
    return WorkerSettings.from_env(environ or {}, **given(flags, WorkerSettings)), flags, rest


def test_flags_that_are_not_the_workers_go_to_the_engine_unchanged_and_in_order() -> None:
    words = ("--model", "m", "--max-num-seqs", "8", "--namespace=ns", "--enforce-eager", "--x=-1", "-tp", "2", "-v")
    found, _, rest = settings(*words, "--", "--model", "other")
    assert (found.model_path, found.namespace) == ("m", "ns")
    assert rest == ["--max-num-seqs", "8", "--enforce-eager", "--x=-1", "-tp", "2", "--model", "other"]


@pytest.mark.parametrize(
    ("words", "model", "name"),
    [
        (("Qwen/Qwen3-4B",), "Qwen/Qwen3-4B", None),
        (("--model", "a", "--served-model-name", "b"), "a", "b"),
        (("--model-path", "a", "--model-name", "b"), "a", "b"),
        (("a", "--model", "a"), "a", None),
    ],
)
def test_the_model_and_its_name_have_the_names_of_every_engine(
    words: tuple[str, ...], model: str, name: str | None
) -> None:
    found = settings(*words)[0]
    assert (found.model_path, found.model_name) == (model, name)


def test_a_model_that_is_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings("a", "--model", "b")
    assert ended.value.code == 2
    assert "the model is given twice: a and --model b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "environ", "place"),
    [
        ((), {}, "dyn://dynamo.backend.generate"),
        (("--endpoint", "dyn://a.b.c"), {}, "dyn://a.b.c"),
        (("--endpoint", "a.b.c"), {"DYN_NAMESPACE": "other"}, "dyn://a.b.c"),
        (("--endpoint", "c"), {"DYN_NAMESPACE": "a"}, "dyn://a.backend.c"),
        (("--namespace", "a", "--component", "b"), {"DYN_NAMESPACE": "other"}, "dyn://a.b.generate"),
    ],
)
def test_where_a_worker_serves(words: tuple[str, ...], environ: dict[str, str], place: str) -> None:
    found, flags, _ = settings(*words, environ=environ)
    assert str(Place(found, flags)(WorkerType.Aggregated)) == place


def test_a_prefill_worker_has_a_component_of_its_own_unless_it_is_named() -> None:
    found, flags, _ = settings()
    assert Place(found, flags)(WorkerType.Prefill).component == "prefill"
    found, flags, _ = settings("--component", "b")
    assert Place(found, flags)(WorkerType.Prefill).component == "b"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--endpoint", "a.b.c", "--namespace", "x"), "--namespace says x, --endpoint says a: give one"),
        (("--endpoint", "a.b"), "namespace.component.endpoint"),
        (("--component", "b c"), "component 'b c' is not a valid name"),
    ],
)
def test_an_endpoint_that_contradicts_itself_is_refused(words: tuple[str, ...], said: str) -> None:
    found, flags, _ = settings(*words)
    with pytest.raises(ValueError, match=said):
        Place(found, flags)


def test_endpoint_types_are_a_list_of_names() -> None:
    found = settings("--dyn-endpoint-types", "chat,completions")[0]
    assert asked_types(engine_spec(found)) == ModelType.Chat | ModelType.Completions
    with pytest.raises(ValueError, match="unknown type 'chatt'; did you mean 'chat'"):
        check(engine_spec(settings("--dyn-endpoint-types", "chatt")[0]))


def test_an_unknown_parser_is_refused_before_anything_is_loaded() -> None:
    found = settings("--dyn-tool-call-parser", "hermez")[0]
    with pytest.raises(ValueError, match="--dyn-tool-call-parser: unknown format 'hermez'; did you mean 'hermes'"):
        check(engine_spec(found, engine="mocker"))


@pytest.mark.parametrize(
    ("spec", "flag"),
    [
        (EngineSpec(tensor_parallel_size=2), "--tensor-parallel-size"),
        (EngineSpec(num_nodes=2, leader_addr="a:1"), "--num-nodes"),
        (EngineSpec(base_gpu_id=1), "--base-gpu-id"),
    ],
)
def test_an_engine_on_one_device_refuses_several(spec: EngineSpec, flag: str) -> None:
    with pytest.raises(EngineError, match=f"the engine 'echo_core' cannot follow {flag}"):
        make_engine("echo_core", spec)


@pytest.mark.parametrize("engine", ["echo_core", "mocker", "mistralrs"])
def test_an_engine_that_guesses_no_tokens_refuses_a_draft_model(engine: str) -> None:
    with pytest.raises(EngineError, match=f"the engine '{engine}' cannot follow --draft-model: .*vllm.*sglang can"):
        make_engine(engine, EngineSpec(draft_model_path="ngram"))


def test_a_number_of_guessed_tokens_needs_something_that_guesses() -> None:
    with pytest.raises(EngineError, match="--draft-tokens needs --draft-model MODEL, or --draft-model ngram"):
        make_engine("echo_core", EngineSpec(draft_tokens=3))


def test_a_draft_model_that_cannot_be_found_is_named_with_its_flag(tmp_path: Path) -> None:
    spec = EngineSpec(engine="llamacpp", model_path="tiny", draft_model_path=str(tmp_path / "none.gguf"))
    with pytest.raises(ModelError, match=r"--draft-model: .*none\.gguf"):
        find_model(spec, HubConfig(cache=tmp_path, offline=True), weights=False)


def test_a_draft_model_is_found_beside_the_model(tmp_path: Path) -> None:
    hub = HubConfig(cache=tmp_path, offline=True)
    spec = EngineSpec(engine="llamacpp", model_path="tiny", draft_model_path=str(bundled()))
    found = find_model(spec, hub, weights=True)
    assert found.draft is not None
    assert found.draft.path == bundled()
    assert find_model(structs.replace(spec, draft_model_path="ngram"), hub, weights=True).draft is None


def test_a_version_that_lacks_a_name_is_refused_with_those_known_to_work(caplog: pytest.LogCaptureFixture) -> None:
    assert check_names("msgspec", ["msgspec", "msgspec:Struct", "msgspec.json:Decoder.decode"], ("0", "1"))
    with pytest.raises(EngineError, match=r"msgspec [\d.]+ has no msgspec.json.Decoder.nope .*work: msgspec 7 and 8"):
        check_names("msgspec", ["msgspec.json:Decoder.nope"], ("7", "8"))
    with pytest.raises(ImportError, match="the package 'no-such' is not installed"):
        check_names("no-such", [], ())
    check_names("msgspec", [], ("7",))
    assert "was not tried with this build; known to work: 7" in caplog.text

"""Is the stand-in still like SGLang? The real wheel is downloaded and its source compared; nothing of it is run."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
import zipfile
from array import array
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.server_args import ALIASES, ServerArgs

from dynamo.engines.sglang import KNOWN, NAMES
from dynamo.engines.sglang.options import _AS_THEY_ARE, _GUIDES
from dynamo.engines.sglang.scheduler import slim
from dynamo.engines.sglang.steps import READ

Function = ast.FunctionDef | ast.AsyncFunctionDef


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The newest version."""
    return fetched(tmp_path_factory.mktemp("sglang"), KNOWN[-1])


@pytest.fixture(scope="session", params=KNOWN)
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return fetched(tmp_path_factory.mktemp("sglang"), request.param)


def fetched(folder: Path, version: str) -> zipfile.ZipFile:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--python-version=3.11", "--platform=manylinux_2_34_x86_64", f"--dest={folder}",
               f"sglang=={version}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"SGLang's wheel cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
    return zipfile.ZipFile(next(Path(folder).glob("*.whl")))


@cache
def tree(wheel: zipfile.ZipFile, path: str) -> ast.Module:
    return ast.parse(wheel.read(path))


def definition(wheel: zipfile.ZipFile, path: str, name: str) -> ast.ClassDef:
    return next(node for node in tree(wheel, path).body if isinstance(node, ast.ClassDef) and node.name == name)


def method(wheel: zipfile.ZipFile, path: str, owner: str, name: str) -> Function:
    found = [
        node
        for node in definition(wheel, path, owner).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    assert found, f"{owner} has no {name}"
    return found[0]


def parameters(function: Function) -> list[tuple[str, str | None]]:
    """Each parameter with its default."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + [ast.unparse(node) for node in given.defaults]
    named = [None if node is None else ast.unparse(node) for node in given.kw_defaults]
    pairs = [*zip(positional, defaults, strict=True), *zip(given.kwonlyargs, named, strict=True)]
    return [(argument.arg, default) for argument, default in pairs]


def own(function: object) -> list[tuple[str, str | None]]:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    return [
        (name, None if each.default is inspect.Parameter.empty else repr(each.default).replace("''", "''"))
        for name, each in signature.parameters.items()
    ]


def fields(wheel: zipfile.ZipFile) -> Iterator[tuple[str, str | None, str]]:
    """Every argument of SGLang: its name, its default and how it is declared."""
    for path in wheel.namelist():
        if path.startswith("sglang/srt/arg_groups/fields/") and path.endswith(".py"):
            for node in ast.walk(tree(wheel, path)):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    default = None if node.value is None else ast.unparse(node.value)
                    yield node.target.id, default, ast.unparse(node.annotation)


ENGINE = "sglang/srt/entrypoints/engine.py"
MANAGER = "sglang/srt/managers/tokenizer_manager.py"
CONTROL = "sglang/srt/managers/tokenizer_control_mixin.py"


@pytest.mark.parametrize(
    ("path", "owner", "standing_in"),
    [
        (ENGINE, "Engine", Engine.async_generate),
        (ENGINE, "Engine", Engine.get_all_child_pids),
        (ENGINE, "Engine", Engine.shutdown),
        (MANAGER, "TokenizerManager", TokenizerManager.abort_request),
        (MANAGER, "TokenizerManager", TokenizerManager.auto_create_handle_loop),
        (MANAGER, "TokenizerManager", TokenizerManager.generate_request),
        (CONTROL, "TokenizerControlMixin", TokenizerManager.flush_cache),
        (CONTROL, "TokenizerControlMixin", TokenizerManager.get_loads),
    ],
    ids=lambda each: getattr(each, "__name__", None) or "",
)
def test_the_methods_have_the_published_parameters(
    wheel: zipfile.ZipFile, path: str, owner: str, standing_in: object
) -> None:
    real = method(wheel, path, owner, standing_in.__name__)  # type: ignore[attr-defined]
    assert own(standing_in) == parameters(real)


def test_the_arguments_have_the_published_names_and_defaults(wheel: zipfile.ZipFile) -> None:
    real = {name: (default, declared) for name, default, declared in fields(wheel)}
    for field in dataclasses.fields(ServerArgs):
        default, declared = real[field.name]
        if field.default is not dataclasses.MISSING:
            assert default == repr(field.default).replace('"', "'"), field.name
        for alias in ALIASES.get(field.name, ()):
            assert f"'{alias}'" in declared


def test_sglang_has_every_name_that_the_engine_checks_for(known: zipfile.ZipFile) -> None:
    everything = {**dict.fromkeys((ENGINE, MANAGER, CONTROL, "sglang/srt/server_args.py"))}
    defined = {
        node.name
        for path in everything
        for node in ast.walk(tree(known, path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    for name in NAMES:
        assert set(name.partition(":")[2].split(".")) <= defined


def test_the_steps_of_the_scheduler_can_be_read(known: zipfile.ZipFile) -> None:
    """They come to the address of the detokenizer, which a subclass leaves out, and pass one method of the manager."""
    path = "sglang/srt/managers/io_struct.py"
    fields = {
        node.target.id
        for owner in ("BaseBatchReq", "BatchTokenIDOutput")
        for node in definition(known, path, owner).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert fields >= READ
    launch = method(known, ENGINE, "Engine", "_launch_detokenizer_subprocesses")
    assert [name for name, _ in parameters(launch)] == [
        "cls", "server_args", "port_args", "run_detokenizer_process_func",
    ]  # fmt: skip
    engine, manager = known.read(ENGINE).decode(), known.read(MANAGER).decode()
    channels = known.read("sglang/srt/managers/scheduler_components/ipc_channels.py").decode()
    streamer = known.read("sglang/srt/managers/scheduler_components/output_streamer.py").decode()
    assert "cls._launch_detokenizer_subprocesses(" in engine
    assert "init_tokenizer_manager_func=self.init_tokenizer_manager_func" in engine
    assert "zmq.PULL, port_args.tokenizer_ipc_name, True" in manager
    assert "self.recv_from_detokenizer = get_zmq_socket(" in manager
    assert "await self._handle_batch_output(recv_obj)" in manager
    assert "zmq.PUSH, port_args.detokenizer_ipc_name, False" in channels
    assert "self.output_ids.append(output_ids_[send_token_offset:])" in streamer


class Request:
    """What SGLang's scheduler has for one request; it answers nothing to what no test cares for."""

    def __init__(self, rid: str, length: int) -> None:
        self.rid = rid
        self.stream = True
        self.length = length
        self.origin_input_ids = [5, 6, 7]
        self.output_ids = array("q")
        self.send_token_offset = 0
        self.cached_tokens = 2
        self.finished_output = False
        self.finished_reason: Any = None
        self.finished_len: int | None = None
        self.spec_verify_ct = self.spec_num_correct_drafts = 1
        self.sampling_params = SimpleNamespace(stream_interval=None, skip_special_tokens=True, no_stop_trim=True,
                                               spaces_between_special_tokens=True)  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return {"get_mm_token_counts": lambda: (0, 0, 0), "check_match_stop_str_prefix": lambda: False}.get(name)

    def step(self) -> None:
        self.output_ids.append(100 + len(self.output_ids))
        if len(self.output_ids) == self.length:
            self.finished_reason = SimpleNamespace(to_json=lambda: {"type": "length", "length": self.length})

    def finished(self) -> bool:
        return self.finished_reason is not None

    def init_incremental_detokenize(self) -> tuple[list[int], int]:
        return [*self.origin_input_ids, *self.output_ids], 0

    @property
    def output_ids_through_stop(self) -> array[int]:
        return self.output_ids


def test_a_slim_scheduler_sends_all_that_is_read_and_no_more(known: zipfile.ZipFile) -> None:
    """The class that gathers outputs is the published one; only what it calls stands in."""
    path, name = "sglang/srt/managers/scheduler_components/output_streamer.py", "_GenerationStreamAccumulator"
    future = ast.parse("from __future__ import annotations").body
    module = ast.fix_missing_locations(ast.Module([*future, definition(known, path, name)], []))
    names: dict[str, Any] = {
        "dataclass": dataclasses.dataclass, "field": dataclasses.field, "BatchTokenIDOutput": SimpleNamespace,
        "wrap_as_pickle": lambda each: ("pickled", each), "compute_weight_version_spans": lambda *_, **__: None,
        "DisaggregationMode": SimpleNamespace(DECODE="decode"),
    }  # fmt: skip
    exec(compile(module, path, "exec"), names)
    spec, missing = SimpleNamespace(is_none=lambda: False), dataclasses.MISSING
    given = {
        field.name: {"spec_algorithm": spec, "default_stream_interval": 1}.get(field.name)
        for field in dataclasses.fields(names[name])
        if field.default is missing and field.default_factory is missing
    }
    given |= {"return_logprob": False, "get_cached_tokens_details": lambda _: None}

    def steps(gathers: Any) -> list[Any]:
        requests = [Request("a", 2), Request("b", 4)]
        sent = []
        for _ in range(4):
            gathered = gathers(**given)
            for request in requests:
                if not request.finished():
                    request.step()
                    gathered.accept(req=request)
            sent.append(gathered.to_payload(dp_rank=0, is_idle_batch=False))
        return sent

    whole, short = steps(names[name]), steps(slim(names[name]))
    for all_of_it, what_is_read in zip(whole, short, strict=True):
        assert {name: getattr(what_is_read, name) for name in READ} == {name: getattr(all_of_it, name) for name in READ}
        assert all_of_it.decode_ids
        assert not what_is_read.decode_ids
        assert what_is_read.time_stats == ("pickled", [])
    engine = known.read(ENGINE).decode()
    assert "run_scheduler_process_func=self.run_scheduler_process_func" in engine
    assert "_GenerationStreamAccumulator(" in known.read(path).decode()


def test_sampling_parameters_have_the_names_that_are_sent(known: zipfile.ZipFile) -> None:
    params = definition(known, "sglang/srt/sampling/sampling_params.py", "SamplingParams")
    names = {
        node.target.id for node in params.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    sent = {"max_new_tokens", "min_new_tokens", "top_k", "sampling_seed", "logit_bias", "ignore_eos", "stop_token_ids"}
    assert sent | set(_AS_THEY_ARE) | set(_GUIDES.values()) <= names


@pytest.mark.parametrize(
    ("path", "owner", "names"),
    [
        ("sglang/srt/disaggregation/kv_events.py", "KVEventsConfig",
         {"publisher", "endpoint", "replay_endpoint", "topic", "format"}),
        ("sglang/srt/disaggregation/kv_events.py", "BlockStored",
         {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "cache_salt"}),
        ("sglang/srt/disaggregation/kv_events.py", "BlockRemoved", {"block_hashes", "medium"}),
        ("sglang/srt/managers/load_snapshot.py", "LoadSnapshot",
         {"dp_rank", "num_used_tokens", "num_waiting_uncached_tokens", "max_total_num_tokens"}),
    ],
    ids=lambda each: each if isinstance(each, str) and "/" not in each else "",
)  # fmt: skip
def test_records_have_the_fields_that_are_read(wheel: zipfile.ZipFile, path: str, owner: str, names: set[str]) -> None:
    body = definition(wheel, path, owner).body
    assert names <= {
        node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def test_answers_have_the_keys_that_are_read(known: zipfile.ZipFile) -> None:
    keys = {
        "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "output_ids", "meta_info",
        "output_token_logprobs", "output_top_logprobs", "input_token_logprobs", "input_top_logprobs",
    }  # fmt: skip
    texts = {node.value for node in ast.walk(tree(known, MANAGER)) if isinstance(node, ast.Constant)}
    assert keys <= texts
    reasons = {
        node.value
        for node in ast.walk(tree(known, "sglang/srt/managers/schedule_batch.py"))
        if isinstance(node, ast.Constant)
    }
    assert {"type", "stop", "length", "abort", "matched", "message", "status_code"} <= reasons


def test_the_processes_behave_as_the_engine_expects(wheel: zipfile.ZipFile) -> None:
    """They die with the thread that started them, report a death by SIGQUIT, and ranks have sockets of their own."""
    common = wheel.read("sglang/srt/utils/common.py").decode()
    watchdog = wheel.read("sglang/srt/utils/watchdog.py").decode()
    events = wheel.read("sglang/srt/disaggregation/kv_events.py").decode()
    engine = wheel.read(ENGINE).decode()
    assert "PR_SET_PDEATHSIG" in common
    assert "os.kill(os.getpid(), signal.SIGQUIT)" in watchdog
    assert '"inproc" in endpoint' in events
    assert "_dp{data_parallel_rank}" in events
    assert "SGLANG_BLOCK_NONZERO_RANK_CHILDREN" in engine
    assert "self._scheduler_init_result = scheduler_init_result" in engine

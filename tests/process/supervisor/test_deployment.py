from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.supervisor import DeploymentError, parse_deployment


def test_flags_become_words_and_frontends_start_last() -> None:
    deployment = parse_deployment("""
      env: {DYN_LOG: debug, DYN_X: true}
      components:
        frontend:
        worker:
          kind: llamacpp
          replicas: 2
          flags: {model: tiny, disable_kv_routing: true, cache: false, stop: [a, b], n: 3}
          args: [--, x]
          env: {CUDA_VISIBLE_DEVICES: "{index}"}
    """)
    worker, frontend = deployment.components
    assert worker.command(1) == [
        sys.executable, "-m", "dynamo.llama_cpp", "--model", "tiny", "--disable-kv-routing", "--no-cache",
        "--stop", "a", "--stop", "b", "--n", "3", "--", "x",
    ]  # fmt: skip
    assert worker.environment(1) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert frontend.command(0) == [sys.executable, "-m", "dynamo.frontend"]
    assert deployment.env == {"DYN_LOG": "debug", "DYN_X": "true"}


def test_an_engine_without_a_module_of_its_own_runs_as_a_worker() -> None:
    (worker,) = parse_deployment("components: {echo_core: }").components
    assert worker.words == (sys.executable, "-m", "dynamo.worker", "echo_core")


def test_a_program_of_the_users_own_is_a_component() -> None:
    (own,) = parse_deployment("components: {mine: {command: [./serve.sh, 1]}}").components
    assert own.words == ("./serve.sh", "1")
    assert not own.reports_ready


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "f.yaml: is not YAML: "),
        ("", "f.yaml: must hold names and their values, not nothing"),
        ("componets: {}", "f.yaml: unknown key 'componets'; did you mean 'components'?"),
        ("components: {}", "f.yaml: components: must name at least one component"),
        ("components: [a]", "f.yaml: components: must hold names and their values, not a list"),
        (
            "components: {frontend: {replica: 1}}",
            "f.yaml: components.frontend: unknown key 'replica'; did you mean 'replicas'?",
        ),
        (
            "components: {frontend: {replicas: two}}",
            "f.yaml: components.frontend.replicas: must be a whole number from 0 to 1024, not 'two'",
        ),
        (
            "components: {w: {kind: lamacpp}}",
            "f.yaml: components.w.kind: no kind of component is called 'lamacpp'; did you mean 'llamacpp'?",
        ),
        ("components: {qqq: {}}", "f.yaml: components.qqq: no kind of component is called 'qqq'; known are frontend"),
        (
            "components: {frontend: {command: [x], kind: vllm}}",
            "f.yaml: components.frontend: has both kind and command",
        ),
        ("components: {frontend: {command: []}}", "f.yaml: components.frontend.command: must be a list of words"),
        (
            "components: {frontend: {flags: {a: {b: 1}}}}",
            "f.yaml: components.frontend.flags.a: must be a text or a number, not a mapping",
        ),
        ("components: {frontend: {flags: {a: [[]]}}}", "f.yaml: components.frontend.flags.a[0]: must be a text"),
        ("components: {frontend: {args: x}}", "f.yaml: components.frontend.args: must be a list of words, not 'x'"),
        ("components: {frontend: {env: {A: [1]}}}", "f.yaml: components.frontend.env.A: must be a text or a number"),
        ("components: {frontend: }\ndrain_seconds: -1", "f.yaml: drain_seconds: must be a number of seconds, not -1"),
        ("components: {1: {}}", "f.yaml: components: 1 is not a name"),
    ],
)
def test_a_wrong_file_is_refused_by_the_place(text: str, sentence: str) -> None:
    with pytest.raises(DeploymentError) as refused:
        parse_deployment(text, "f.yaml")
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["components", "env", "frontend", "vllm", "kind", "command", "replicas", "flags", "args", "x"])
        | st.integers(),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.binary(max_size=40) | _VALUES.map(lambda value: json.dumps({"components": value}).encode()))
def test_any_bytes_are_a_deployment_or_refused(text: bytes) -> None:
    try:
        deployment = parse_deployment(text)
    except DeploymentError:
        return
    assert all(isinstance(word, str) for spec in deployment.components for word in spec.command(0))

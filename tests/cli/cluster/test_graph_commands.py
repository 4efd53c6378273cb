"""`dynamo render`, `dynamo deploy` without a cluster, and graphs for `dynamo serve`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from dynamo.cli.cluster.deploy import main as deploy
from dynamo.cli.cluster.local import holds_graph, read_local_graph
from dynamo.cli.cluster.render import main as render

EXAMPLES = Path(__file__).parents[3] / "examples" / "kubernetes"
AGGREGATED = EXAMPLES / "aggregated.yaml"


def test_render_prints_what_kubectl_applies(capsys: pytest.CaptureFixture[str]) -> None:
    render([str(AGGREGATED), "-n", "serving"], {})
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {each["metadata"]["namespace"] for each in objects} == {"serving"}
    kinds = [each["kind"] for each in objects]
    assert kinds[0] == "Secret"
    assert kinds.count("Deployment") == 2
    render(["--no-secret", str(AGGREGATED)], {})
    assert "kind: Secret" not in capsys.readouterr().out


@pytest.mark.parametrize("command", [render, deploy])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: Pod", "has 0 objects of the kind DynamoGraphDeployment, and must have one"),
        (AGGREGATED.read_text().replace("replicas", "replica"), "unknown field 'replica'; did you mean 'replicas'?"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: object, text: str, sentence: str
) -> None:
    (tmp_path / "graph.yaml").write_text(text)
    with pytest.raises(SystemExit) as caught:
        command([str(tmp_path / "graph.yaml")], {})  # type: ignore[operator]
    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert said.startswith("error: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_deploy_without_a_cluster_says_where_it_looked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        deploy([str(AGGREGATED)], {"HOME": str(tmp_path)})
    assert caught.value.code == 1
    assert "there is no kubeconfig" in capsys.readouterr().err


@pytest.mark.parametrize("command", [render, deploy])
def test_a_wrong_word_is_refused(capsys: pytest.CaptureFixture[str], command: object) -> None:
    for words, sentence in ((["--fast", "f"], "unknown flag '--fast'"), (["a", "b"], "unknown word 'b'")):
        with pytest.raises(SystemExit):
            command(words, {})  # type: ignore[operator]
        assert sentence in capsys.readouterr().err


def test_a_graph_is_what_serve_runs_here() -> None:
    assert holds_graph(AGGREGATED)
    assert not holds_graph(EXAMPLES.parent / "aggregated.yaml")
    deployment, notes = read_local_graph(AGGREGATED, {"PATH": "/bin"})
    worker, frontend = deployment.components
    assert worker.command(0) == [sys.executable, "-m", "dynamo.llama_cpp", "--model", "tiny"]
    assert (worker.kind, worker.replicas) == ("llama_cpp", 2)
    assert frontend.environment(0)["DYN_HTTP_PORT"] == "8000"
    assert notes == []


def test_what_needs_a_cluster_is_left_out_and_said(tmp_path: Path) -> None:
    document = yaml.safe_load(AGGREGATED.read_text())
    frontend, worker = document["spec"]["components"]
    planner = {**frontend, "name": "Planner", "type": "planner"}
    main = worker["podTemplate"]["spec"]["containers"][0]
    main["env"] = [{"name": "HF_TOKEN", "valueFrom": {}}, {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}]
    main["command"] = ["/bin/sh", "-c", "python3 -m dynamo.llama_cpp --model $(B)"]
    document["spec"]["components"] = [frontend, worker, planner, {**worker, "name": "far", "multinode": {}}]
    (tmp_path / "graph.yaml").write_text(yaml.dump(document))
    deployment, notes = read_local_graph(tmp_path / "graph.yaml", {})
    assert [each.name for each in deployment.components] == ["worker", "Frontend"]
    assert deployment.components[0].command(0)[-1] == "python3 -m dynamo.llama_cpp --model 12"
    assert notes == [
        "component 'worker': HF_TOKEN comes from the cluster; set it here if it is needed",
        "component 'Planner' is left out: a planner needs a cluster",
        "component 'far' is left out: it wants 2 nodes",
    ]

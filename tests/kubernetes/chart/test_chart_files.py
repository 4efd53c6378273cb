"""What the chart repeats of other files is the same there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo import __version__
from dynamo.kubernetes.graph import read_graph_object
from dynamo.kubernetes.render import RenderTarget
from dynamo.kubernetes.render.rights import operator_rules, rights

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "dynamo"
CRDS = ROOT / "deploy" / "kubernetes" / "crds"
Object = dict[str, Any]


def rules(name: str) -> list[Object]:
    found: list[Object] = yaml.safe_load((CHART / "files" / f"{name}-rules.yaml").read_text())
    return found


def test_the_definitions_are_those_beside_the_chart() -> None:
    here = {file.name: file.read_text() for file in (CHART / "crds").iterdir()}
    assert here == {file.name: file.read_text() for file in CRDS.iterdir()}


def test_the_operator_has_the_rights_that_it_needs_and_no_more() -> None:
    assert rules("operator") == operator_rules()


def test_a_picker_of_the_chart_has_the_rights_of_one_in_a_graph() -> None:
    container = {"name": "main", "image": "i"}
    picker = {"name": "epp", "type": "epp", "podTemplate": {"spec": {"containers": [container]}}}
    graph = read_graph_object(
        {
            "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"name": "g"},
            "spec": {"components": [picker]},
        }
    )  # fmt: skip
    [role] = [each for each in rights(RenderTarget(graph=graph, namespace="serving")) if each["kind"] == "Role"]
    assert rules("picker") == role["rules"]


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert chart["version"] == __version__.replace(".dev", "-dev.")


VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("group", [name for name, value in VALUES.items() if isinstance(value, dict)])
def test_the_schema_has_exactly_the_values_that_there_are(group: str) -> None:
    assert set(SCHEMA["properties"]) == {*VALUES, "global"}
    described = SCHEMA["properties"][group]
    assert set(described["properties"]) == set(VALUES[group])
    assert described["additionalProperties"] is False

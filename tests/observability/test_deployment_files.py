"""The files that other programs read: Grafana's types, compose and systemd accept them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from observability.install import TYPES, compiler, is_optional, why_no_types

FOLDER = Path(__file__).parents[2] / "deploy" / "observability"
OPTIONS = ("--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler")


def checked(name: str, dashboard: str) -> subprocess.CompletedProcess[str]:
    """Where TypeScript finds the types: the file must be below their folder."""
    source = TYPES / f"{name}.ts"
    source.write_text(
        f'import type {{ Dashboard }} from "@grafana/schema";\nexport const it: Dashboard = {dashboard};\n'
    )
    try:
        return subprocess.run([compiler(), *OPTIONS, source], capture_output=True, text=True, check=False)
    finally:
        source.unlink()


@pytest.mark.observability
def test_dashboards_have_grafanas_types() -> None:
    if why := why_no_types():
        (pytest.skip if is_optional() else pytest.fail)(f"there are no types of Grafana: {why}")
    files = sorted((FOLDER / "grafana").glob("*.json"))
    assert len(files) == 5
    for file in files:
        done = checked(file.stem, file.read_text())
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), file.name
    wrong = checked("wrong", '{"title": 5, "schemaVersion": 39}')
    assert "'number' is not assignable to type 'string'" in wrong.stdout


def test_the_compose_file_names_files_that_are_there() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    assert set(compose) == {"services"}
    for service in compose["services"].values():
        assert ":" in service["image"]  # a version, so that a new one does not surprise
        for volume in service["volumes"]:
            source, target, mode = volume.split(":")
            assert (FOLDER / source).exists(), volume
            assert (target[0], mode) == ("/", "ro")
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    mounted = [volume.split(":")[1] for volume in compose["services"]["prometheus"]["volumes"]]
    assert all(any(Path(path).name == Path(rule).name for path in mounted) for rule in config["rule_files"])
    dashboards = yaml.safe_load((FOLDER / "provisioning/dashboards/dynamo.yaml").read_text())
    folders = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert dashboards["providers"][0]["options"]["path"] in folders


@pytest.mark.observability
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        (pytest.skip if is_optional() else pytest.fail)("there is no systemd-analyze on this machine")
    units = []
    for file in sorted((FOLDER / "systemd").iterdir()):
        unit = tmp_path / file.name
        unit.write_text(file.read_text().replace("/opt/dynamo/bin/python", sys.executable))  # it must exist
        units.append(unit)
    done = subprocess.run(
        [str(program), "verify", "--man=no", *map(str, units)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")

"""Credentials from the program of a kubeconfig, with a stand-in for those of cloud providers."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import ApiRefusal
from dynamo.kubernetes.kubeconfig import read_kubeconfigs
from dynamo.kubernetes.messages import ScaleObject
from dynamo.kubernetes.resources import DEPLOYMENTS
from support.certificates import authority, signed
from support.kube_server import KubeServer

V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"

PLUGIN = f"""#!{sys.executable} -I
import json, os, pathlib, sys
folder = pathlib.Path(__file__).parent
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
with (folder / "runs").open("a") as runs:
    print(json.dumps([sys.argv[1:], os.environ.get("AWS_PROFILE"), asked]), file=runs)
print((folder / "answer").read_text())
"""


class Plugin:
    """The program, what it is to answer, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = folder / "get-token"
        self.program.write_text(PLUGIN)
        self.program.chmod(0o755)

    def gives(self, version: str = V1, expires: datetime | None = None, **status: Any) -> None:
        if expires:
            status["expirationTimestamp"] = expires.strftime("%Y-%m-%dT%H:%M:%SZ")
        answer = {"apiVersion": version, "kind": "ExecCredential", "status": status}
        (self._folder / "answer").write_text(json.dumps(answer))

    @property
    def runs(self) -> list[Any]:
        return [json.loads(each) for each in (self._folder / "runs").read_text().splitlines()]


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def api_of(folder: Path, server: KubeServer, **config: Any) -> KubernetesApi:
    """The API of a kubeconfig as `aws eks update-kubeconfig` writes it."""
    user = {"exec": {"apiVersion": V1, "command": "./get-token", "interactiveMode": "IfAvailable", **config}}
    cluster = {"server": server.url, "certificate-authority": server.ca.name}
    file = folder / "config"
    file.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "eks", "cluster": cluster}],
                "users": [{"name": "me", "user": user}],
                "contexts": [{"name": "dev", "context": {"cluster": "eks", "user": "me", "namespace": "serving"}}],
                "current-context": "dev",
            }
        )
    )
    server.put("deployments", "worker", {"replicas": 2})
    return KubernetesApi(read_kubeconfigs([file]))


async def read(api: KubernetesApi) -> int:
    return (await api.get(DEPLOYMENTS, "worker", ScaleObject)).spec.replicas


async def test_a_token_is_kept_until_it_expires(tmp_path: Path, plugin: Plugin) -> None:
    plugin.gives(token="first", expires=datetime.now(UTC) + timedelta(hours=1))
    async with KubeServer(tmp_path) as server, api_of(tmp_path, server) as api:
        assert [await read(api), await read(api)] == [2, 2]
        assert len(plugin.runs) == 1
    plugin.gives(token="first", expires=datetime.now(UTC) + timedelta(seconds=1))
    async with KubeServer(tmp_path) as server, api_of(tmp_path, server) as api:
        assert [await read(api), await read(api)] == [2, 2]
        assert len(plugin.runs) == 3


async def test_a_refused_token_is_made_again_once(tmp_path: Path, plugin: Plugin) -> None:
    plugin.gives(token="first")
    async with KubeServer(tmp_path) as server, api_of(tmp_path, server) as api:
        assert await read(api) == 2
        server.tokens = {"second"}
        plugin.gives(token="second")
        assert await read(api) == 2
        server.tokens = set()
        with pytest.raises(ApiRefusal, match="does not accept the credentials"):
            await read(api)
        assert len(plugin.runs) == 3


async def test_the_program_gets_arguments_environment_and_the_cluster(tmp_path: Path, plugin: Plugin) -> None:
    plugin.gives(V1BETA1, token="first")
    config = {
        "apiVersion": V1BETA1, "args": ["eks", "get-token"], "env": [{"name": "AWS_PROFILE", "value": "prod"}],
        "provideClusterInfo": True,
    }  # fmt: skip
    async with KubeServer(tmp_path) as server, api_of(tmp_path, server, **config) as api:
        await read(api)
        [[arguments, profile, asked]] = plugin.runs
        authority_data = base64.b64encode(server.ca.read_bytes()).decode()
        assert (arguments, profile) == (["eks", "get-token"], "prod")
        assert asked == {
            "apiVersion": V1BETA1,
            "kind": "ExecCredential",
            "spec": {
                "interactive": False,
                "cluster": {"server": server.url, "certificate-authority-data": authority_data},
            },
        }


async def test_a_certificate_of_the_program_is_shown(tmp_path: Path, plugin: Plugin) -> None:
    ca = authority(tmp_path)
    certificate, key = signed(tmp_path, "planner", ca)
    plugin.gives(clientCertificateData=certificate.read_text(), clientKeyData=key.read_text())
    async with KubeServer(tmp_path, client_ca=ca[0]) as server, api_of(tmp_path, server) as api:
        assert await read(api) == 2


@pytest.mark.parametrize(
    ("answer", "config", "sentence"),
    [
        ("Traceback", {}, "printed no ExecCredential"),
        (json.dumps({"apiVersion": V1, "status": {}}), {}, "gave neither a token nor a certificate"),
        (json.dumps({"apiVersion": V1BETA1, "status": {"token": "x"}}), {}, "and was asked for"),
        (None, {"command": "/usr/bin/false"}, "/usr/bin/false ended with 1"),
        (None, {"command": "no-such-plugin", "installHint": "install it"}, "No such file or directory; install it"),
    ],
)
async def test_a_program_that_gives_nothing_is_named_in_one_line(
    tmp_path: Path, plugin: Plugin, answer: str | None, config: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "answer").write_text(answer or "")
    async with KubeServer(tmp_path) as server, api_of(tmp_path, server, **config) as api:
        with pytest.raises(ApiRefusal) as caught:
            await read(api)
    assert "the user 'me': exec: " in str(caught.value)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)

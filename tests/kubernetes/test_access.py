"""How the API server is found: service accounts of pods, and kubeconfigs."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import ApiOutage
from dynamo.kubernetes.files import ClusterAccessError
from dynamo.kubernetes.kubeconfig import parse_kubeconfig, read_kubeconfigs
from dynamo.kubernetes.messages import ScaleObject
from dynamo.kubernetes.resources import DEPLOYMENTS
from support.certificates import authority, certificate, signed
from support.kube_server import KubeServer

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("pair"), "cluster")


def kubeconfig(
    folder: Path, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **keys: Any
) -> Path:
    file = folder / "config"
    file.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:6443", **(cluster or {})}}],
                "users": [{"name": "me", "user": {"token": "secret"} if user is None else user}],
                "contexts": [{"name": "dev", "context": {"cluster": "here", "user": "me", "namespace": "serving"}}],
                "current-context": "dev",
                **keys,
            }
        )
    )
    return file


def test_a_pod_uses_its_service_account(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    for name, text in {"namespace": "serving", "token": "one\n", "ca.crt": pair[0].read_text()}.items():
        (tmp_path / name).write_text(text)
    access = find_access(IN_A_POD, tmp_path)
    assert (access.server, access.namespace) == ("https://10.96.0.1:443", "serving")
    assert access.headers() == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("two\n")
    assert access.headers() == {"Authorization": "Bearer two"}
    assert access.tls().verify_mode == ssl.CERT_REQUIRED
    six = find_access(IN_A_POD | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path)
    assert six.server == "https://[fd00::1]:443"


def test_an_empty_authority_is_refused_and_not_replaced_by_those_of_the_machine(tmp_path: Path) -> None:
    for name, text in {"namespace": "serving", "token": "one", "ca.crt": ""}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ClusterAccessError, match="the certificate authority is empty"):
        find_access(IN_A_POD, tmp_path)


def test_a_pod_without_a_service_account_says_so(tmp_path: Path) -> None:
    with pytest.raises(ClusterAccessError, match="namespace: the namespace cannot be read: No such file"):
        find_access(IN_A_POD, tmp_path)


def test_without_a_pod_and_a_kubeconfig_both_are_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterAccessError, match=r"KUBERNETES_SERVICE_HOST is not set.*KUBECONFIG or ~/\.kube/config"):
        find_access({"HOME": str(tmp_path)})


def test_the_kubeconfig_is_that_of_the_variable_or_of_the_home(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    home = kubeconfig(tmp_path / ".kube")
    assert find_access({"HOME": str(tmp_path)}).origin == f"{home} (context 'dev')"
    named = kubeconfig(tmp_path)
    access = find_access({"HOME": "/", "KUBECONFIG": str(named), **IN_A_POD})
    assert access.origin == f"{named} (context 'dev')"
    assert access.namespace == "serving"


def test_several_kubeconfigs_are_merged_and_the_first_counts(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first = kubeconfig(tmp_path / "a", users=None, clusters=None)
    other: dict[str, Any] = {"current-context": "other"}
    second = kubeconfig(tmp_path / "b", user={"tokenFile": "token"}, **other)
    (tmp_path / "b" / "token").write_text("beside the second")
    access = find_access({"KUBECONFIG": f"{tmp_path / 'gone'}:{first}:{second}"})
    assert access.headers() == {"Authorization": "Bearer beside the second"}
    assert access.origin == f"{first} (context 'dev')"


async def replicas_of_a_worker(file: Path) -> int:
    async with KubernetesApi(read_kubeconfigs([file])) as api:
        return (await api.get(DEPLOYMENTS, "worker", ScaleObject)).spec.replicas


async def test_data_and_files_in_a_kubeconfig_are_used(tmp_path: Path) -> None:
    async with KubeServer(tmp_path) as server:
        server.put("deployments", "worker", {"replicas": 2})
        server.tokens = {"secret"}
        for cluster in (
            {"certificate-authority-data": base64.b64encode(server.ca.read_bytes()).decode()},
            {"certificate-authority": server.ca.name},
            {"insecure-skip-tls-verify": True},
            {"certificate-authority": server.ca.name, "tls-server-name": "localhost"},
        ):
            assert await replicas_of_a_worker(kubeconfig(tmp_path, {"server": server.url + "/", **cluster})) == 2
        wrong = {"server": server.url, "certificate-authority": server.ca.name, "tls-server-name": "x"}
        with pytest.raises(ApiOutage, match="CERTIFICATE_VERIFY_FAILED"):
            await replicas_of_a_worker(kubeconfig(tmp_path, wrong))


async def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    cert, key = signed(tmp_path, "planner", ca)
    user = {
        "client-certificate-data": base64.b64encode(cert.read_bytes()).decode(),
        "client-key": key.name,
    }
    async with KubeServer(tmp_path, client_ca=ca[0]) as server:
        server.put("deployments", "worker", {"replicas": 2})
        cluster = {"server": server.url, "certificate-authority": server.ca.name}
        assert await replicas_of_a_worker(kubeconfig(tmp_path, cluster, user)) == 2
        with pytest.raises(ApiOutage):
            await replicas_of_a_worker(kubeconfig(tmp_path, cluster, {}))


@pytest.mark.parametrize(
    ("cluster", "user", "keys", "sentence"),
    [
        ({}, {"exec": {"command": "aws", "apiVersion": "v0"}}, {}, "exec: apiVersion must be client.authentication"),
        ({}, {"auth-provider": {"name": "gcp"}}, {}, "auth-provider: is not supported"),
        ({}, {"username": "me", "password": "x"}, {}, "username: is not supported"),
        ({}, {"token": "x", "as": "admin"}, {}, "as: is not supported"),
        ({}, {"token": "two\nlines"}, {}, "the token is not one line of text"),
        ({}, {"tokenFile": "gone"}, {}, "gone: the token cannot be read"),
        ({}, {"client-certificate": "x"}, {}, "client-certificate and client-key go together"),
        ({}, {"client-certificate-data": "eA==", "client-key-data": "eA=="}, {}, "its certificates cannot be used"),
        ({"proxy-url": "http://proxy"}, {}, {}, "the cluster 'here': proxy-url: is not supported"),
        ({"server": "127.0.0.1:6443"}, {}, {}, "server: '127.0.0.1:6443' is not https://HOST:PORT"),
        ({"server": "https://me:secret@host"}, {}, {}, "is not https://HOST:PORT"),
        ({"server": "https://a\nhost"}, {}, {}, "server: 'https://a host' is not https://HOST:PORT"),
        ({"certificate-authority-data": "%"}, {}, {}, "certificate-authority-data: is not base64"),
        ({"certificate-authority-data": "eA=="}, {}, {}, "its certificates cannot be used"),
        ({"certificate-authority": "gone.crt"}, {}, {}, "gone.crt: the certificate authority cannot be read"),
        ({}, None, {"current-context": "prod"}, "current-context: there is no 'prod'"),
        ({}, None, {"current-context": None}, "has no current-context"),
        ({}, None, {"clusters": None}, "the context 'dev': cluster: there is no 'here'"),
        ({}, None, {"users": []}, "the context 'dev': user: there is no 'me'"),
        ({}, None, {"contexts": {"dev": 1}}, "is not a kubeconfig: Expected `array | null`"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_kubeconfig_is_named_in_one_line(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any] | None, keys: dict[str, Any], sentence: str
) -> None:
    file = kubeconfig(tmp_path, cluster, user, **keys)
    with pytest.raises(ClusterAccessError) as caught:
        find_access({"KUBECONFIG": str(file)})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value).replace("https://me:secret@host", "")


def test_a_kubeconfig_that_is_not_yaml_is_refused_without_showing_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("users:\n- user: {token: secret: }\n")
    with pytest.raises(ClusterAccessError, match=r"config: is not YAML: .* in line 2$") as caught:
        find_access({"KUBECONFIG": str(tmp_path / "config")})
    assert "secret" not in str(caught.value)


def test_a_kubeconfig_that_is_not_there_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterAccessError, match="KUBECONFIG: gone does not exist"):
        find_access({"KUBECONFIG": "gone"})
    with pytest.raises(ClusterAccessError, match="the kubeconfig cannot be read: Is a directory"):
        find_access({"KUBECONFIG": str(tmp_path)})


@given(st.binary(max_size=300))
def test_any_bytes_are_a_kubeconfig_or_refused(data: bytes) -> None:
    try:
        parse_kubeconfig(data, "config")
    except ClusterAccessError:
        pass


texts = st.text(max_size=8) | st.none() | st.integers()
keys = st.sampled_from([
    "server", "token", "tokenFile", "certificate-authority", "certificate-authority-data", "client-key-data",
    "client-certificate-data", "namespace", "exec", "tls-server-name", "insecure-skip-tls-verify",
])  # fmt: skip


@given(st.dictionaries(keys, texts), st.dictionaries(keys, texts), st.dictionaries(keys, texts))
def test_any_values_in_a_kubeconfig_are_used_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cluster: dict[str, Any], user: dict[str, Any], context: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    named = {"name": "dev", "context": {"cluster": "here", "user": "me", **context}}
    try:
        read_kubeconfigs([kubeconfig(folder, cluster, user, contexts=[named])])
    except ClusterAccessError:
        pass


@given(st.binary(max_size=100))
def test_any_bytes_in_a_service_account_are_used_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    for name in ("namespace", "token", "ca.crt"):
        (folder / name).write_bytes(data)
    with pytest.raises(ClusterAccessError):
        find_access(IN_A_POD, folder)

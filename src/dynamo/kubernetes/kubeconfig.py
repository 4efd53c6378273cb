"""Clusters, users and contexts as kubectl knows them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from dynamo.kubernetes.cluster import ClusterAccess, checked_server
from dynamo.kubernetes.exec_plugin import ExecConfig, ExecPlugin, PluginCluster
from dynamo.kubernetes.files import ClusterAccessError, read_bytes


def read_kubeconfigs(files: Sequence[Path]) -> ClusterAccess:
    """As kubectl merges them: of each name the first counts, and files that are not there are left out."""
    merged = _MergedConfig()
    there = [file for file in files if file.exists()]
    if not there:
        raise ClusterAccessError(f"KUBECONFIG: {', '.join(map(str, files)) or 'it'} does not exist")
    for file in there:
        merged.add(parse_kubeconfig(read_bytes(file, "kubeconfig"), str(file)), file)
    access = merged.chosen()
    access.check()
    return access


class KubeCluster(Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class KubeUser(Struct, frozen=True, rename="kebab"):
    token: str | None = None
    token_file: str | None = field(default=None, name="tokenFile")
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    exec: ExecConfig | None = None
    auth_provider: Any = None
    username: str | None = None
    impersonated: Any = field(default=None, name="as")


class KubeContext(Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class NamedCluster(Struct, frozen=True):
    name: str
    cluster: KubeCluster


class NamedUser(Struct, frozen=True):
    name: str
    user: KubeUser | None = None


class NamedContext(Struct, frozen=True):
    name: str
    context: KubeContext


class KubeConfig(Struct, frozen=True, rename="kebab"):
    """What is read of a kubeconfig."""

    clusters: list[NamedCluster] | None = None
    users: list[NamedUser] | None = None
    contexts: list[NamedContext] | None = None
    current_context: str | None = None


def parse_kubeconfig(text: bytes, file: str) -> KubeConfig:
    import yaml

    try:
        return msgspec.convert(yaml.safe_load(text), KubeConfig)
    except yaml.MarkedYAMLError as error:
        # Its own text shows the line, which may hold a token.
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ClusterAccessError(f"{file}: is not YAML: {error.problem}{line}") from None
    except (yaml.YAMLError, msgspec.ValidationError, ValueError, RecursionError) as error:
        raise ClusterAccessError(f"{file}: is not a kubeconfig: {error}") from error


class _Located(NamedTuple):
    entry: Any
    file: Path


class _MergedConfig:
    def __init__(self) -> None:
        self._clusters: dict[str, _Located] = {}
        self._users: dict[str, _Located] = {}
        self._contexts: dict[str, _Located] = {}
        self._current: _Located | None = None

    def add(self, config: KubeConfig, file: Path) -> None:
        for cluster in config.clusters or ():
            self._clusters.setdefault(cluster.name, _Located(cluster.cluster, file))
        for user in config.users or ():
            self._users.setdefault(user.name, _Located(user.user or KubeUser(), file))
        for context in config.contexts or ():
            self._contexts.setdefault(context.name, _Located(context.context, file))
        self._current = self._current or (_Located(config.current_context, file) if config.current_context else None)

    def chosen(self) -> ClusterAccess:
        if self._current is None:
            raise ClusterAccessError("the kubeconfig has no current-context: `kubectl config use-context NAME` sets it")
        name, file = self._current
        context = _named(self._contexts, name, f"{file}: current-context")
        cluster = _named(self._clusters, context.entry.cluster, f"{context.file}: the context '{name}': cluster")
        user = _Located(KubeUser(), file)
        if context.entry.user:
            user = _named(self._users, context.entry.user, f"{context.file}: the context '{name}': user")
        reached = _cluster_arguments(cluster, f"{cluster.file}: the cluster '{context.entry.cluster}'")
        return ClusterAccess(
            origin=f"{file} (context '{name}')",
            namespace=context.entry.namespace or "default",
            plugin=_plugin(user, f"{user.file}: the user '{context.entry.user}'", reached),
            **reached,
            **_user_arguments(user, f"{user.file}: the user '{context.entry.user}'"),
        )


def _named(entries: Mapping[str, _Located], name: str, where: str) -> _Located:
    if name not in entries:
        raise ClusterAccessError(f"{where}: there is no '{name}'")
    return entries[name]


def _cluster_arguments(located: _Located, where: str) -> dict[str, Any]:
    cluster: KubeCluster = located.entry
    if cluster.proxy_url:
        raise ClusterAccessError(f"{where}: proxy-url: is not supported")
    return {
        "server": checked_server(cluster.server, f"{where}: server"),
        "ca": _content(
            cluster.certificate_authority_data,
            cluster.certificate_authority,
            located.file,
            f"{where}: certificate-authority",
        ),
        "verify": not cluster.insecure_skip_tls_verify,
        "server_name": cluster.tls_server_name or None,
    }


def _user_arguments(located: _Located, where: str) -> dict[str, Any]:
    user: KubeUser = located.entry
    for key, given in (
        ("auth-provider", user.auth_provider), ("username", user.username), ("as", user.impersonated),
    ):  # fmt: skip
        if given:
            raise ClusterAccessError(
                f"{where}: {key}: is not supported; use a token or a client certificate"
                " (`kubectl create token` makes one for a service account)"
            )
    certificate = _content(
        user.client_certificate_data, user.client_certificate, located.file, f"{where}: client-certificate"
    )
    key_content = _content(user.client_key_data, user.client_key, located.file, f"{where}: client-key")
    if (certificate is None) != (key_content is None):
        raise ClusterAccessError(f"{where}: client-certificate and client-key go together: give both or neither")
    token = user.token.encode() if user.token else located.file.parent / user.token_file if user.token_file else None
    return {"token": token, "certificate": certificate, "key": key_content}


def _plugin(located: _Located, where: str, cluster: Mapping[str, Any]) -> ExecPlugin | None:
    user: KubeUser = located.entry
    if user.exec is None:
        return None
    ca = cluster["ca"]
    shown = PluginCluster(
        server=cluster["server"],
        certificate_authority_data=None if ca is None else read_bytes(ca, "certificate authority"),
        insecure_skip_tls_verify=not cluster["verify"],
        tls_server_name=cluster["server_name"],
    )
    return ExecPlugin(user.exec, shown, located.file.parent, f"{where}: exec")


def _content(data: str | None, path: str | None, file: Path, where: str) -> Path | bytes | None:
    """Data counts before the path of a file, which is relative to the kubeconfig."""
    if not data:
        return file.parent / path if path else None
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise ClusterAccessError(f"{where}-data: is not base64: {error}") from error

"""How a Kubernetes API server is reached: as the service account of this pod, or by a kubeconfig.

Files of a service account are replaced while a pod runs, so tokens and certificates are read again for each call.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from dynamo.protocols.errors import StartError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MOST_BYTES = 4 << 20


class ClusterAccessError(StartError):
    """The message names the file or the variable, and what is wrong there, in one line whatever the file holds."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ClusterAccess(Struct, frozen=True, kw_only=True):
    """A path is a file to read, bytes are what such a file would hold."""

    server: str
    origin: str
    """Where this comes from, for messages."""
    namespace: str = "default"
    ca: Path | bytes | None = None
    """None: the authorities that this machine trusts."""
    token: Path | bytes | None = None
    certificate: Path | bytes | None = None
    key: Path | bytes | None = None
    verify: bool = True
    server_name: str | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Self:
        """KUBECONFIG, else the service account of this pod, else ~/.kube/config."""
        if listed := environ.get("KUBECONFIG"):
            return cls.from_kubeconfigs([Path(each) for each in listed.split(os.pathsep) if each])
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
        if host and port:
            return cls.from_service_account(host, port, service_account)
        default = Path(environ.get("HOME") or "/") / ".kube" / "config"
        if not default.exists():
            raise ClusterAccessError(
                "Kubernetes cannot be reached: this is no pod (KUBERNETES_SERVICE_HOST is not set), and there is no"
                " kubeconfig (KUBECONFIG or ~/.kube/config)"
            )
        return cls.from_kubeconfigs([default])

    @classmethod
    def from_service_account(cls, host: str, port: str, folder: Path = SERVICE_ACCOUNT) -> Self:
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        access = cls(
            server=_server(server, "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT"),
            origin=f"the service account in {folder}",
            namespace=_line(folder / "namespace", "namespace"),
            ca=folder / "ca.crt",
            token=folder / "token",
        )
        access.check()
        return access

    @classmethod
    def from_kubeconfigs(cls, files: Sequence[Path]) -> Self:
        """As kubectl merges them: of each name the first counts, and files that are not there are left out."""
        merged = _MergedConfig()
        there = [file for file in files if file.exists()]
        if not there:
            raise ClusterAccessError(f"KUBECONFIG: {', '.join(map(str, files)) or 'it'} does not exist")
        for file in there:
            merged.add(parse_kubeconfig(_bytes(file, "kubeconfig"), str(file)), file)
        access = cls(**merged.chosen())
        access.check()
        return access

    def check(self) -> None:
        """Raises ClusterAccessError where a file cannot be used."""
        self.headers()
        self.tls()

    def headers(self) -> dict[str, str]:
        if self.token is None:
            return {}
        return {"Authorization": f"Bearer {_line(self.token, 'token')}"}

    def tls(self) -> ssl.SSLContext:
        try:
            authority = None if self.ca is None else _bytes(self.ca, "certificate authority").decode("ascii", "ignore")
            if authority == "":
                raise ValueError("the certificate authority is empty")
            context = ssl.create_default_context(cadata=authority)
            # Certificates that clusters make for themselves may lack what strict checks want; kubectl accepts them.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certificate is not None and self.key is not None:
                self._load_certificate(context)
        except (OSError, ValueError) as error:
            raise ClusterAccessError(f"{self.origin}: its certificates cannot be used: {error}") from error
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        assert self.certificate is not None
        assert self.key is not None
        with tempfile.TemporaryDirectory(prefix="dynamo-") as folder:  # nobody else can read it
            pair = Path(folder) / "pair.pem"
            pair.write_bytes(_bytes(self.key, "client key") + b"\n" + _bytes(self.certificate, "client certificate"))
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(pair, password="")


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
    exec: Any = None
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

    def chosen(self) -> dict[str, Any]:
        """The arguments of a ClusterAccess."""
        if self._current is None:
            raise ClusterAccessError("the kubeconfig has no current-context: `kubectl config use-context NAME` sets it")
        name, file = self._current
        context = _named(self._contexts, name, f"{file}: current-context")
        cluster = _named(self._clusters, context.entry.cluster, f"{context.file}: the context '{name}': cluster")
        user = _Located(KubeUser(), file)
        if context.entry.user:
            user = _named(self._users, context.entry.user, f"{context.file}: the context '{name}': user")
        origin = f"{file} (context '{name}')"
        return {
            "origin": origin,
            "namespace": context.entry.namespace or "default",
            **_cluster_arguments(cluster, f"{cluster.file}: the cluster '{context.entry.cluster}'"),
            **_user_arguments(user, f"{user.file}: the user '{context.entry.user}'"),
        }


def _named(entries: Mapping[str, _Located], name: str, where: str) -> _Located:
    if name not in entries:
        raise ClusterAccessError(f"{where}: there is no '{name}'")
    return entries[name]


def _cluster_arguments(located: _Located, where: str) -> dict[str, Any]:
    cluster: KubeCluster = located.entry
    if cluster.proxy_url:
        raise ClusterAccessError(f"{where}: proxy-url: is not supported")
    return {
        "server": _server(cluster.server, f"{where}: server"),
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
        ("exec", user.exec), ("auth-provider", user.auth_provider),
        ("username", user.username), ("as", user.impersonated),
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


def _content(data: str | None, path: str | None, file: Path, where: str) -> Path | bytes | None:
    """Data counts before the path of a file, which is relative to the kubeconfig."""
    if not data:
        return file.parent / path if path else None
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise ClusterAccessError(f"{where}-data: is not base64: {error}") from error


def _server(url: str, where: str) -> str:
    try:
        parts = urlsplit(url)
        valid = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
        )
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or parts.query or parts.fragment:
        raise ClusterAccessError(f"{where}: '{url}' is not https://HOST:PORT")
    return url.rstrip("/")


def _bytes(source: Path | bytes, what: str) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        with source.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise ClusterAccessError(f"{source}: the {what} cannot be read: {why}") from error
    if len(data) > _MOST_BYTES:
        raise ClusterAccessError(f"{source}: the {what} is larger than {_MOST_BYTES >> 20} MB")
    return data


def _line(source: Path | bytes, what: str) -> str:
    try:
        line = _bytes(source, what).decode("ascii").strip()
    except UnicodeDecodeError:
        line = ""
    if not line or not line.isprintable():
        place = "the kubeconfig" if isinstance(source, bytes) else str(source)
        raise ClusterAccessError(f"{place}: the {what} is not one line of text")
    return line

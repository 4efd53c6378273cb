"""Where a Kubernetes API server is, and what is shown to it.

Files of a service account are replaced while a pod runs, so tokens and certificates are read again for each call.
"""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from msgspec import Struct, structs

from dynamo.kubernetes.exec_plugin import ExecPlugin
from dynamo.kubernetes.files import ClusterAccessError, line, read_bytes

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


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
    plugin: ExecPlugin | None = None
    """A program that makes the token or the certificate, instead of those above."""
    verify: bool = True
    server_name: str | None = None

    @classmethod
    def from_service_account(cls, host: str, port: str, folder: Path = SERVICE_ACCOUNT) -> Self:
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        access = cls(
            server=checked_server(server, "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT"),
            origin=f"the service account in {folder}",
            namespace=line(folder / "namespace", "namespace"),
            ca=folder / "ca.crt",
            token=folder / "token",
        )
        access.check()
        return access

    async def current(self) -> Self:
        """This access with what its plugin, if it has one, gives out now."""
        if self.plugin is None:
            return self
        made = await self.plugin.credential()
        return structs.replace(self, token=made.token, certificate=made.certificate, key=made.key)

    def check(self) -> None:
        """Raises ClusterAccessError where a file cannot be used."""
        self.headers()
        self.tls()

    def headers(self) -> dict[str, str]:
        if self.token is None:
            return {}
        return {"Authorization": f"Bearer {line(self.token, 'token')}"}

    def tls_material(self) -> tuple[bytes, ...]:
        """What `tls` is made of, as the files say now."""
        found = ((self.ca, "certificate authority"), (self.certificate, "client certificate"), (self.key, "client key"))
        return tuple(b"" if source is None else read_bytes(source, what) for source, what in found)

    def tls(self) -> ssl.SSLContext:
        try:
            authority = (
                None if self.ca is None else read_bytes(self.ca, "certificate authority").decode("ascii", "ignore")
            )
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
            pair.write_bytes(
                read_bytes(self.key, "client key") + b"\n" + read_bytes(self.certificate, "client certificate")
            )
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(pair, password="")


def checked_server(url: str, where: str) -> str:
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

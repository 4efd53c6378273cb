"""TLS between hosts on the request plane."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from dynamo.process.files import Stamp, file_stamp
from dynamo.runtime.plane.base import PlaneError

Stamps = tuple[Stamp | None, ...]


class PlaneTls(Struct, frozen=True, kw_only=True):
    """Certificate and key are shown to the peer; the authority is what the peer's certificate is checked against."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    insecure: bool = False
    """Connect to workers without checking their certificates."""
    server_name: str | None = None
    """The name that workers' certificates carry, instead of their addresses."""
    handshake_timeout: float = 5.0

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("DYN_TCP_TLS_CERT_PATH and DYN_TCP_TLS_KEY_PATH go together: set both or neither")

    @property
    def on(self) -> bool:
        return bool(self.cert or self.ca or self.insecure)

    @property
    def identifies_clients(self) -> bool:
        """A worker accepts only clients with a certificate of the authority."""
        return bool(self.cert and self.ca)

    def client_context(self) -> ssl.SSLContext:
        """Made for each connection, so that renewed files are used."""
        with _Named(self):
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        return context

    def server_context(self, failed: Callable[[ssl.SSLError], None] = lambda _: None) -> ssl.SSLContext | None:
        """None without a certificate. `failed` is called when a handshake fails, which asyncio does not report."""
        if self.cert is None:
            return None
        context = self._server_context()
        context.sslobject_class = _reporting(failed)
        newest = [(self._stamps(), context)]

        def use_newest(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            stamps = self._stamps()
            if stamps != newest[0][0]:
                try:
                    newest[0] = (stamps, self._server_context())
                except PlaneError as error:
                    newest[0] = (stamps, newest[0][1])
                    failed(ssl.SSLError(0, f"keeping the certificate in use: {error}"))
            connection.context = newest[0][1]

        context.sni_callback = use_newest
        return context

    def _server_context(self) -> ssl.SSLContext:
        assert self.cert
        with _Named(self):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            # Workers keep one connection per client: nothing is resumed, and a ticket could outlive a certificate.
            context.num_tickets = 0
            context.load_cert_chain(self.cert, self.key)
            if self.ca:
                context.load_verify_locations(self.ca)
                context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _stamps(self) -> Stamps:
        return tuple(file_stamp(path) for path in (self.cert, self.key) if path)


class _Named:
    """Turns errors about files into a `PlaneError` that names the files and their variables."""

    def __init__(self, tls: PlaneTls) -> None:
        self._files = ", ".join(str(path) for path in (tls.cert, tls.key, tls.ca) if path)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError | ValueError):
            why = error.strerror or getattr(error, "reason", None) or error if isinstance(error, OSError) else error
            raise PlaneError(
                f"cannot use the TLS files {self._files}: {why}; "
                "check DYN_TCP_TLS_CERT_PATH, DYN_TCP_TLS_KEY_PATH and DYN_TCP_TLS_CA_CERT_PATH"
            ) from error


def _reporting(failed: Callable[[ssl.SSLError], None]) -> type[ssl.SSLObject]:
    class ReportingObject(ssl.SSLObject):
        def do_handshake(self) -> Any:
            try:
                return super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                failed(error)
                raise

    return ReportingObject

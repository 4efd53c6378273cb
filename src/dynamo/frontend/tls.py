"""The server's certificate: read at the start, and again when its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from dynamo.process.files import Stamp, file_stamp

log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0


class TlsError(Exception):
    """The message names the file and what is wrong with it."""


class Certificate:
    """New connections get the newest readable certificate; open ones keep theirs."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises TlsError."""
        self._files = (certificate, key)
        self._seen = self._stamps()
        self._newest = server_context(certificate, key)
        self._timer: asyncio.TimerHandle | None = None
        self.context = server_context(certificate, key)
        """For the server: its callback gives each connection the newest certificate, with or without SNI."""
        self.context.sni_callback = self._choose

    def watch(self, every: float = CHECK_SECONDS) -> None:
        """Check the files at this interval, in seconds, until `stop`."""
        self._timer = asyncio.get_running_loop().call_later(every, self._check, every)

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()

    def reload(self) -> None:
        """Read the files; if they are unusable the old certificate stays in use."""
        self._seen = self._stamps()
        try:
            self._newest = server_context(*self._files)
        except TlsError as error:
            log.error("keeping the TLS certificate in use: %s", error)
        else:
            log.info("read the TLS certificate %s again", self._files[0])

    def _check(self, every: float) -> None:
        if self._stamps() != self._seen:
            self.reload()
        self.watch(every)

    def _stamps(self) -> list[Stamp | None]:
        return [file_stamp(path) for path in self._files]

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    for what, path in (("certificate", certificate), ("key", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise TlsError(f"cannot read the TLS {what} {path}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])

    def no_password() -> str:
        raise TlsError(f"the TLS key {key} is encrypted; give one without a passphrase")

    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"the TLS key {key} does not belong to the certificate {certificate}") from error
        raise TlsError(f"cannot use {certificate} with {key}: not PEM ({error.reason or error})") from error
    return context

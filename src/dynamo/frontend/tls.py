"""The certificate the server shows."""

from __future__ import annotations

import ssl
from pathlib import Path


class TlsError(Exception):
    """The message names the file and what is wrong with it."""


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

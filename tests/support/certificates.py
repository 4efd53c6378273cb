"""Certificates made on the spot with openssl, and which one a server shows."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


def renewed(cert: Path, key: Path) -> bytes:
    """Put others in the place of these files, as tools do that renew them; returns the new certificate."""
    new_cert, new_key = certificate(cert.parent, "renewed")
    new_cert.replace(cert)
    new_key.replace(key)
    return shown_in(cert)


def shown_in(cert: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(cert.read_text())


async def shown_by(port: int, host: str = "") -> bytes:
    """The certificate a new connection gets, the host named or not."""
    anybody = ssl.create_default_context()
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=anybody, server_hostname=host)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    assert isinstance(shown, bytes)
    return shown

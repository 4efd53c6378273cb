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


def authority(folder: Path, name: str = "ca") -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj"
    subprocess.run([*command.split(), f"/CN={name}", "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


def signed(
    folder: Path, name: str, by: tuple[Path, Path], addresses: str = "IP:127.0.0.1", *, expired: bool = False
) -> tuple[Path, Path]:
    """A certificate of the authority `by` for these addresses, and its key."""
    cert, key, request, extensions = (folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
    ask = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj"
    subprocess.run([*ask.split(), f"/CN={name}", "-out", request, "-keyout", key], check=True, capture_output=True)
    extensions.write_text(f"subjectAltName={addresses}\nbasicConstraints=critical,CA:FALSE\n")
    sign: list[str | Path] = [
        "openssl",
        "x509",
        "-req",
        "-in",
        request,
        "-CA",
        by[0],
        "-CAkey",
        by[1],
        "-CAcreateserial",
    ]
    days = ["-days", "-1" if expired else "2"]
    subprocess.run([*sign, *days, "-extfile", extensions, "-out", cert], check=True, capture_output=True)
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

"""Tells the process that started this one that it serves, as systemd does it: `READY=1` to NOTIFY_SOCKET."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

VARIABLE = "NOTIFY_SOCKET"
READY = b"READY=1"


def report_ready(environ: Mapping[str, str]) -> None:
    """Does nothing where no socket is named; a supervisor that is gone is no reason to stop serving."""
    address = environ.get(VARIABLE)
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(READY, address)

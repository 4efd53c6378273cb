"""A thread that sleeps until someone connects to this process's own socket, and then answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import sys
import threading
from pathlib import Path

from dynamo.runtime.inspection.inspection import Inspection, encoded
from dynamo.runtime.inspection.place import LONGEST_PATH, open_folder, remove_dead, socket_path

log = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
"""For a client to send its request, and to read each part of the answer."""
LARGEST_REQUEST = 64 * 1024


class InspectionListener:
    """Listens from `start` to `close`. A process that cannot listen runs all the same."""

    def __init__(self, inspection: Inspection, folder: Path) -> None:
        self._inspection = inspection
        self._path = socket_path(folder, os.getpid())
        self._listening: tuple[socket.socket, threading.Thread] | None = None

    def start(self) -> None:
        if len(os.fsencode(self._path)) > LONGEST_PATH:
            log.debug("this process cannot be inspected: the path %s is too long for a socket", self._path)
            return
        try:
            listening = self._listen()
        except OSError as error:
            log.debug("this process cannot be inspected at %s: %s", self._path, error)
            return
        thread = threading.Thread(target=self._serve, args=(listening,), name="dynamo-inspect", daemon=True)
        self._listening = listening, thread
        thread.start()

    async def close(self) -> None:
        """Ends the answers that are being made; no thread is left after it."""
        if self._listening is None:
            return
        (listening, thread), self._listening = self._listening, None
        self._path.unlink(missing_ok=True)
        self._inspection.end()
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # wakes the thread
        # An answer may wait for this event loop.
        await asyncio.to_thread(thread.join)

    def _listen(self) -> socket.socket:
        open_folder(self._path.parent)
        # It gets its name once it listens: others remove sockets at which nobody does.
        unnamed = self._path.with_suffix(".new")
        unnamed.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(unnamed))
            unnamed.chmod(0o600)
            listening.listen(8)
            unnamed.rename(self._path)
        except OSError:
            listening.close()
            unnamed.unlink(missing_ok=True)
            raise
        return listening

    def _serve(self, listening: socket.socket) -> None:
        remove_dead(self._path.parent)
        answering: list[tuple[socket.socket, threading.Thread]] = []
        with listening:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    break
                # One at a time would let a profile of a minute keep others waiting.
                thread = threading.Thread(
                    target=self._answer, args=(client,), name="dynamo-inspect-answer", daemon=True
                )
                answering = [*(each for each in answering if each[1].is_alive()), (client, thread)]
                thread.start()
        for client, thread in answering:
            with contextlib.suppress(OSError):  # it was answered
                client.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(REQUEST_SECONDS)
            if not _is_allowed(client):
                return
            data = b""
            while not data.endswith(b"\n") and len(data) < LARGEST_REQUEST:
                received = client.recv(LARGEST_REQUEST)
                if not received:
                    return  # a client that only looked whether this process listens
                data += received
            for line in encoded(self._inspection, data):
                client.sendall(line)


def _is_allowed(client: socket.socket) -> bool:
    """The folder keeps others out already; a client must be this user or root nevertheless."""
    if not sys.platform.startswith("linux"):
        return True
    form = struct.Struct("3i")
    _, uid, _ = form.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return uid in (0, os.getuid())

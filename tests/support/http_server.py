"""An HTTP server whose threads end with it, also those of connections that clients keep open."""

from __future__ import annotations

from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from threading import Thread
from typing import Any


class HttpServer(ThreadingHTTPServer):
    daemon_threads = False  # `server_close` joins them

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._connections: list[socket] = []
        self._serving = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    def start(self) -> None:
        self._serving.start()

    def stop(self) -> None:
        self.shutdown()
        self._serving.join()
        for connection in self._connections:
            with suppress(OSError):  # it has ended
                connection.shutdown(SHUT_RDWR)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

"""A Hugging Face hub of our own: the few routes a download uses, served from memory."""

from __future__ import annotations

import hashlib
import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

from support.http_server import HttpServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves `repos`, refuses `gated` ones to callers without `token`, and remembers which files were fetched.

    GGUF files are large files: their address leads on to a store that knows ranges and names them by their SHA-256.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.token = "hf_secret"
        self.fetched: list[str] = []
        self.ranges: list[str] = []
        """What was asked of the store of large files, as `Range` says it; empty for a whole file."""
        self.cut: list[int] = []
        """How many bytes each of the next answers of that store has before it breaks off."""
        self.damaged = False
        """That store sends other bytes than the file has."""
        self.paused = Event()
        self.paused.set()
        """While clear, that store waits before it sends anything."""
        self.waiting = Event()
        """Set when that store was asked."""
        self.stored: dict[str, bytes] = {}
        self.pages: dict[str, bytes] = {}
        """Other pages, by path."""
        self._server = HttpServer(self._handler())

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, repo: str, folder: Path, **more: bytes) -> None:
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.repos[repo] = files | {name.replace("__", "."): data for name, data in more.items()}

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                if self.path in hub.pages:
                    self._answer(200, hub.pages[self.path], {"Content-Type": "text/html"})
                    return
                if self.path.startswith("/store/"):
                    self._from_store(hub.stored[self.path.removeprefix("/store/")])
                    return
                path = urlsplit(self.path).path.removeprefix("/api/models").strip("/")
                repo, rest = "/".join(path.split("/")[:2]), path.split("/")[2:]
                if repo not in hub.repos:
                    self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
                elif repo in hub.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
                    self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
                elif rest[:1] == ["tree"]:
                    files = hub.repos[repo].items()
                    self._json([{"type": "file", "path": n, "size": len(d), "oid": _etag(d)} for n, d in files])
                elif rest[:1] == ["resolve"]:
                    self._file(hub.repos[repo].get("/".join(rest[2:])), "/".join(rest[2:]))
                else:
                    self._json({"id": repo, "sha": COMMIT, "siblings": [{"rfilename": n} for n in hub.repos[repo]]})

            def _file(self, data: bytes | None, name: str) -> None:
                if data is None:
                    self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                    return
                if name.endswith(".gguf"):
                    digest = hashlib.sha256(data).hexdigest()
                    hub.stored[digest] = data
                    large = {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(data)), "X-Repo-Commit": COMMIT}
                    store = hub.endpoint.replace("127.0.0.1", "localhost")  # another host, as for the real one
                    self._answer(302, b"", large | {"Location": f"{store}/store/{digest}"})
                    return
                if self.command == "GET":
                    hub.fetched.append(name)
                self._answer(200, data, {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT})

            def _from_store(self, data: bytes) -> None:
                asked, tag = self.headers.get("Range", ""), f'"{hashlib.sha256(data).hexdigest()}"'
                begin = 0
                if asked and self.headers.get("If-Range", tag) == tag:
                    begin = int(asked.removeprefix("bytes=").split("-")[0])
                status, part = (206, data[begin:]) if begin else (200, data)
                if begin >= len(data) and begin:
                    self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                    return
                if self.command == "GET":
                    hub.ranges.append(asked)
                    hub.waiting.set()
                    hub.paused.wait()
                self.send_response(status)
                if begin:
                    self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(part)))
                self.send_header("ETag", tag)
                self.end_headers()
                if self.command == "HEAD":
                    return
                if hub.damaged:
                    part = bytes(len(part))
                if hub.cut:
                    part = part[: hub.cut.pop(0)]
                    self.close_connection = True
                self.wfile.write(part)

            def _json(self, value: object) -> None:
                self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

            def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()

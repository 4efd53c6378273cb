"""A Hugging Face hub of our own: the few routes a download uses, served from memory."""

from __future__ import annotations

import hashlib
import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from support.http_server import HttpServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves `repos`, refuses `gated` ones to callers without `token`, and remembers which files were fetched."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.token = "hf_secret"
        self.fetched: list[str] = []
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
                if self.command == "GET":
                    hub.fetched.append(name)
                self._answer(200, data, {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT})

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

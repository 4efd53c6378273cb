"""A stand-in for S3: lists and serves the files of a bucket from memory, two names a page, to signed requests."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from dynamo.model.s3 import S3Config, signed
from support.http_server import HttpServer

PAGE = 2


class S3Server:
    def __init__(self, bucket: str, config: S3Config) -> None:
        self.files: dict[str, bytes] = {}
        self.served: list[str] = []
        self.truncate = False
        """Files end one byte early."""
        self._bucket = bucket
        self._config = config
        self._server = HttpServer(self._handler())

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> S3Server:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        names = sorted(name for name in self.files if name.startswith(query.get("prefix", [""])[0]))
        begin = int(query.get("continuation-token", ["0"])[0])
        parts = [
            f'<Contents><Key>{escape(name)}</Key><ETag>"{hashlib.md5(self.files[name]).hexdigest()}"</ETag>'
            f"<Size>{len(self.files[name])}</Size></Contents>"
            for name in names[begin : begin + PAGE]
        ]
        if begin + PAGE < len(names):
            parts.append(f"<NextContinuationToken>{begin + PAGE}</NextContinuationToken>")
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        return f'<ListBucketResult xmlns="{space}">{"".join(parts)}</ListBucketResult>'.encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        s3 = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                bucket, _, key = unquote(parts.path).removeprefix("/").partition("/")
                if s3._config.key and not self._is_signed(parts.path, parts.query):
                    self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message></Error>")
                elif bucket != s3._bucket or (key and key not in s3.files):
                    code = "NoSuchKey" if bucket == s3._bucket else "NoSuchBucket"
                    self._answer(404, f"<Error><Code>{code}</Code><Message>not here</Message></Error>".encode())
                elif key:
                    s3.served.append(key)
                    self._answer(200, s3.files[key][: -1 if s3.truncate else None])
                else:
                    self._answer(200, s3._listing(parse_qs(parts.query)))

            def _is_signed(self, path: str, query: str) -> bool:
                moment = self.headers.get("x-amz-date", "")
                try:
                    now = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
                except ValueError:
                    return False
                again = signed(s3._config, self.headers["host"], quote(unquote(path), safe="/-_.~"), query, now)
                return self.headers.get("authorization") == again["authorization"]

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Tests read what it served."""

        return Handler

"""The pages and the files they load: compressed once, with a content security policy that names each inline part."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from functools import cached_property
from pathlib import Path

from aiohttp import web
from multidict import CIMultiDict

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".svg": "image/svg+xml"}
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_IMPORT = re.compile(r'^import [^;]*?from "\./([\w-]+\.js)";$', re.MULTILINE)


class StaticFile:
    """A body and its compressed form, sent with an ETag."""

    def __init__(self, body: bytes, content_type: str, headers: dict[str, str]) -> None:
        self.body = body
        self.packed = gzip.compress(body, 9, mtime=0)
        self._etag = hashlib.sha256(body).hexdigest()[:32]
        self._headers = {
            "Content-Type": f"{content_type}; charset=utf-8",
            "X-Content-Type-Options": "nosniff",
            "Vary": "Accept-Encoding",
            **headers,
        }

    def answer(self, request: web.Request, cache_control: str) -> web.Response:
        accepts_gzip = "gzip" in request.headers.get("Accept-Encoding", "")
        # The two forms are different bytes: a strong ETag must tell them apart.
        etag = f'"{self._etag}{"-gzip" if accepts_gzip else ""}"'
        headers = CIMultiDict(self._headers, **{"Cache-Control": cache_control, "ETag": etag})
        if etag in (part.strip() for part in request.headers.get("If-None-Match", "").split(",")):
            return web.Response(status=304, headers=headers)
        if accepts_gzip:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=self.packed if accepts_gzip else self.body, headers=headers)


class Pages:
    """All files, read when the first one is asked for: a server that nobody looks at pays nothing."""

    @cached_property
    def files(self) -> dict[str, StaticFile]:
        """What the pages load, by name."""
        found = sorted(
            path for folder in (STATIC, STATIC / "vendor") for path in folder.iterdir() if path.suffix in TYPES
        )
        return {path.name: StaticFile(path.read_bytes(), TYPES[path.suffix], {}) for path in found}

    @cached_property
    def version(self) -> str:
        """Part of the files' addresses, so that browsers may keep them for ever."""
        digest = hashlib.sha256()
        for file in self.files.values():
            digest.update(file.body)
        return digest.hexdigest()[:16]

    @cached_property
    def chat(self) -> StaticFile:
        return self._page("chat.html", "chat.js")

    @cached_property
    def fleet(self) -> StaticFile:
        return self._page("fleet.html", "fleet.js", "fleet.css")

    def _page(self, name: str, script: str, *styles: str) -> StaticFile:
        """The style is part of the page, so that one answer is enough to paint it."""
        folder = f"ui/{self.version}"
        links = [f'<link rel="modulepreload" href="{folder}/{each}">' for each in self._imports(script)]
        links.append(f'<script type="module" src="{folder}/{script}"></script>')
        html = (STATIC / name).read_text(encoding="utf-8")
        style = "".join((STATIC / each).read_text(encoding="utf-8") for each in ("style.css", *styles))
        html = html.replace("{static}", folder).replace("{modules}", "\n".join(links)).replace("{style}", style)
        return StaticFile(html.encode(), "text/html", _security_headers(html))

    def _imports(self, script: str) -> list[str]:
        """All modules that a script imports, so that the browser asks for them at once."""
        found: list[str] = []
        waiting = [script]
        while waiting:
            for name in _IMPORT.findall(self.files[waiting.pop()].body.decode()):
                if name not in found:
                    found.append(name)
                    waiting.append(name)
        return sorted(found)


def _security_headers(html: str) -> dict[str, str]:
    sources: dict[str, list[str]] = {"script": ["'self'"], "style": []}
    for tag, content in _INLINE.findall(html):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        sources[tag].append(f"'sha256-{digest}'")
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(sources['script'])}",
        f"style-src {' '.join(sources['style'])}",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    return {
        "Content-Security-Policy": "; ".join(policy),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
    }

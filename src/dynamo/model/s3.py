"""Files of a bucket in S3, or in a server that speaks its protocol. Blocks: call it in a thread."""

from __future__ import annotations

import hashlib
import hmac
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Annotated, Self
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from msgspec import Struct

from dynamo.protocols.errors import ModelError
from dynamo.settings import Setting, Settings, read

_EMPTY = hashlib.sha256(b"").hexdigest()
_SECONDS = 60
"""How long a server may be silent."""


class S3Config(Settings, frozen=True, kw_only=True):
    """The variables that AWS documents. Without a key, requests are sent unsigned, for public buckets."""

    # fmt: off
    endpoint: Annotated[str | None, Setting(
        variables=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), help="address of an S3 server",
        default="AWS's own in the region", parse=lambda text: text.rstrip("/"))] = None
    region: Annotated[str, Setting(
        variables=("AWS_REGION", "AWS_DEFAULT_REGION"), help="the bucket's region")] = "us-east-1"
    key: Annotated[str | None, Setting(variables="AWS_ACCESS_KEY_ID", help="without it, S3 is read anonymously")] = None
    secret: Annotated[str | None, Setting(
        variables="AWS_SECRET_ACCESS_KEY", help="the key's secret", secret=True)] = None
    session: Annotated[str | None, Setting(
        variables="AWS_SESSION_TOKEN", help="for a temporary key", secret=True)] = None
    # fmt: on

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> Self:
        return cls(**read(cls, environ, flags))

    @property
    def address(self) -> str:
        return self.endpoint or f"https://s3.{self.region}.amazonaws.com"


class S3File(Struct, frozen=True):
    """`path` is relative to the prefix it was found under."""

    path: str
    key: str
    size: int
    etag: str


class S3Bucket:
    def __init__(self, name: str, config: S3Config) -> None:
        self._name = name
        self._config = config

    def files(self, prefix: str) -> list[S3File]:
        """What lies under a prefix that is taken for a folder; raises ModelError if there is nothing."""
        folder = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        found = [file for file in self._pages(folder) if file.path and not file.path.endswith("/")]
        if not found:
            raise ModelError(f"there are no files under s3://{self._name}/{folder}")
        return found

    def _pages(self, folder: str) -> Iterator[S3File]:
        asked = {"list-type": "2", "prefix": folder}
        while True:
            with self._get("", asked) as answer:
                try:
                    tree = ElementTree.fromstring(answer.read())
                except ElementTree.ParseError as error:
                    raise ModelError(f"{self._config.address} does not answer as S3 does: {error}") from error
            space = tree.tag.partition("}")[0] + "}" if tree.tag.startswith("{") else ""
            for each in tree.iterfind(f"{space}Contents"):
                key = each.findtext(f"{space}Key", "")
                size = int(each.findtext(f"{space}Size", "0"))
                yield S3File(key.removeprefix(folder), key, size, each.findtext(f"{space}ETag", ""))
            more = tree.findtext(f"{space}NextContinuationToken")
            if not more:
                return
            asked["continuation-token"] = more

    def fetch(self, file: S3File, to: Path) -> None:
        """Raises ModelError also for a file that came incomplete."""
        with self._get(quote(file.key, safe="/-_.~"), {}) as answer, to.open("wb") as out:
            shutil.copyfileobj(answer, out, 1 << 20)
        if (size := to.stat().st_size) != file.size:
            raise ModelError(f"s3://{self._name}/{file.key} ended after {size} of {file.size} bytes")

    def _get(self, path: str, query: Mapping[str, str]) -> HTTPResponse:
        config, parts = self._config, urlsplit(self._config.address)
        at = f"{parts.path}/{quote(self._name, safe='')}/{path}"
        sorted_query = urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
        headers = signed(config, parts.netloc, at, sorted_query, datetime.now(UTC))
        url = f"{parts.scheme}://{parts.netloc}{at}" + (f"?{sorted_query}" if sorted_query else "")
        where = f"s3://{self._name}"
        try:
            answer: HTTPResponse = urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=_SECONDS
            )
        except HTTPError as error:
            with error:
                raise ModelError(f"{where} at {config.address}: {_refusal(error)}") from error
        except (OSError, HTTPException, ValueError) as error:
            raise ModelError(f"{where}: {config.address} cannot be reached: {error}") from error
        return answer


def _refusal(error: HTTPError) -> str:
    try:
        tree = ElementTree.fromstring(error.read(1 << 16))
    except (ElementTree.ParseError, OSError, HTTPException):
        return f"{error.code} {error.reason}"
    return f"{error.code} {tree.findtext('Code', '')} {tree.findtext('Message', '')}".strip()


def signed(config: S3Config, host: str, path: str, query: str, now: datetime) -> dict[str, str]:
    """The headers of a GET request by AWS's Signature Version 4; `path` and `query` are encoded and sorted."""
    if not config.key or not config.secret:
        return {}
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": moment}
    if config.session:
        headers["x-amz-security-token"] = config.session
    names = ";".join(headers)  # they are in the order of the alphabet
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = "\n".join(("GET", path, query, lines, names, _EMPTY))
    scope = f"{moment[:8]}/{config.region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{config.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"{config.key}/{scope}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return headers

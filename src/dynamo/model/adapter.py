"""Resolves the address of a LoRA adapter to a folder on this machine."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self
from urllib.parse import unquote, urlsplit

import xxhash

from dynamo.model.hub import HubConfig, cache_root, download
from dynamo.model.s3 import S3Bucket, S3Config, S3File
from dynamo.protocols.errors import ModelError
from dynamo.settings import Setting, Settings, read

_ADDRESSES = "file:///folder, hf://org/name or s3://bucket/folder"


class AdapterConfig(Settings, frozen=True, kw_only=True):
    """Where adapters come from."""

    # fmt: off
    cache: Annotated[Path, Setting(
        variables="DYN_LORA_PATH", help="folder of LoRA adapters that came from S3",
        default="`dynamo/loras` in `XDG_CACHE_HOME`, else in `~/.cache`")]
    # fmt: on
    hub: HubConfig
    s3: S3Config

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> Self:
        sources = {"hub": HubConfig.from_env(environ), "s3": S3Config.from_env(environ)}
        values: dict[str, Any] = {"cache": cache_root(environ) / "dynamo" / "loras"} | read(cls, environ, flags)
        return cls(**values | {"cache": values["cache"].expanduser()} | sources)


def adapter_folder(uri: str, config: AdapterConfig) -> Path:
    """Blocks while it downloads. A changed adapter of S3 gets another folder; raises ModelError for what is not there.

    That a folder holds an adapter, the engine checks.
    """
    parts = urlsplit(uri)
    if parts.scheme == "hf":
        return download(uri.removeprefix("hf://").strip("/"), config.hub)
    if parts.scheme == "s3":
        return _from_bucket(parts.netloc, unquote(parts.path), config)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise ModelError(f"adapters come from {_ADDRESSES}, not from {uri}")
    return Path(unquote(parts.path) if parts.scheme else uri)


def _from_bucket(name: str, prefix: str, config: AdapterConfig) -> Path:
    if not name:
        raise ModelError(f"an address in S3 is s3://bucket/folder, not s3://{name}{prefix}")
    bucket = S3Bucket(name, config.s3)
    files = bucket.files(prefix)
    folder = config.cache / _content(f"{config.s3.address}/{name}", files)
    if folder.is_dir():
        return folder
    try:
        config.cache.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".", dir=config.cache))
        try:
            for file in files:
                to = unfinished / _inside(file)
                to.parent.mkdir(parents=True, exist_ok=True)
                bucket.fetch(file, to)
            _publish(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise ModelError(f"cannot keep the adapter s3://{name}{prefix} in {config.cache}: {error}") from error
    return folder


def _content(place: str, files: list[S3File]) -> str:
    """The same for the same files of one place; S3 changes the tag of a file with its content."""
    lines = sorted(f"{file.key} {file.size} {file.etag}" for file in files)
    return hashlib.sha256("\n".join((place, *lines)).encode()).hexdigest()[:32]


def _inside(file: S3File) -> PurePosixPath:
    path = PurePosixPath(file.path)
    if path.is_absolute() or ".." in path.parts or "\0" in file.path:
        raise ModelError(f"the name of a file in S3 leads out of its folder: {file.key}")
    return path


def _publish(unfinished: Path, folder: Path) -> None:
    unfinished.chmod(0o755)
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise


def lora_name_to_id(lora_name: str) -> int:
    """A number in 1..2^31-1 that is the same for a name in every process."""
    return xxhash.xxh3_64_intdigest(lora_name.encode()) % ((1 << 31) - 1) + 1

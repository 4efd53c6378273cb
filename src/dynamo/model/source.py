"""Resolves a model's name (a folder, a GGUF file or a Hugging Face id) to files on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from msgspec import Meta, Struct

from dynamo.model.bundled import NAME as BUNDLED
from dynamo.model.bundled import bundled
from dynamo.model.errors import ModelError
from dynamo.settings import Setting, Settings, read
from dynamo.settings.setting import truthy

_HUB = "https://huggingface.co"
_HUB_PREFIX = "hf://"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)

# Repositories often contain the weights in several formats; no engine here loads these.
_OTHER_COPIES = ["original/*", "onnx/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.gguf"]
_TEXT_ONLY = ["*.json", "*.jinja"]


class FetchConfig(Settings, frozen=True, kw_only=True):
    """How files come from workers to readers that have neither them nor a hub."""

    # fmt: off
    cache: Annotated[Path, Setting(
        variables="DYN_MODEL_CACHE", help="folder of the tokenizers, configurations and templates that workers sent",
        default="`dynamo/models` in `XDG_CACHE_HOME`, else in `~/.cache`")]
    cache_mb: Annotated[int, Meta(ge=0, le=1 << 30), Setting(
        variables="DYN_MODEL_CACHE_MB", help="MiB in it; beyond that the longest unused files are removed")] = 1024
    file_mb: Annotated[int, Meta(ge=1, le=2048), Setting(
        variables="DYN_MODEL_FILE_MB", help="largest file, in MiB, that is taken from a worker")] = 128
    total_mb: Annotated[int, Meta(ge=1, le=1 << 20), Setting(
        variables="DYN_MODEL_FILES_MB", help="most MiB that are taken for one model")] = 256
    # fmt: on

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> Self:
        values: dict[str, Any] = {"cache": cache_root(environ) / "dynamo" / "models"} | read(cls, environ, flags)
        return cls(**values | {"cache": values["cache"].expanduser()})


class HubConfig(Settings, frozen=True, kw_only=True):
    """Where models come from: the variables that huggingface_hub documents, in its order of precedence."""

    # fmt: off
    cache: Annotated[Path, Setting(
        variables=("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"), help="folder of downloaded models",
        default="`hub` in `HF_HOME`, else in `~/.cache/huggingface`")]
    token: Annotated[str | None, Setting(
        variables=("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), help="for gated and private models", secret=True)] = None
    endpoint: Annotated[str, Setting(
        variables="HF_ENDPOINT", help="address of the hub or of a mirror", parse=lambda text: text.rstrip("/"))] = _HUB
    offline: Annotated[bool, Setting(
        variables=("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), help="use only what is downloaded", parse=truthy)] = False
    # fmt: on
    fetch: FetchConfig | None = None
    """Without it no files are asked of workers."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> Self:
        cache = Path(environ.get("HF_HOME") or cache_root(environ) / "huggingface") / "hub"
        values: dict[str, Any] = {"cache": cache, "fetch": FetchConfig.from_env(environ)} | read(cls, environ, flags)
        return cls(**values | {"cache": values["cache"].expanduser()})


def cache_root(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache")


class LocalModel(Struct, frozen=True, kw_only=True):
    """A model whose files are on this machine: `path` is a folder or one GGUF file."""

    source: str
    path: Path

    @property
    def is_gguf(self) -> bool:
        return self.path.is_file()


def default_name(source: str) -> str:
    """The name a model is served under by default: the hub id, or the name of the folder or GGUF file."""
    if source.startswith(_HUB_PREFIX):
        return source.removeprefix(_HUB_PREFIX)
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
            hint = "for a repository of GGUF files download one of them and give its path"
        raise ModelError(f"no config.json in {folder} ({hint})")
    if tokenizer and not (folder / "tokenizer.json").is_file():
        raise ModelError(f"no tokenizer.json in {folder} (only models that ship the Hugging Face fast tokenizer work)")


def _is_path(source: str) -> bool:
    return not source.startswith(_HUB_PREFIX) and Path(source).expanduser().exists()


def download(repo: str, config: HubConfig, weights: bool = True) -> Path:
    """The folder of a repository of the hub, downloaded if need be; raises ModelError."""
    if not _HUB_ID.fullmatch(repo) or len(repo) > 96 or ".." in repo or "--" in repo:
        raise ModelError(f"neither a folder, a GGUF file nor a Hugging Face id: {repo} (an id looks like org/name)")
    # Importing the hub client takes a quarter of a second, which a local model does not need.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub import errors as hub

    if not config.offline:
        # The library reads the variable when it is imported: then an engine may have set it for its own processes.
        constants.HF_HUB_OFFLINE = False
    try:
        return Path(
            snapshot_download(
                repo,
                cache_dir=config.cache,
                token=config.token,
                endpoint=config.endpoint,
                local_files_only=config.offline,
                allow_patterns=None if weights else _TEXT_ONLY,
                ignore_patterns=_OTHER_COPIES,
            )
        )
    except hub.GatedRepoError as error:
        page = f"{config.endpoint}/{repo}"
        fix = "your HF_TOKEN has no access to it" if config.token else "set HF_TOKEN to a token of your account"
        raise ModelError(f"{repo} is gated: accept its terms at {page}; {fix}") from error
    except hub.RepositoryNotFoundError as error:
        fix = "or HF_TOKEN may not see it" if config.token else "if it is private, set HF_TOKEN"
        raise ModelError(f"no such model: {repo} is neither a folder here nor on {config.endpoint} ({fix})") from error
    except (hub.LocalEntryNotFoundError, hub.IncompleteSnapshotError) as error:
        why = "HF_HUB_OFFLINE is set" if config.offline else f"{config.endpoint} cannot be reached"
        raise ModelError(f"{repo} is not a folder here, not (fully) in the cache {config.cache}, and {why}") from error
    except Exception as error:  # the hub client also raises errors of its HTTP library, its cache and the disk
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"cannot download {repo} from {config.endpoint}: {lines[0]}") from error

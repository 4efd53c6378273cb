"""The models on this machine: those pulled from addresses and packages, and those in the cache of the hub."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.protocols.errors import ModelError
from dynamo.settings import nearest

_RECORD = "source.json"


class KeptModel(Struct, frozen=True, kw_only=True):
    """`name` is what a command takes for it."""

    name: str
    size: int
    path: Path
    finished: bool = True
    of_hub: str | None = None
    """The repository whose file or folder it is."""


class ModelOrigin(Struct, frozen=True):
    source: str


def record_source(folder: Path, source: str) -> None:
    """Say in a folder what is kept there; raises ModelError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _RECORD).write_bytes(msgspec.json.encode(ModelOrigin(source)))
    except OSError as error:
        where = f"{folder.parent}: {error.strerror} (DYN_PULLED_MODELS names another folder)"
        raise ModelError(f"cannot keep models in {where}") from error


def kept_models(pulled: Path, hub_cache: Path) -> list[KeptModel]:
    """All of them, by name. Blocks: it looks at every file."""
    return sorted([*_pulled(pulled), *_of_hub(hub_cache)], key=lambda model: model.name.lower())


def remove_model(name: str, pulled: Path, hub_cache: Path) -> KeptModel:
    """Removes one and says what it was; raises ModelError if there is none of that name."""
    models = kept_models(pulled, hub_cache)
    model = next((each for each in models if each.name == name), None)
    if model is None:
        hint = nearest(name, [each.name for each in models]) or "; `dynamo list` shows what is"
        raise ModelError(f"no model '{name}' is kept here{hint}")
    try:
        if model.of_hub is None:
            shutil.rmtree(model.path)
        elif model.path.suffix == ".gguf":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(model.path.resolve())
            os.unlink(model.path)
            if not any(each.of_hub == model.of_hub for each in _of_hub(hub_cache)):
                _remove_repository(model.of_hub, hub_cache)
        else:
            _remove_repository(model.of_hub, hub_cache)
    except OSError as error:
        raise ModelError(f"cannot remove {model.path}: {error.strerror}") from error
    return model


def _pulled(folder: Path) -> Iterator[KeptModel]:
    for place in folder.iterdir() if folder.is_dir() else ():
        try:
            record = msgspec.json.decode((place / _RECORD).read_bytes(), type=ModelOrigin)
        except (OSError, msgspec.DecodeError):
            continue
        files = [each for each in place.iterdir() if each.name != _RECORD]
        yield KeptModel(
            name=record.source,
            size=sum(each.stat().st_size for each in files),
            path=place,
            finished=any(each.suffix == ".gguf" and not each.name.startswith(".") for each in files),
        )


def _of_hub(cache: Path) -> Iterator[KeptModel]:
    for repo in _repositories(cache):
        files = {file.file_path: file for revision in repo.revisions for file in revision.files}
        ggufs = [file for path, file in files.items() if path.suffix == ".gguf"]
        for file in ggufs:
            within = file.file_path.relative_to(_snapshot_of(file.file_path))
            yield KeptModel(
                name=f"{repo.repo_id}/{within}", size=file.size_on_disk, path=file.file_path, of_hub=repo.repo_id
            )
        if len(files) > len(ggufs) and (not ggufs or any(path.name == "config.json" for path in files)):
            size = repo.size_on_disk - sum(file.size_on_disk for file in ggufs)
            yield KeptModel(name=repo.repo_id, size=size, path=repo.repo_path, of_hub=repo.repo_id)


def _snapshot_of(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.parent.name == "snapshots")


def _remove_repository(repo: str, cache: Path) -> None:
    for each in _repositories(cache):
        if each.repo_id == repo:
            shutil.rmtree(each.repo_path)


def _repositories(cache: Path) -> list[Any]:
    if not cache.is_dir():
        return []
    from huggingface_hub import scan_cache_dir  # a quarter of a second

    return [repo for repo in scan_cache_dir(cache).repos if repo.repo_type == "model"]

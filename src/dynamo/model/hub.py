"""Downloads models from a Hugging Face hub, and says from the environment where it and its cache are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from msgspec import Meta

from dynamo.model.files import checksum
from dynamo.model.pull.download import check_space
from dynamo.protocols.errors import ModelError
from dynamo.settings import Setting, Settings, read
from dynamo.settings.setting import truthy

_HUB = "https://huggingface.co"
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_PIECE = re.compile(r"(.+-)00001(-of-(\d{5})\.gguf)", re.IGNORECASE)
"""The first file of a model that is cut into several."""
T = TypeVar("T")

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


class PullConfig(Settings, frozen=True, kw_only=True):
    """Models that come neither from the hub nor from workers."""

    # fmt: off
    folder: Annotated[Path, Setting(
        variables="DYN_PULLED_MODELS", help="folder of models that came from an address or a package",
        default="`dynamo/pulled` in `XDG_CACHE_HOME`, else in `~/.cache`")]
    index: Annotated[str, Setting(
        variables=("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), help="Python's package index, for the short names that come "
        "from it", parse=lambda text: text.rstrip("/"))] = "https://pypi.org/simple"
    # fmt: on

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> Self:
        values: dict[str, Any] = {"folder": cache_root(environ) / "dynamo" / "pulled"} | read(cls, environ, flags)
        return cls(**values | {"folder": values["folder"].expanduser()})


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
    pull: PullConfig | None = None
    """Without it only the hub and this machine have models."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> Self:
        cache = Path(environ.get("HF_HOME") or cache_root(environ) / "huggingface") / "hub"
        values: dict[str, Any] = {"cache": cache} | read(cls, environ, flags)
        values |= {"fetch": FetchConfig.from_env(environ), "pull": PullConfig.from_env(environ)}
        return cls(**values | {"cache": values["cache"].expanduser()})


def cache_root(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache")


def download(repo: str, config: HubConfig, weights: bool = True) -> Path:
    """The folder of a repository of the hub, downloaded if need be; raises ModelError."""

    def fetch(options: dict[str, Any]) -> Path:
        from huggingface_hub import snapshot_download

        options |= {
            "allow_patterns": None if weights else _TEXT_ONLY,
            "ignore_patterns": _OTHER_COPIES,
            "tqdm_class": _silent_bar(),
        }
        missing = _missing(lambda: snapshot_download(repo, dry_run=True, **options), config)
        if missing is None:
            del options["tqdm_class"]
        elif missing:
            check_space(config.cache, sum(file.file_size or 0 for file in missing), repo)
            del options["tqdm_class"]
        return Path(snapshot_download(repo, **options))

    return _from_hub(repo, config, fetch)


def download_gguf(repo: str, file: str, config: HubConfig) -> Path:
    """A GGUF file of a repository, with its other pieces if it is the first of several; raises ModelError."""
    path = _download_file(repo, file, config)
    if pieces := _PIECE.fullmatch(file):
        for number in range(2, int(pieces[3]) + 1):
            _download_file(repo, f"{pieces[1]}{number:05}{pieces[2]}", config)
    return path


def find_gguf(repo: str, tag: str, config: HubConfig) -> str:
    """The GGUF file of a repository whose name has the quantisation `tag`; raises ModelError."""

    def listed(options: dict[str, Any]) -> list[str]:
        if config.offline:
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(repo, **options))
            return [str(path.relative_to(folder)) for path in folder.rglob("*")]
        from huggingface_hub import HfApi

        return HfApi(endpoint=config.endpoint, token=config.token).list_repo_files(repo)

    ggufs = sorted(name for name in _from_hub(repo, config, listed) if name.lower().endswith(".gguf"))
    found = [name for name in ggufs if _has_tag(name, tag)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{repo}/{each}" for each in found)
        raise ModelError(f"{repo} has {len(found)} files for {tag}; name one: {names}")
    offers = f"it has {', '.join(ggufs)}" if ggufs else "it has no GGUF files"
    raise ModelError(f"{repo} has no GGUF file for {tag}: {offers}")


def _has_tag(name: str, tag: str) -> bool:
    """Whether a file is of that quantisation; of a model in pieces only the first is."""
    stem = re.sub(r"-00001-of-\d{5}$", "", name[: -len(".gguf")], flags=re.IGNORECASE)
    return re.search(rf"(^|[-._/]){re.escape(tag)}$", stem, re.IGNORECASE) is not None


def _download_file(repo: str, file: str, config: HubConfig) -> Path:
    def fetch(options: dict[str, Any]) -> Path:
        from huggingface_hub import hf_hub_download

        missing = _missing(lambda: [hf_hub_download(repo, file, dry_run=True, **options)], config)
        for each in missing or ():
            check_space(config.cache, each.file_size or 0, f"{repo}/{file}")
        path = Path(hf_hub_download(repo, file, **options))
        if missing:
            _check_blob(path, config)
        return path

    return _from_hub(repo, config, fetch, file)


def _missing(ask: Callable[[], Any], config: HubConfig) -> list[Any] | None:
    """What would be downloaded; None where the hub cannot say, and then the download itself says why."""
    from huggingface_hub import errors as hub

    if config.offline:
        return []
    try:
        return [file for file in ask() if file.will_download]
    except hub.DryRunError:
        return None


def _check_blob(path: Path, config: HubConfig) -> None:
    """The hub names large files by their SHA-256, and its client compares only their size."""
    blob = path.resolve()
    if len(blob.name) == 64 and (found := checksum(blob)) != blob.name:
        path.unlink()
        blob.unlink()
        raise ModelError(
            f"{path.name} came damaged from {config.endpoint}: its SHA-256 is {found}, not {blob.name}; "
            "it was removed: pull it again"
        )


def _silent_bar() -> type:
    """Instead of a progress bar where there is nothing to fetch."""
    from tqdm.auto import tqdm

    class Silent(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **options | {"disable": True})

    return Silent


def _from_hub(repo: str, config: HubConfig, fetch: Callable[[dict[str, Any]], T], file: str | None = None) -> T:
    """What `fetch` returns, called with the options of the hub's client; each failure is a ModelError of one line."""
    if not _ID.fullmatch(repo) or len(repo) > 96 or ".." in repo or "--" in repo:
        raise ModelError(f"neither a folder, a GGUF file nor a Hugging Face id: {repo} (an id looks like org/name)")
    # Importing the hub client takes a quarter of a second, which a local model does not need.
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    if not config.offline:
        # The library reads the variable when it is imported: then an engine may have set it for its own processes.
        constants.HF_HUB_OFFLINE = False
    options = {
        "cache_dir": config.cache,
        "token": config.token,
        "endpoint": config.endpoint,
        "local_files_only": config.offline,
    }
    try:
        return fetch(options)
    except ModelError:
        raise
    except hub.GatedRepoError as error:
        page = f"{config.endpoint}/{repo}"
        fix = "your HF_TOKEN has no access to it" if config.token else "set HF_TOKEN to a token of your account"
        raise ModelError(f"{repo} is gated: accept its terms at {page}; {fix}") from error
    except hub.RepositoryNotFoundError as error:
        fix = "or HF_TOKEN may not see it" if config.token else "if it is private, set HF_TOKEN"
        raise ModelError(f"no such model: {repo} is neither a folder here nor on {config.endpoint} ({fix})") from error
    except hub.RemoteEntryNotFoundError as error:
        raise ModelError(f"{repo} on {config.endpoint} has no file {file}") from error
    except (hub.LocalEntryNotFoundError, hub.IncompleteSnapshotError) as error:
        why = "HF_HUB_OFFLINE is set" if config.offline else f"{config.endpoint} cannot be reached"
        raise ModelError(f"{repo} is not a folder here, not (fully) in the cache {config.cache}, and {why}") from error
    except Exception as error:  # the hub client also raises errors of its HTTP library, its cache and the disk
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"cannot download {repo} from {config.endpoint}: {lines[0]}") from error

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamo.model import BUNDLED, FetchConfig, HubConfig, ModelError, bundled, default_name, resolve
from support import models
from support.hub import COMMIT, Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    hub.start()
    yield hub
    hub.stop()


@pytest.fixture
def offline(tmp_path: Path) -> HubConfig:
    return HubConfig(cache=tmp_path / "cache", offline=True)


def online(hub: Hub, tmp_path: Path, token: str | None = None) -> HubConfig:
    return HubConfig(cache=tmp_path / "cache", endpoint=hub.endpoint, token=token)


def cached(config: HubConfig, repo: str) -> Path:
    """A model in the cache as an earlier download leaves it."""
    folder = config.cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return models.byte_level_model(folder / "snapshots" / COMMIT)


def test_a_folder_is_used_where_it_is(tmp_path: Path, offline: HubConfig) -> None:
    folder = models.byte_level_model(tmp_path / "tiny")
    local = resolve(str(folder), config=offline)
    assert (local.path, local.source, local.is_gguf) == (folder, str(folder), False)


def test_tiny_is_the_bundled_model_unless_a_folder_has_that_name(
    tmp_path: Path, offline: HubConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(BUNDLED, config=offline).path == bundled()
    folder = models.byte_level_model(tmp_path / BUNDLED)
    assert resolve(BUNDLED, config=offline).path == folder


def test_a_relative_folder_without_a_slash_is_found(
    tmp_path: Path, offline: HubConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = models.byte_level_model(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert resolve("tiny", config=offline).path == folder


def test_a_gguf_file_is_used_where_it_is(tmp_path: Path, offline: HubConfig) -> None:
    path = tmp_path / "tiny.Q8_0.gguf"
    path.write_bytes(b"GGUF....")
    local = resolve(str(path), config=offline)
    assert (local.path, local.is_gguf) == (path, True)


@pytest.mark.parametrize("prefix", ["", "hf://"])
def test_a_hub_id_is_found_in_the_cache_when_offline(prefix: str, offline: HubConfig) -> None:
    snapshot = cached(offline, "org/tiny")
    assert resolve(f"{prefix}org/tiny", config=offline).path == snapshot


def test_a_hub_id_is_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/tiny", models.byte_level_model(tmp_path / "tiny"), model__safetensors=b"weights")
    local = resolve("hf://org/tiny", config=online(hub, tmp_path))
    assert (local.path / "model.safetensors").read_bytes() == b"weights"
    fetched = len(hub.fetched)
    assert resolve("org/tiny", config=online(hub, tmp_path)).path == local.path
    assert len(hub.fetched) == fetched


def test_weights_are_not_downloaded_if_not_needed(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/tiny", models.byte_level_model(tmp_path / "tiny"), model__safetensors=b"weights")
    local = resolve("org/tiny", config=online(hub, tmp_path), weights=False)
    assert (local.path / "tokenizer.json").is_file()
    assert "model.safetensors" not in hub.fetched


def test_a_gated_model_asks_for_a_token(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/tiny", models.byte_level_model(tmp_path / "tiny"))
    hub.gated.add("org/tiny")
    with pytest.raises(ModelError, match=r"org/tiny is gated: accept its terms at .*/org/tiny; set HF_TOKEN"):
        resolve("org/tiny", config=online(hub, tmp_path))
    with pytest.raises(ModelError, match="your HF_TOKEN has no access to it"):
        resolve("org/tiny", config=online(hub, tmp_path, token="hf_wrong"))
    assert resolve("org/tiny", config=online(hub, tmp_path, token=hub.token)).path.is_dir()


def test_a_model_the_hub_does_not_have_is_named(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model: org/none is neither a folder here nor on http"):
        resolve("org/none", config=online(hub, tmp_path))


def test_an_unreachable_hub_is_named_with_the_cache(tmp_path: Path) -> None:
    config = HubConfig(cache=tmp_path / "cache", endpoint="http://127.0.0.1:1")
    with pytest.raises(ModelError, match=r"not \(fully\) in the cache .*, and http://127.0.0.1:1 cannot be reached"):
        resolve("org/tiny", config=config)


def test_a_model_that_is_not_cached_is_named_when_offline(offline: HubConfig) -> None:
    with pytest.raises(ModelError, match=r"org/tiny is not a folder here, .* and HF_HUB_OFFLINE is set"):
        resolve("org/tiny", config=offline)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "no model given"),
        ("a\0b", "no model given"),
        ("/no/such/place/model", "no such model folder: /no/such/place/model .*write place/model"),
        ("./missing", "no such model folder: ./missing"),
        ("missing.gguf", "no such GGUF file: missing.gguf"),
        ("hf://", "neither a folder, a GGUF file nor a Hugging Face id"),
        ("hf://a/b/c", "neither a folder, a GGUF file nor a Hugging Face id"),
        ("hf://../etc", "neither a folder, a GGUF file nor a Hugging Face id"),
        ("not an id", "neither a folder, a GGUF file nor a Hugging Face id"),
        ("ünïcode/modèl", "neither a folder, a GGUF file nor a Hugging Face id"),
    ],
)
def test_an_invalid_source_is_one_clear_line(source: str, message: str, offline: HubConfig) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        resolve(source, config=offline)
    assert "\n" not in str(caught.value)


def test_a_path_whose_parent_exists_says_what_is_missing_there(tmp_path: Path, offline: HubConfig) -> None:
    with pytest.raises(ModelError, match=f"{tmp_path} exists but has no tiny"):
        resolve(str(tmp_path / "tiny"), config=offline)


def test_a_folder_without_config_is_refused(tmp_path: Path, offline: HubConfig) -> None:
    with pytest.raises(ModelError, match=r"no config.json in .*Hugging Face layout"):
        resolve(str(tmp_path), config=offline)


def test_a_folder_of_gguf_files_says_to_give_the_file(tmp_path: Path, offline: HubConfig) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"no config.json .* give .*tiny.gguf"):
        resolve(str(tmp_path), config=offline)


def test_a_folder_without_tokenizer_is_refused_unless_the_engine_takes_text(tmp_path: Path, offline: HubConfig) -> None:
    folder = models.byte_level_model(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer.json in"):
        resolve(str(folder), config=offline)
    assert resolve(str(folder), config=offline, tokenizer=False).path == folder


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path, offline: HubConfig) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"{}")
    with pytest.raises(ModelError, match="not a GGUF file"):
        resolve(str(path), config=offline)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("hf://Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("gpt2", "gpt2"),
        ("/models/Llama-3.2-3B/", "Llama-3.2-3B"),
        ("~/llms/Qwen3-0.6B-Q8_0.gguf", "Qwen3-0.6B-Q8_0"),
        ("Llama.Q4.GGUF", "Llama.Q4"),
    ],
)
def test_a_model_is_named_after_where_it_comes_from(source: str, name: str) -> None:
    assert default_name(source) == name


def test_an_existing_folder_gives_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert default_name("org/tiny") == "tiny"
    monkeypatch.chdir(tmp_path / "org" / "tiny")
    assert default_name(".") == "tiny"


def test_the_environment_decides_how_the_hub_is_reached() -> None:
    config = HubConfig.from_env(
        {"HF_TOKEN": "t", "HF_HUB_OFFLINE": "ON", "HF_HOME": "/hf", "HF_ENDPOINT": "http://mirror/", "HOME": "/h"}
    )
    assert (config.cache, config.token, config.endpoint, config.offline) == (
        Path("/hf/hub"),
        "t",
        "http://mirror",
        True,
    )
    plain = HubConfig.from_env({"HOME": "/h"})
    assert (plain.cache, plain.token, plain.offline) == (Path("/h/.cache/huggingface/hub"), None, False)
    assert HubConfig.from_env({"HF_HUB_CACHE": "/c", "HF_HOME": "/hf", "HF_HUB_OFFLINE": "0"}).cache == Path("/c")
    assert HubConfig.from_env({"XDG_CACHE_HOME": "/x"}).cache == Path("/x/huggingface/hub")


def test_the_environment_decides_where_files_from_workers_are_kept_and_how_many() -> None:
    def fetch(**environ: str) -> FetchConfig | None:
        return HubConfig.from_env(environ).fetch

    assert fetch(HOME="/h") == FetchConfig(
        cache=Path("/h/.cache/dynamo/models"), cache_mb=1024, file_mb=128, total_mb=256
    )
    assert fetch(XDG_CACHE_HOME="/x") == FetchConfig(cache=Path("/x/dynamo/models"))
    limits = {"DYN_MODEL_CACHE_MB": "3", "DYN_MODEL_FILE_MB": "1", "DYN_MODEL_FILES_MB": "2"}
    chosen = FetchConfig(cache=Path("/m"), cache_mb=3, file_mb=1, total_mb=2)
    assert fetch(DYN_MODEL_CACHE="/m", **limits) == chosen
    with pytest.raises(ValueError, match="DYN_MODEL_FILE_MB must be at least 1, not 0"):
        fetch(DYN_MODEL_FILE_MB="0")

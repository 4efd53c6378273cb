"""LoRA adapters come from a folder, from the hub or from S3."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from huggingface_hub import constants

from dynamo.model import AdapterConfig, ModelError, S3Config, adapter_folder
from dynamo.model.s3 import signed
from support.hub import Hub
from support.s3_server import S3Server

KEY = S3Config(key="AKIAIOSFODNN7EXAMPLE", secret="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
FILES = {
    "teams/a b/poet/adapter_config.json": b"{}",
    "teams/a b/poet/adapter_model.safetensors": b"w" * 100_000,
    "teams/a b/poet/more/tokenizer.json": b"[]",
    "teams/a b/poet/empty/": b"",
    "teams/a b/poet2/adapter_config.json": b"another",
}


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server("adapters", KEY) as server:
        server.files |= FILES
        yield server


def config(place: Path, endpoint: str, **more: str) -> AdapterConfig:
    return AdapterConfig.from_env(
        {
            "HOME": str(place),
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": str(KEY.key),
            "AWS_SECRET_ACCESS_KEY": str(KEY.secret),
            "HF_ENDPOINT": endpoint,
            **more,
        }
    )


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_requests_are_signed_as_in_the_examples_of_aws(query: str, signature: str) -> None:
    now = datetime(2013, 5, 24, tzinfo=UTC)
    headers = signed(KEY, "examplebucket.s3.amazonaws.com", "/", query, now)
    assert headers["authorization"].endswith(f"Signature={signature}")


def test_without_a_key_nothing_is_signed() -> None:
    assert signed(S3Config(), "h", "/", "", datetime.now(UTC)) == {}


def test_all_files_of_a_folder_in_s3_are_fetched_once(server: S3Server, tmp_path: Path) -> None:
    asked = config(tmp_path, server.endpoint)
    folder = adapter_folder("s3://adapters/teams/a%20b/poet/", asked)
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": b"w" * 100_000,
        "more/tokenizer.json": b"[]",
    }
    served = list(server.served)
    assert adapter_folder("s3://adapters/teams/a%20b/poet", asked) == folder
    assert server.served == served


def test_a_changed_adapter_gets_another_folder(server: S3Server, tmp_path: Path) -> None:
    asked = config(tmp_path, server.endpoint)
    uri = "s3://adapters/teams/a b/poet"
    old = adapter_folder(uri, asked)
    server.files["teams/a b/poet/adapter_config.json"] = b"[]"
    new = adapter_folder(uri, asked)
    assert new != old
    assert (new / "adapter_config.json").read_bytes() == b"[]"
    assert (old / "adapter_config.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("uri", "more", "reason"),
    [
        ("s3://adapters/nothing", {}, "no files under s3://adapters/nothing/"),
        ("s3://elsewhere/a", {}, "404 NoSuchBucket not here"),
        ("s3:///a", {}, "s3://bucket/folder"),
        ("s3://adapters/teams", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "403 SignatureDoesNotMatch"),
        ("s3://adapters/teams", {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}, "cannot be reached"),
        ("hf://org/none", {}, "no such model"),
        ("gs://bucket/a", {}, "file:///folder, hf://org/name or s3://bucket/folder"),
        ("file://otherhost/a", {}, "file:///folder, hf://org/name or s3://bucket/folder"),
    ],
)
def test_what_cannot_be_fetched_is_named(
    server: S3Server, tmp_path: Path, uri: str, more: dict[str, str], reason: str
) -> None:
    with Served() as hub, pytest.raises(ModelError, match=reason):
        adapter_folder(uri, config(tmp_path, server.endpoint, **{"HF_ENDPOINT": hub.endpoint, **more}))
    cache = tmp_path / ".cache" / "dynamo" / "loras"
    assert not cache.exists() or not list(cache.iterdir())


def test_an_incomplete_file_is_not_kept(server: S3Server, tmp_path: Path) -> None:
    server.truncate = True
    asked = config(tmp_path, server.endpoint)
    with pytest.raises(ModelError, match="ended after"):
        adapter_folder("s3://adapters/teams/a b/poet", asked)
    assert list(asked.cache.iterdir()) == []
    server.truncate = False
    assert adapter_folder("s3://adapters/teams/a b/poet", asked).is_dir()


def test_a_name_that_leads_out_of_the_folder_is_refused(server: S3Server, tmp_path: Path) -> None:
    server.files = {"evil/../../x": b"?"}
    with pytest.raises(ModelError, match="leads out"):
        adapter_folder("s3://adapters/evil", config(tmp_path, server.endpoint))


def test_an_adapter_of_the_hub_is_a_folder_of_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # as after an engine that set the variable for itself
    source = tmp_path / "source"
    source.mkdir()
    (source / "adapter_config.json").write_bytes(b"{}")
    with Served() as hub:
        hub.add("org/poet", source)
        folder = adapter_folder("hf://org/poet", config(tmp_path, hub.endpoint))
    assert (folder / "adapter_config.json").read_bytes() == b"{}"


@pytest.mark.parametrize("uri", ["/a b/c", "file:///a%20b/c", "file://localhost/a%20b/c"])
def test_a_folder_is_taken_as_it_is(uri: str, tmp_path: Path) -> None:
    assert adapter_folder(uri, config(tmp_path, "http://127.0.0.1:1")) == Path("/a b/c")


class Served(Hub):
    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

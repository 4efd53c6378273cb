from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from dynamo.model import HubConfig, ModelError, build_card, open_card, resolve
from dynamo.protocols.card import ModelCard, ModelInput, ModelType
from support import models
from support.gguf_writer import byte_level_metadata, write_gguf
from support.hub import COMMIT


@pytest.fixture
def offline(tmp_path: Path) -> HubConfig:
    return HubConfig(cache=tmp_path / "cache", offline=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return models.byte_level_model(tmp_path / "tiny")


def card_of(folder: Path, config: HubConfig, context_length: int | None = None, **more: str) -> ModelCard:
    local = resolve(str(folder), config=config)
    return build_card(local, name="tiny", model_type=ModelType.Backend, context_length=context_length, **more)  # type: ignore[arg-type]


def over_the_wire(card: ModelCard) -> ModelCard:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(card), type=ModelCard)


def test_a_card_loads_everything_a_frontend_needs(folder: Path, offline: HubConfig) -> None:
    model = open_card(over_the_wire(card_of(folder, offline)), offline)
    assert model.template is not None
    prompt = model.tokenizer.encode(model.template.render([{"role": "user", "content": "hello"}]))
    assert model.tokenizer.decode(prompt, skip_special_tokens=False).endswith("<|im_start|>assistant\n")
    assert model.eos_token_ids == [model.tokenizer.id_of("<|im_end|>")]
    assert (model.sampling.temperature, model.sampling.top_p) == (0.7, 0.9)
    assert model.context_length == 2048


def test_two_copies_of_a_model_have_equal_cards(folder: Path, tmp_path: Path, offline: HubConfig) -> None:
    copy = tmp_path / "elsewhere" / "tiny"
    shutil.copytree(folder, copy)
    assert card_of(folder, offline).checksum() == card_of(copy, offline).checksum()
    (copy / "chat_template.jinja").write_text("other")
    assert card_of(folder, offline).checksum() != card_of(copy, offline).checksum()


def test_the_context_length_can_be_reduced_but_not_raised(folder: Path, offline: HubConfig) -> None:
    assert card_of(folder, offline, context_length=100).context_length == 100
    assert open_card(card_of(folder, offline, context_length=100), offline).context_length == 100
    with pytest.raises(ModelError, match="context length 4096 is more than the model's own 2048"):
        card_of(folder, offline, context_length=4096)
    with pytest.raises(ModelError, match="at least 1, not 0"):
        card_of(folder, offline, context_length=0)


def test_a_custom_template_replaces_the_models_own(folder: Path, tmp_path: Path, offline: HubConfig) -> None:
    mine = tmp_path / "mine.jinja"
    mine.write_text("mine: {{ messages[0].content }}")
    model = open_card(card_of(folder, offline, custom_template_path=str(mine)), offline)
    assert model.template is not None
    assert model.template.render([{"role": "user", "content": "hi"}]) == "mine: hi"
    with pytest.raises(ModelError, match="no such chat template"):
        card_of(folder, offline, custom_template_path="/nowhere.jinja")


def test_a_frontend_elsewhere_finds_the_same_files_by_the_hub_id(folder: Path, offline: HubConfig) -> None:
    cached = offline.cache / "models--org--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(COMMIT)
    shutil.copytree(folder, cached / "snapshots" / COMMIT)
    card = build_card(resolve("org/tiny", config=offline), name="tiny", model_type=ModelType.Chat)
    assert card.source == "org/tiny"
    moved = {role: msgspec.structs.replace(file, path="/worker" + file.path) for role, file in card.files.items()}
    assert open_card(msgspec.structs.replace(card, files=moved), offline).context_length == 2048


def test_a_frontend_that_cannot_find_the_files_says_what_it_tried(folder: Path, offline: HubConfig) -> None:
    card = card_of(folder, offline)
    shutil.rmtree(folder)
    with pytest.raises(
        ModelError, match=r"cannot open model tiny: there is no .*config.json here; .* no such model folder"
    ):
        open_card(card, offline)
    with pytest.raises(ModelError, match="names no source"):
        open_card(msgspec.structs.replace(card, source=None), offline)


def test_a_file_that_differs_from_the_card_is_rejected(folder: Path, offline: HubConfig) -> None:
    card = card_of(folder, offline)
    models.write(folder / "config.json", {"max_position_embeddings": 7})
    with pytest.raises(ModelError, match=r"config.json differs from the worker's"):
        open_card(card, offline)


def test_a_folder_with_broken_json_is_one_clear_error(folder: Path, offline: HubConfig) -> None:
    for content, message in (
        (b"{", "not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b"\xff\xfe\xff", "not valid"),
    ):
        (folder / "config.json").write_bytes(content)
        with pytest.raises(ModelError, match=message):
            card_of(folder, offline)


def test_a_config_with_infinity_in_it_is_read(folder: Path, offline: HubConfig) -> None:
    (folder / "config.json").write_text('{"time_step_limit": [0.0, Infinity], "max_position_embeddings": 64}')
    assert card_of(folder, offline).context_length == 64


def test_a_model_without_template_opens_without_one(folder: Path, offline: HubConfig) -> None:
    (folder / "tokenizer_config.json").unlink()
    assert open_card(card_of(folder, offline), offline).template is None


def test_a_text_model_needs_no_tokenizer(folder: Path, offline: HubConfig) -> None:
    (folder / "tokenizer.json").unlink()
    local = resolve(str(folder), config=offline, tokenizer=False)
    card = build_card(local, name="tiny", model_type=ModelType.Chat, model_input=ModelInput.Text)
    assert "tokenizer" not in card.files
    with pytest.raises(ModelError, match="serves text, not tokens"):
        open_card(card, offline)


def test_a_model_needs_a_name(folder: Path, offline: HubConfig) -> None:
    with pytest.raises(ModelError, match="needs a name"):
        build_card(resolve(str(folder), config=offline), name="", model_type=ModelType.Chat)


def test_a_sentencepiece_model_opens(tmp_path: Path, offline: HubConfig) -> None:
    model = open_card(card_of(models.sentencepiece_model(tmp_path / "llama"), offline), offline)
    assert model.template is not None
    prompt = model.tokenizer.encode(model.template.render([{"role": "user", "content": "hello"}]))
    assert prompt[0] == 1
    assert prompt.count(1) == 1
    assert model.eos_token_ids == [2]


def test_a_gguf_card_covers_the_metadata_not_the_weights(tmp_path: Path, offline: HubConfig) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", byte_level_metadata())
    card = card_of(path, offline)
    assert list(card.files) == ["gguf"]
    with path.open("ab") as file:
        file.write(b"more weights")
    assert open_card(over_the_wire(card), offline).context_length == 1024
    write_gguf(path, byte_level_metadata(**{"tokenizer.chat_template": "other"}))
    with pytest.raises(ModelError, match="differs from the worker's"):
        open_card(card, offline)

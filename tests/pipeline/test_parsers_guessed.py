"""Which parsers a model gets when it registers."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from dynamo.llm.register import register_card
from dynamo.model import ModelError, build_card, resolve
from dynamo.pipeline.output_formats import with_parsers
from dynamo.protocols.card import ModelCard, ModelType
from dynamo.runtime import DistributedRuntime, Local, RuntimeConfig, records
from dynamo.runtime.names import CARDS
from pipeline.parse.templates import TEMPLATES
from support import models
from support.toys import OFFLINE, text_card, toy_card


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose template writes calls as Gemma 4 does."""
    made = models.byte_level_model(tmp_path / "model")
    config = json.loads((made / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATES["gemma4"]
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    return made


def parsers(card: ModelCard) -> tuple[str | None, str | None]:
    config = with_parsers(card).runtime_config
    return config.tool_call_parser, config.reasoning_parser


def test_a_model_gets_the_parsers_that_its_template_writes_for(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dynamo.pipeline.output_formats")
    assert parsers(toy_card(folder)) == ("gemma4", "gemma4")
    assert [record.getMessage() for record in caplog.records] == [
        "tool calls are parsed as gemma4, as the chat template writes them; --dyn-tool-call-parser changes it",
        "reasoning is parsed as gemma4, as the chat template writes it; --dyn-reasoning-parser changes it",
    ]


def test_auto_asks_for_the_guess_and_a_name_or_none_overrides_it(folder: Path) -> None:
    assert parsers(toy_card(folder, tool_call_parser="auto", reasoning_parser="none")) == ("gemma4", None)
    assert parsers(toy_card(folder, tool_call_parser="none", reasoning_parser="basic")) == (None, "basic")


def test_an_unknown_parser_is_refused_before_the_model_is_listed(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"unknown tool_call_parser 'gemma9'; use auto, none, .*gemma4"):
        with_parsers(toy_card(folder, tool_call_parser="gemma9"))


def test_a_custom_template_decides(folder: Path, tmp_path: Path) -> None:
    custom = tmp_path / "own.jinja"
    custom.write_text(TEMPLATES["minimax_m3"])
    model = resolve(str(folder), config=OFFLINE)
    card = build_card(model, name="m", model_type=ModelType.Backend, custom_template_path=custom)
    assert parsers(card) == ("minimax_m3", "minimax_m3")


def test_models_that_do_not_chat_get_no_parser(folder: Path) -> None:
    assert parsers(text_card("text")) == (None, None)
    assert parsers(toy_card(folder, model_type=ModelType.Embedding)) == (None, None)


async def test_the_card_on_the_network_names_the_guessed_parsers(folder: Path) -> None:
    local = Local()
    config = RuntimeConfig.in_process({})
    async with (
        DistributedRuntime(config=config, local=local) as first,
        DistributedRuntime(config=config, local=local) as second,
    ):
        for runtime in (first, second):  # the second is refused if its card differs
            await register_card(runtime.namespace("n").component("c").endpoint("e"), toy_card(folder))
        found = [records.decode_card(value) for value in (await first.discovery.get_prefix(CARDS)).values()]
        assert [card.runtime_config.tool_call_parser for card in found] == ["gemma4", "gemma4"]

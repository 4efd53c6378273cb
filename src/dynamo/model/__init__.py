"""Models: finding their files, tokenizer, chat template and card."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dynamo.protocols.errors import FileError, ModelError, TemplateError

if TYPE_CHECKING:
    from dynamo.model.adapter import AdapterConfig, adapter_folder
    from dynamo.model.card import LoadedModel, build_card, card_template, open_card
    from dynamo.model.detokenize import Decoder, json_escaped, json_unescaped
    from dynamo.model.encoding_pool import CLIENT
    from dynamo.model.fetch import CardReader
    from dynamo.model.hub import FetchConfig, HubConfig, PullConfig
    from dynamo.model.offer import offer_files, withdraw_files
    from dynamo.model.s3 import S3Config
    from dynamo.model.source import BUNDLED, LocalModel, bundled, default_name, is_pulled_gguf, pull_address, resolve
    from dynamo.model.template import ChatTemplate
    from dynamo.model.tokenizer import Tokenizer

__all__ = [
    "BUNDLED",
    "CLIENT",
    "AdapterConfig",
    "CardReader",
    "ChatTemplate",
    "Decoder",
    "FetchConfig",
    "FileError",
    "HubConfig",
    "LoadedModel",
    "LocalModel",
    "ModelError",
    "PullConfig",
    "S3Config",
    "TemplateError",
    "Tokenizer",
    "adapter_folder",
    "build_card",
    "bundled",
    "card_template",
    "default_name",
    "is_pulled_gguf",
    "json_escaped",
    "json_unescaped",
    "offer_files",
    "open_card",
    "pull_address",
    "resolve",
    "withdraw_files",
]

# Loaded when first used: a command that only shows its help needs no tokenizer.
_HOMES = {
    "AdapterConfig": "adapter",
    "BUNDLED": "source",
    "CLIENT": "encoding_pool",
    "CardReader": "fetch",
    "ChatTemplate": "template",
    "Decoder": "detokenize",
    "FetchConfig": "hub",
    "HubConfig": "hub",
    "LoadedModel": "card",
    "LocalModel": "source",
    "PullConfig": "hub",
    "S3Config": "s3",
    "Tokenizer": "tokenizer",
    "adapter_folder": "adapter",
    "build_card": "card",
    "bundled": "source",
    "card_template": "card",
    "default_name": "source",
    "is_pulled_gguf": "source",
    "json_escaped": "detokenize",
    "json_unescaped": "detokenize",
    "offer_files": "offer",
    "open_card": "card",
    "pull_address": "source",
    "resolve": "source",
    "withdraw_files": "offer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value

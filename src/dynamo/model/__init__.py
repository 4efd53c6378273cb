"""Models: finding their files, tokenizer, chat template and card."""

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
from dynamo.protocols.errors import FileError, ModelError, TemplateError

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

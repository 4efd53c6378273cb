"""Loads a model into mistral.rs: engine arguments, the files it reads, and errors in one line."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from dynamo.engines.base import EngineError
from dynamo.engines.catalog import MISTRALRS
from dynamo.engines.mistralrs.vocabulary import Vocabulary
from dynamo.engines.registry import EngineSpec, reject_parallel
from dynamo.model import HubConfig, LoadedModel, LocalModel, ModelError, build_card, open_card
from dynamo.model.gguf import is_quantised, read_gguf
from dynamo.protocols.card import ModelType

log = logging.getLogger(__name__)

_TEMPLATE = "{{ messages[0]['content'] }}"
_REPLACED = {
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
}
_MOST_SEQUENCES = 32
# With fewer bytes of weights, threads wait for each other longer than they compute.
_SMALL = 128 << 20
_STACK_TRACE = re.compile(r"^\s*(0: |stack backtrace:)", re.MULTILINE)


class MistralRsArgs(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`--extra-engine-args` of this engine, named as in mistral.rs."""

    max_seqs: Annotated[int, Meta(ge=1, le=4096)] | None = None
    prefix_cache_n: Annotated[int, Meta(ge=0)] = 16
    dtype: Literal["auto", "bf16", "f16", "f32"] = "auto"
    arch: str | None = None
    in_situ_quant: str | None = None

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> MistralRsArgs:
        reject_parallel(MISTRALRS, spec)
        if spec.arguments:
            raise EngineError(
                f"unknown argument '{spec.arguments[0]}': mistralrs has no flags of its own; give its arguments with "
                "--extra-engine-args FILE.json"
            )
        try:
            return msgspec.convert(spec.extra_engine_args, cls)
        except msgspec.ValidationError as error:
            names = ", ".join(cls.__struct_fields__)
            raise EngineError(f"mistralrs arguments: {error} (it takes {names})") from None


def most_sequences(local: LocalModel, args: MistralRsArgs) -> int:
    """How many answers may be computed at a time: one where mistral.rs cannot batch the model."""
    asked = args.max_seqs or _MOST_SEQUENCES
    if not _has_ggml_weights(local, args):
        return asked
    if args.max_seqs is not None and asked > 1:
        log.warning("mistralrs cannot batch quantised weights of GGML: max_seqs is 1, not %d", asked)
    return 1


def _has_ggml_weights(local: LocalModel, args: MistralRsArgs) -> bool:
    """Its multiplication by such weights fails for two prompts of equal length ("input tensor is not contiguous")."""
    if local.is_gguf:
        try:
            return is_quantised(local.path)
        except ModelError as error:
            raise EngineError(f"mistralrs cannot use {local.source}: {error}") from error
    return args.in_situ_quant is not None and not args.in_situ_quant.upper().startswith(("AFQ", "HQQ"))


def describe(spec: EngineSpec) -> LoadedModel:
    """Tokenizer and end tokens of the model, from its own files or those given with --model-config."""
    local = spec.model_config or spec.model
    if local is None:
        raise EngineError("mistralrs needs a model: a folder, a GGUF file or a Hugging Face id")
    try:
        card = build_card(local, name=spec.model_name or "model", model_type=ModelType.Backend)
        return open_card(card, HubConfig.from_env(spec.environ))
    except ModelError as error:
        raise EngineError(f"mistralrs cannot use {local.source}: {error}") from error


def import_library(weights: int) -> Any:
    """Set the environment variables that the library reads on its first use, unless the user has set them."""
    # Its log goes to stdout, which is for answers in a pipe; its errors are raised as well.
    os.environ.setdefault("RUST_LOG", "off")
    if weights < _SMALL:
        os.environ.setdefault("RAYON_NUM_THREADS", "1")
    try:
        import mistralrs
    except ImportError as error:
        raise EngineError(f"the mistralrs package cannot be imported ({error}); {MISTRALRS.install}") from error
    return mistralrs


def load(local: LocalModel, args: MistralRsArgs, max_seqs: int, vocabulary: Vocabulary, folder: Path) -> Any:
    """The loaded `Runner`. Its files are written to `folder`, and not read again later."""
    library = import_library(weights_size(local.path))
    (folder / "prompt.jinja").write_text(_TEMPLATE)
    try:
        return library.Runner(
            _which(library, local, args, vocabulary, folder),
            max_seqs=max_seqs,
            prefix_cache_n=args.prefix_cache_n,
            in_situ_quant=args.in_situ_quant,
            jinja_explicit=str(folder / "prompt.jinja"),
            token_source="none",
        )
    except EngineError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the library is not an Exception
        raise EngineError(f"mistralrs cannot load {local.path}: {one_line(error)}") from error


def weights_size(path: Path) -> int:
    """Bytes on disk."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for pattern in ("*.safetensors", "*.bin", "*.pt*") for file in path.glob(pattern))


def one_line(error: BaseException) -> str:
    """The library's message, without the stack trace that follows it."""
    message = _STACK_TRACE.split(str(error), maxsplit=1)[0]
    return " ".join(message.split())[:500] or type(error).__name__


def _which(library: Any, local: LocalModel, args: MistralRsArgs, vocabulary: Vocabulary, folder: Path) -> Any:
    dtype = getattr(library.ModelDType, args.dtype.capitalize() if args.dtype == "auto" else args.dtype.upper())
    if local.is_gguf:
        if args.arch is not None:
            raise EngineError("mistralrs arguments: 'arch' is for folders; a GGUF file names its own")
        if "tokenizer.ggml.model" not in read_gguf(local.path).metadata:
            raise EngineError(
                f"mistralrs loads only GGUF files with a tokenizer, which {local.path} lacks; "
                "out=llamacpp takes it from --model-config alone"
            )
        (folder / "tokenizer.json").write_bytes(vocabulary.tokenizer_json())
        return library.Which.GGUF(
            quantized_model_id=str(local.path.parent),
            quantized_filename=local.path.name,
            dtype=dtype,
            tokenizer_json=str(folder / "tokenizer.json"),
        )
    shadow = folder / (local.path.name or "model")
    _shadow(local.path, shadow, vocabulary)
    return library.Which.Plain(model_id=str(shadow), arch=_architecture(library, args.arch), dtype=dtype)


def _architecture(library: Any, name: str | None) -> Any:
    if name is None:
        return None
    known = {each.lower(): each for each in dir(library.Architecture) if not each.startswith("_")}
    found = known.get(name.lower())
    if found is None:
        raise EngineError(f"mistralrs does not know the architecture '{name}'; it knows {', '.join(known.values())}")
    return getattr(library.Architecture, found)


def _shadow(folder: Path, shadow: Path, vocabulary: Vocabulary) -> None:
    """Create `shadow` with links to the model's weights and with our tokenizer."""
    shadow.mkdir()
    for file in folder.iterdir():
        if file.is_file() and file.name not in _REPLACED:
            try:
                (shadow / file.name).symlink_to(file.resolve())
            except OSError:  # no symbolic links on this file system
                shutil.copyfile(file, shadow / file.name)
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise EngineError(f"mistralrs cannot read {folder / 'config.json'}: {error}") from error
    if not isinstance(config, dict):
        raise EngineError(f"mistralrs cannot read {folder / 'config.json'}: it holds no object")
    config = {key: value for key, value in config.items() if key not in ("bos_token_id", "eos_token_id")}
    _add_former_names(config)
    names: dict[str, str] = {}
    if vocabulary.end is not None:
        config["eos_token_id"] = vocabulary.end
        names["eos_token"] = vocabulary.ends[vocabulary.end]
    (shadow / "config.json").write_bytes(msgspec.json.encode(config))
    (shadow / "tokenizer_config.json").write_bytes(msgspec.json.encode(names))
    (shadow / "tokenizer.json").write_bytes(vocabulary.tokenizer_json())


def _add_former_names(config: dict[str, Any]) -> None:
    """Say the same in the words of transformers 4, which alone mistral.rs reads."""
    for part in (config, config.get("text_config")):
        if not isinstance(part, dict):
            continue
        rope = part.get("rope_parameters")
        if isinstance(rope, dict) and "rope_theta" not in part:
            # A model that attends in two ways has parameters for each.
            sliding, rope = rope.get("sliding_attention"), rope.get("full_attention", rope)
            if isinstance(sliding, dict) and "rope_theta" in sliding:
                part.setdefault("rope_local_base_freq", sliding["rope_theta"])
            for name in ("rope_theta", "partial_rotary_factor"):
                if name in rope:
                    part.setdefault(name, rope[name])
            if rope.get("rope_type", "default") != "default":
                moved = ("rope_theta", "partial_rotary_factor")
                part.setdefault("rope_scaling", {key: value for key, value in rope.items() if key not in moved})
        if "dtype" in part:
            part.setdefault("torch_dtype", part["dtype"])

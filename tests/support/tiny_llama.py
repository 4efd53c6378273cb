"""A Llama with random weights, small enough to be made for a test: as a Hugging Face folder and as GGUF."""

from __future__ import annotations

import json
import random
import struct
from array import array
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from support.gguf_writer import byte_level_metadata, gguf_bytes, sentencepiece_metadata
from support.models import byte_level_json, byte_level_model, sentencepiece_json, sentencepiece_model, write

HIDDEN, LAYERS, HEADS, HEAD_SIZE, FEED_FORWARD, CONTEXT = 64, 2, 2, 32, 96, 512


class Tensor(NamedTuple):
    shape: tuple[int, ...]
    values: array[float]


def tiny_llama(folder: Path, **config: Any) -> Path:
    """The folder of a model that runs; keyword arguments are added to config.json."""
    byte_level_model(folder, **_config() | config)
    write_safetensors(folder / "model.safetensors", weights())
    return folder


def tiny_llama_sentencepiece(folder: Path) -> Path:
    """The same kind of model with a SentencePiece vocabulary."""
    sentencepiece_model(folder)
    size = len(json.loads(sentencepiece_json())["model"]["vocab"])
    write(folder / "config.json", _config() | {"model_type": "llama", "vocab_size": size, "eos_token_id": 2})
    write_safetensors(folder / "model.safetensors", weights(size))
    return folder


def tiny_llama_gguf(path: Path, **metadata: Any) -> Path:
    """The byte-level model as one file."""
    head = byte_level_metadata() | _gguf_config(vocabulary_size()) | {"tokenizer.ggml.add_bos_token": False}
    path.write_bytes(gguf_with_tensors(head | metadata, _gguf_tensors(weights())))
    return path


def tiny_llama_gguf_without_tokenizer(path: Path) -> Path:
    """The byte-level model's weights alone, also without the size of its vocabulary."""
    head = {"general.architecture": "llama", "llama.context_length": CONTEXT} | _gguf_config(vocabulary_size())
    del head["llama.vocab_size"]
    path.write_bytes(gguf_with_tensors(head, _gguf_tensors(weights())))
    return path


def tiny_llama_sentencepiece_gguf(path: Path) -> Path:
    size = len(json.loads(sentencepiece_json())["model"]["vocab"])
    head = sentencepiece_metadata() | _gguf_config(size)
    path.write_bytes(gguf_with_tensors(head, _gguf_tensors(weights(size))))
    return path


@cache
def vocabulary_size() -> int:
    parsed = json.loads(byte_level_json())
    return 1 + max(*parsed["model"]["vocab"].values(), *(token["id"] for token in parsed["added_tokens"]))


@cache
def weights(vocabulary: int | None = None) -> dict[str, Tensor]:
    drawn = random.Random(0)
    vocabulary = vocabulary or vocabulary_size()

    def normal(*shape: int, std: float) -> Tensor:
        count = shape[0] * shape[1]
        return Tensor(shape, array("f", (drawn.gauss(0, std) for _ in range(count))))

    ones = Tensor((HIDDEN,), array("f", [1.0] * HIDDEN))
    size = HEADS * HEAD_SIZE
    made = {
        "model.embed_tokens.weight": normal(vocabulary, HIDDEN, std=0.5),
        "lm_head.weight": normal(vocabulary, HIDDEN, std=0.15),
        "model.norm.weight": ones,
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("q", "k", "v"):
            made[f"{at}self_attn.{name}_proj.weight"] = normal(size, HIDDEN, std=0.2)
        made[f"{at}self_attn.o_proj.weight"] = normal(HIDDEN, size, std=0.2)
        made[f"{at}mlp.gate_proj.weight"] = normal(FEED_FORWARD, HIDDEN, std=0.1)
        made[f"{at}mlp.up_proj.weight"] = normal(FEED_FORWARD, HIDDEN, std=0.1)
        made[f"{at}mlp.down_proj.weight"] = normal(HIDDEN, FEED_FORWARD, std=0.1)
        made[f"{at}input_layernorm.weight"] = ones
        made[f"{at}post_attention_layernorm.weight"] = ones
    return made


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        end = at + 4 * len(tensor.values)
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t.values.tobytes() for t in tensors.values()))


def gguf_with_tensors(metadata: dict[str, Any], tensors: dict[str, Tensor], alignment: int = 32) -> bytes:
    infos, data = b"", b""
    for name, tensor in tensors.items():
        dimensions = tuple(reversed(tensor.shape))
        infos += struct.pack("<Q", len(name)) + name.encode()
        infos += struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, 0, len(data))
        data += tensor.values.tobytes()
        data += b"\0" * (-len(data) % alignment)
    head = bytearray(gguf_bytes(metadata, tensors=b"") + infos)
    struct.pack_into("<Q", head, 8, len(tensors))
    return bytes(head) + b"\0" * (-len(head) % alignment) + data


def interleaved(tensor: Tensor) -> Tensor:
    """Rotary pairs side by side instead of half a head apart."""
    rows, columns = tensor.shape
    values = array("f")
    for head in range(0, rows, HEAD_SIZE):
        for pair in range(HEAD_SIZE // 2):
            for row in (head + pair, head + pair + HEAD_SIZE // 2):
                values.extend(tensor.values[row * columns : (row + 1) * columns])
    return Tensor(tensor.shape, values)


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_SIZE,
        "vocab_size": vocabulary_size(),
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def _gguf_config(vocabulary: int) -> dict[str, Any]:
    return {
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HEAD_SIZE,
        "llama.attention.key_length": HEAD_SIZE,
        "llama.attention.value_length": HEAD_SIZE,
        "llama.vocab_size": vocabulary,
        "general.alignment": 32,
        "general.file_type": 0,
    }


def _gguf_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Under llama.cpp's names, and with rotary dimensions in its order."""
    return {
        _gguf_name(name): interleaved(tensor) if ".q_proj." in name or ".k_proj." in name else tensor
        for name, tensor in tensors.items()
    }


_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _gguf_name(name: str) -> str:
    match name:
        case "model.embed_tokens.weight":
            return "token_embd.weight"
        case "lm_head.weight":
            return "output.weight"
        case "model.norm.weight":
            return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[rest.removesuffix('.weight')]}.weight"

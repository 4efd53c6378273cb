"""Writes a trained checkpoint into the package: model.safetensors, config files and the GGUF."""

import argparse
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
from chat import END, MARKS, PAD, TEMPLATE
from safetensors.numpy import load_file
from tokenizer import write as write_tokenizer
from tokenizers import Tokenizer

from model import Shape

_NAMES = {
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


def write_gguf(weights: dict[str, np.ndarray], shape: Shape, tokenizer: Path, path: Path) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    _add_tokenizer(writer, json.loads(tokenizer.read_text(encoding="utf-8")))
    for name, weight in weights.items():
        renamed, weight = _tensor(name, weight, shape)
        # Norms stay in f32: llama.cpp multiplies by them in f32.
        writer.add_tensor(renamed, np.ascontiguousarray(weight, np.float32 if weight.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict) -> None:
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    control = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    kinds = [
        gguf.TokenType.CONTROL
        if token in control
        else gguf.TokenType.USER_DEFINED
        if token in MARKS
        else gguf.TokenType.NORMAL
        for token in vocabulary
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    )
    writer.add_bos_token_id(vocabulary.index(PAD))
    writer.add_eos_token_id(vocabulary.index(END))
    writer.add_pad_token_id(vocabulary.index(PAD))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _tensor(name: str, weight: np.ndarray, shape: Shape) -> tuple[str, np.ndarray]:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight", weight
    if name == "model.norm.weight":
        return "output_norm.weight", weight
    _, _, layer, rest = name.split(".", 3)
    part = rest.removesuffix(".weight")
    if part.endswith("q_proj"):
        weight = _interleave(weight, shape.num_attention_heads)
    elif part.endswith("k_proj"):
        weight = _interleave(weight, shape.num_key_value_heads)
    return f"blk.{layer}.{_NAMES[part]}.weight", weight


def _interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows from Hugging Face's half-and-half rotation order to the pairwise order of the GGUF arch `llama`."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _save(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="model.safetensors as train.py wrote it")
    parser.add_argument("--folder", type=Path, default=Path("src/dynamo/model/tiny"))
    options = parser.parse_args()
    shape = Shape()
    # The template may have changed since the tokenizer was trained.
    write_tokenizer(Tokenizer.from_file(str(options.folder / "tokenizer.json")), options.folder)
    shutil.copyfile(options.checkpoint, options.folder / "model.safetensors")
    _save(options.folder / "config.json", shape.config())
    _save(
        options.folder / "generation_config.json",
        {"eos_token_id": 2, "pad_token_id": 0, "do_sample": False},
    )
    write_gguf(load_file(options.checkpoint), shape, options.folder / "tokenizer.json", options.folder / "tiny.gguf")
    for path in sorted(options.folder.iterdir()):
        print(f"{path.stat().st_size:>9} {path.name}")


if __name__ == "__main__":
    main()

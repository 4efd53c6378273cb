"""Random weights of a Llama model, of the size that training begins with.

vLLM's own random weights (`--load-format dummy`) are so small that an answer depends on the last token alone: what is
in the KV cache would not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_weights(model: Path) -> None:
    """One file for each layer, beside the model's config.json."""
    config = json.loads((model / "config.json").read_text())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(7)
    dtype = getattr(torch, config["torch_dtype"])
    index: dict[str, str] = {}
    for number, group in enumerate(shapes(config)):
        tensors = {}
        for name, shape in group.items():
            if len(shape) == 1:
                tensors[name] = torch.ones(shape, dtype=dtype)
            else:
                tensors[name] = (0.02 * torch.randn(shape, generator=generator, device=device)).to(dtype).cpu()
        file = f"part-{number:03}.safetensors"
        save_file(tensors, model / file)
        index |= dict.fromkeys(tensors, file)
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def shapes(config: dict[str, int]) -> Iterator[dict[str, tuple[int, ...]]]:
    """The tensors outside the layers, then those of each layer."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    outside: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.get("tie_word_embeddings"):
        outside["lm_head.weight"] = (config["vocab_size"], hidden)
    yield outside
    for layer in range(config["num_hidden_layers"]):
        yield {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (queries, hidden),
                "self_attn.k_proj": (keys, hidden),
                "self_attn.v_proj": (keys, hidden),
                "self_attn.o_proj": (hidden, queries),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner),
            }.items()
        }

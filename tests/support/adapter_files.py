"""LoRA adapters of the bundled model with random weights, in PEFT's layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dynamo.model import bundled


def make_adapter(folder: Path, *, seed: int, rank: int = 4) -> Path:
    config = json.loads((bundled() / "config.json").read_bytes())
    hidden, wide = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = random.standard_normal((rank, hidden), np.float32)
        weights[f"{name}.lora_B.weight"] = random.standard_normal((wide, rank), np.float32)
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(_safetensors(weights))
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def _safetensors(weights: dict[str, np.ndarray]) -> bytes:
    header, at = {}, 0
    for name, values in weights.items():
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + b"".join(values.tobytes() for values in weights.values())

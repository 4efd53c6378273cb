"""Folders of compiled TensorRT engines: `config.json` of TensorRT-LLM, and `rank0.engine` and so on for each GPU.

Another class of TensorRT-LLM runs them, with arguments of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def is_compiled(folder: Path) -> bool:
    return any(folder.glob("rank*.engine"))


def built_with(folder: Path) -> dict[tuple[str, ...], Any]:
    """What cannot be changed any more, by the names of the arguments; empty if the file does not say."""
    try:
        built = json.loads((folder / "config.json").read_bytes())["build_config"]
        found = {
            ("max_seq_len",): built["max_seq_len"],
            ("kv_cache_config", "tokens_per_block"): built["plugin_config"]["tokens_per_block"],
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {path: value for path, value in found.items() if isinstance(value, int)}

"""The smallest request that tests an engine."""

from __future__ import annotations

from typing import Any

from dynamo.protocols.card import ModelInput


def health_check_payload(model_input: ModelInput, model: str) -> dict[str, Any]:
    if model_input is ModelInput.Tokens:
        return {
            "model": model,
            "token_ids": [1],
            "sampling_options": {"temperature": 0.0},
            "stop_conditions": {"max_tokens": 1, "ignore_eos": True},
        }
    return {"model": model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1, "stream": True}

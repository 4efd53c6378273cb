from __future__ import annotations

from dynamo.frontend.config import FrontendConfig, nothing_served_hint
from dynamo.model import ModelError
from dynamo.runtime import RuntimeConfig


def test_a_worker_whose_model_cannot_be_served_is_not_said_to_be_missing() -> None:
    network = RuntimeConfig.in_process({})
    hint = nothing_served_hint(FrontendConfig(), network, {"toy": ModelError("no worker sent config.json")})
    assert hint == "a worker of 'toy' has joined, but: no worker sent config.json"
    assert "no worker can join" in nothing_served_hint(FrontendConfig(), network, {})

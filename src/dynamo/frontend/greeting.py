"""What a server says to the person who starts it."""

from __future__ import annotations

from collections.abc import Mapping

from dynamo.frontend.config import FrontendConfig
from dynamo.model import ModelError
from dynamo.runtime import RuntimeConfig
from dynamo.runtime.names import DEFAULT_COMPONENT, DEFAULT_ENDPOINT, SCHEME


def nothing_served_hint(config: FrontendConfig, network: RuntimeConfig, failures: Mapping[str, ModelError]) -> str:
    """Why the models of the workers that joined cannot be served, or how to start a worker that this frontend finds."""
    if failures:
        return "\n".join(f"a worker of '{name}' has joined, but: {why}" for name, why in failures.items())
    if network.discovery.backend == "memory":
        return "no worker can join: discovery in memory ends at this process; use --discovery-backend file or etcd"
    words = ["dynamo-run", f"in={SCHEME}{config.serves_namespace.own}.{DEFAULT_COMPONENT}.{DEFAULT_ENDPOINT}"]
    if network.discovery.backend != "file":
        words.append(f"--discovery-backend {network.discovery.backend}")
    if network.plane != "tcp":
        words.append(f"--request-plane {network.plane}")
    return f"no worker has joined yet; to start one: {' '.join(words)} tiny"

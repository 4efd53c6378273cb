"""The router a configuration asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dynamo.protocols.card import ModelCard, ModelRuntimeConfig
from dynamo.router.config import RouterConfig
from dynamo.router.kv.router import KvAwareRouter
from dynamo.router.router import Router
from dynamo.router.simple import SimpleRouter
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.instances import InstanceSet

log = logging.getLogger(__name__)


def make_router(
    config: RouterConfig,
    card: ModelCard,
    instances: InstanceSet,
    runtime: DistributedRuntime,
    runtime_of: Callable[[int], ModelRuntimeConfig] | None = None,
) -> Router:
    """Not yet started. `runtime_of` tells what each instance's own card says; without it the one card counts for all.

    A card may bring a configuration of its own, which replaces the given one as a whole.
    """
    sizes = runtime_of or (lambda _: card.runtime_config)
    told = card.runtime_config.runtime_data.get("router_config")
    if told is not None:
        try:
            config = RouterConfig.from_card(told)
        except ValueError as error:
            log.warning("model '%s': its card asks for a router we cannot make (%s); ours is used", card.name, error)
    if config.mode == "kv":
        return KvAwareRouter(config, instances, runtime, card.kv_cache_block_size, sizes)
    return SimpleRouter(config, instances, runtime.events, sizes)

"""The router a configuration asks for."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from dynamo.protocols.card import ModelCard, ModelRuntimeConfig
from dynamo.router.config import RoutingConfig
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.router.placement import Router
from dynamo.router.simple import SimpleRouter
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.instances import InstanceSet

log = logging.getLogger(__name__)


def make_router(
    config: RoutingConfig,
    card: ModelCard,
    instances: InstanceSet,
    runtime: DistributedRuntime,
    runtime_of: Callable[[int], ModelRuntimeConfig] | None = None,
    *,
    rng: random.Random | None = None,
) -> Router:
    """Create the router, not yet started. `runtime_of` is each instance's runtime configuration, by default the card's.

    A card may carry a router configuration of its own, which replaces the given one as a whole.
    """
    runtime_of = runtime_of or (lambda _: card.runtime_config)
    requested = card.runtime_config.runtime_data.get("router_config")
    if requested is not None:
        try:
            config = RoutingConfig.from_card(requested)
        except ValueError as error:
            log.warning("model '%s': its card asks for a router we cannot make (%s); ours is used", card.name, error)
    if config.mode == "kv":
        return KvAwareRouter(config, instances, runtime, card.kv_cache_block_size, runtime_of, rng=rng)
    return SimpleRouter(config, instances, runtime.events, runtime_of)

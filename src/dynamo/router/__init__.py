"""Chooses an instance for each request and delivers it there."""

from dynamo.router.config import RoutingConfig
from dynamo.router.decision import Decision
from dynamo.router.factory import make_router
from dynamo.router.placement import Placement, Router
from dynamo.router.stats import RouterStats
from dynamo.router.thresholds import Thresholds

__all__ = ["Decision", "Placement", "Router", "RouterStats", "RoutingConfig", "Thresholds", "make_router"]

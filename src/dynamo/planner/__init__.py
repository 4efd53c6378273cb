"""How many workers should run: observe the traffic, decide with a pure function, start and drain workers."""

from dynamo.planner.config import PlannerConfig, PlannerConfigError, read_config
from dynamo.planner.decide import PoolDecision, ScalingDecision, decide
from dynamo.planner.history import Observation, PoolSeen, TrafficSeen
from dynamo.planner.planner import Planner

__all__ = [
    "Observation",
    "Planner",
    "PlannerConfig",
    "PlannerConfigError",
    "PoolDecision",
    "PoolSeen",
    "ScalingDecision",
    "TrafficSeen",
    "decide",
    "read_config",
]

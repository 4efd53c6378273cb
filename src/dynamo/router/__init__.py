"""Which instance gets a request."""

from dynamo.router.policy import MODES, Policy, Random, RoundRobin, make_policy
from dynamo.router.router import Router

__all__ = ["MODES", "Policy", "Random", "RoundRobin", "Router", "make_policy"]

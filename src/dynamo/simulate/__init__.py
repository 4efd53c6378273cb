"""Simulates a fleet in virtual time with the router, delivery and scheduler that serve: `simulate(config, traffic)`."""

from dynamo.simulate.incidents import Incident
from dynamo.simulate.measured import Distribution
from dynamo.simulate.report import Report
from dynamo.simulate.simulation import SimulationConfig, simulate
from dynamo.simulate.synthetic import Synthetic
from dynamo.simulate.traces import read_mooncake, read_request_trace
from dynamo.simulate.traffic import SimulatedRequest, scaled

__all__ = [
    "Distribution",
    "Incident",
    "Report",
    "SimulatedRequest",
    "SimulationConfig",
    "Synthetic",
    "read_mooncake",
    "read_request_trace",
    "scaled",
    "simulate",
]

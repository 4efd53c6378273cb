"""A fleet in virtual time, for programs: `simulate(config, traffic)`."""

from dynamo.lab.simulate.incidents import Incident
from dynamo.lab.simulate.measured import Percentiles
from dynamo.lab.simulate.report import FleetReport
from dynamo.lab.simulate.simulation import SimulationConfig, simulate
from dynamo.lab.simulate.synthetic import Synthetic
from dynamo.lab.simulate.traces import read_mooncake, read_request_trace
from dynamo.lab.simulate.traffic import SimulatedRequest, scaled

__all__ = [
    "FleetReport",
    "Incident",
    "Percentiles",
    "SimulatedRequest",
    "SimulationConfig",
    "Synthetic",
    "read_mooncake",
    "read_request_trace",
    "scaled",
    "simulate",
]

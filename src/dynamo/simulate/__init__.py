"""A fleet in virtual time, for programs: `simulate(config, traffic)`."""

from dynamo.lab.simulate import (
    FleetReport,
    Incident,
    Percentiles,
    SimulatedRequest,
    SimulationConfig,
    Synthetic,
    read_mooncake,
    read_request_trace,
    scaled,
    simulate,
)

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

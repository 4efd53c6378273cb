"""Starts, watches, restarts, scales and drains the processes of a deployment on one machine."""

from dynamo.process.supervisor.deployment import (
    ComponentSpec,
    Deployment,
    DeploymentError,
    parse_deployment,
    read_deployment,
)
from dynamo.process.supervisor.process import ProcessState
from dynamo.process.supervisor.supervisor import Supervisor

__all__ = [
    "ComponentSpec",
    "Deployment",
    "DeploymentError",
    "ProcessState",
    "Supervisor",
    "parse_deployment",
    "read_deployment",
]

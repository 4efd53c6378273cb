"""`dynamo serve` for programs: starts, watches, restarts, scales and drains the processes of a deployment."""

from dynamo.process.supervisor import (
    ComponentSpec,
    Deployment,
    DeploymentError,
    ProcessState,
    Supervisor,
    parse_deployment,
    read_deployment,
)

__all__ = [
    "ComponentSpec",
    "Deployment",
    "DeploymentError",
    "ProcessState",
    "Supervisor",
    "parse_deployment",
    "read_deployment",
]

"""Who changes the number of workers: a supervisor in this process, or a program that follows keys in etcd."""

from dynamo.planner.act.local import LocalActor
from dynamo.planner.act.virtual import PlannerDecision, VirtualActor, VirtualConnector, VirtualConnectorClient

__all__ = ["LocalActor", "PlannerDecision", "VirtualActor", "VirtualConnector", "VirtualConnectorClient"]

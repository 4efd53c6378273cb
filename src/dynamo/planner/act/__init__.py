"""Who changes the number of workers: a supervisor in this process, a program that reads keys in etcd, or Kubernetes."""

from dynamo.planner.act.local import LocalActor
from dynamo.planner.act.virtual import PlannerDecision, VirtualActor, VirtualConnector, VirtualConnectorClient

__all__ = ["LocalActor", "PlannerDecision", "VirtualActor", "VirtualConnector", "VirtualConnectorClient"]

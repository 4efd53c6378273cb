"""Requests to a graph in a real control plane while something happens to it: how many failed, how many differ.

    python benchmarks/kubernetes_incidents.py INCIDENT… [--requests 2000] [--width 4]

Needs `tests/kubernetes/install`, and root. The graph has two frontends and two llama.cpp workers with the bundled model
on two stand-in nodes; the operator comes from the chart. Greedy completions of eight prompts run all the time, over the
Service's ready endpoints as a node's proxy does it; the answers of one prompt must all be the same bytes. An incident
happens again until all requests are answered. While frontends are killed, clients read named streams and reconnect;
everywhere else an answer that does not come counts as failed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.cluster.metrics_server import serving_metrics
from support.cluster.operating import component, graph
from support.cluster.places import ROOT
from support.cluster.running import Asking, Cluster, why_not
from support.waiting import PATIENCE, until_sync

Object = dict[str, Any]
NAMESPACE, GRAPH, SERVICE = "serving", "g", "g-frontend"
CHART = str(ROOT / "deploy" / "helm" / "dynamo")
FORCED = ("--force-replace", "--server-side=false")
PROMPTS = 8
OUTAGE_SECONDS = 60.0
MOST_WORKERS = 8


class Deployed:
    """The graph and what can be done to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.numbers = itertools.count(1)
        self.asking: Asking
        worker = component("worker", "worker", "-m", "dynamo.llama_cpp", "--model", "tiny", replicas=2)
        frontend = component("Frontend", "frontend", "-m", "dynamo.frontend", "--migration-limit", "3", replicas=2)
        self.document = graph(GRAPH, frontend, worker)

    @property
    def frontend(self) -> Object:
        found: Object = self.document["spec"]["components"][0]
        return found

    @property
    def worker(self) -> Object:
        found: Object = self.document["spec"]["components"][1]
        return found

    def apply(self) -> None:
        self.cluster.apply(json.dumps(self.document), NAMESPACE)

    def main(self, part: Object) -> Object:
        found: Object = part["podTemplate"]["spec"]["containers"][0]
        return found

    def set_env(self, part: Object, name: str, value: str) -> None:
        env = self.main(part)["env"]
        env[:] = [each for each in env if each["name"] != name] + [{"name": name, "value": value}]

    def pods(self, name: str) -> list[Object]:
        labels = f"nvidia.com/dynamo-component={name}"
        found: list[Object] = self.cluster.get("pods", "-n", NAMESPACE, "-l", labels)["items"]
        return found

    def serving(self, name: str) -> int:
        """Pods that are ready and stay."""
        return sum(is_ready(each) and "deletionTimestamp" not in each["metadata"] for each in self.pods(name))

    def condition(self) -> Object:
        found = self.cluster.get("dgd", GRAPH, "-n", NAMESPACE)
        status = found.get("status", {})
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return {}
        return next(each for each in status["conditions"] if each["type"] == "Ready")

    def until_ready(self) -> None:
        until_sync(lambda: self.condition().get("status") == "True")

    def hashes(self) -> set[str]:
        """The generations that workers' pods are of."""
        return {each["metadata"]["labels"]["nvidia.com/dynamo-worker-hash"] for each in self.pods("worker")}

    def process(self, pod: Object, module: str) -> int | None:
        """The process of this machine that runs the pod's program."""
        mark, words = f"POD_NAME={pod['metadata']['name']}".encode(), module.encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if words not in (entry / "cmdline").read_bytes().split(b"\0"):
                        continue
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        return int(entry.name)
        return None

    def helm(self, *words: str) -> None:
        self.cluster.run("helm", *words, "-n", NAMESPACE, "--wait", f"--timeout={PATIENCE:.0f}s")


def is_ready(pod: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def update_workers(at: Deployed) -> None:
    """A rolling update: another environment."""
    before = at.hashes()
    at.set_env(at.worker, "UPDATED", str(next(at.numbers)))
    at.apply()
    until_sync(lambda: not before & at.hashes() and at.serving("worker") == 2)
    at.until_ready()


def update_card(at: Deployed) -> None:
    """A rolling update that changes the model card."""
    before = at.hashes()
    length = str(1024 + next(at.numbers))
    words = at.main(at.worker)["command"]
    at.main(at.worker)["command"] = [*words[: words.index("tiny") + 1], "--context-length", length]
    at.apply()
    until_sync(lambda: not before & at.hashes() and at.serving("worker") == 2)
    at.until_ready()


def roll_back(at: Deployed) -> None:
    """An update of the workers, taken back while the new ones start; and one taken back after it."""
    before = at.hashes()
    shown = json.dumps(at.document)
    at.set_env(at.worker, "UPDATED", str(next(at.numbers)))
    at.apply()
    until_sync(lambda: at.hashes() > before)
    at.document = json.loads(shown)
    at.apply()
    until_sync(lambda: at.hashes() == before)
    at.until_ready()


def update_frontends(at: Deployed) -> None:
    before = {each["metadata"]["name"] for each in at.pods("Frontend")}
    at.frontend["podTemplate"]["metadata"] = {"annotations": {"updated": str(next(at.numbers))}}
    at.apply()
    until_sync(lambda: not before & {each["metadata"]["name"] for each in at.pods("Frontend")})
    at.until_ready()


def update_operator(at: Deployed) -> None:
    at.cluster.kubectl("rollout", "restart", "-n", NAMESPACE, "deployment/dynamo-operator")
    at.cluster.kubectl("rollout", "status", "-n", NAMESPACE, "deployment/dynamo-operator")


def drain(at: Deployed) -> None:
    """One node after the other."""
    for node in ("node-a", "node-b"):
        at.cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={PATIENCE:.0f}s")
        until_sync(lambda: at.serving("worker") == 2 and at.serving("Frontend") == 2)
        at.cluster.kubectl("uncordon", node)


def kill(at: Deployed, part: str, module: str) -> None:
    """Its pod is replaced: started again in it, one that dies often waits longer and longer."""
    pods = [each for each in at.pods(part) if is_ready(each)]
    pod = pods[next(at.numbers) % len(pods)]
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    pid = at.process(pod, module)
    assert pid, f"no process of {name}"
    os.kill(pid, signal.SIGKILL)
    at.cluster.kubectl("delete", "pod", "-n", NAMESPACE, name, "--force", "--grace-period=0")
    until_sync(lambda: at.serving(part) == 2 and uid not in {each["metadata"]["uid"] for each in at.pods(part)})


def kill_workers(at: Deployed) -> None:
    for _ in range(30):
        kill(at, "worker", "dynamo.llama_cpp")


def kill_frontends(at: Deployed) -> None:
    for _ in range(10):
        kill(at, "Frontend", "dynamo.frontend")


def api_outage(at: Deployed) -> None:
    with at.cluster.paused("kube-apiserver"):
        time.sleep(OUTAGE_SECONDS)
    until_sync(lambda: answers(at))


def restart_etcd(at: Deployed) -> None:
    at.cluster.kill("etcd")
    until_sync(lambda: answers(at))


def answers(at: Deployed) -> bool:
    try:
        at.apply()
        return at.cluster.kubectl("get", "--raw", "/readyz") == "ok"
    except AssertionError:
        return False


def force_helm(at: Deployed) -> None:
    at.helm("upgrade", "dynamo", CHART, "--set", f"operator.env[0].name=N,operator.env[0].value=n{next(at.numbers)}",
            *FORCED)  # fmt: skip


def roll_helm_back(at: Deployed) -> None:
    force_helm(at)
    at.helm("rollback", "dynamo")


def scale_by_hpa(at: Deployed) -> None:
    """1 → 8 → 1 by what an external metric says."""
    at.worker["scalingAdapter"] = {}
    at.worker["replicas"] = 1
    at.apply()
    until_sync(lambda: at.serving("worker") == 1)
    with serving_metrics(at.cluster) as metric:
        metric.set(1)
        at.cluster.apply(json.dumps(HPA), NAMESPACE)
        metric.set(MOST_WORKERS)
        until_sync(lambda: at.serving("worker") == MOST_WORKERS)
        metric.set(1)
        until_sync(lambda: at.serving("worker") == 1 and len(at.pods("worker")) == 1)
        at.cluster.kubectl("delete", "hpa", "-n", NAMESPACE, GRAPH)


HPA = {
    "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": GRAPH},
    "spec": {
        "minReplicas": 1, "maxReplicas": MOST_WORKERS,
        "scaleTargetRef": {
            "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeploymentScalingAdapter",
            "name": f"{GRAPH}-worker",
        },
        "metrics": [
            {"type": "External", "external": {
                "metric": {"name": "wanted_workers"}, "target": {"type": "AverageValue", "averageValue": "1"},
            }},
        ],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    },
}  # fmt: skip

INCIDENTS: dict[str, tuple[Callable[[Deployed], None], str]] = {
    "workers": (update_workers, "whole"),
    "card": (update_card, "whole"),
    "rollback": (roll_back, "whole"),
    "frontends": (update_frontends, "whole"),
    "operator": (update_operator, "whole"),
    "drain": (drain, "whole"),
    "worker-kills": (kill_workers, "whole"),
    "frontend-kills": (kill_frontends, "streams"),
    "api-outage": (api_outage, "whole"),
    "etcd": (restart_etcd, "whole"),
    "helm-force": (force_helm, "whole"),
    "helm-rollback": (roll_helm_back, "whole"),
    "hpa": (scale_by_hpa, "whole"),
}


@contextlib.contextmanager
def deployed(folder: Path) -> Iterator[Deployed]:
    with Cluster(folder, ("node-a", "node-b")) as cluster:
        cluster.kubectl("create", "namespace", NAMESPACE)
        at = Deployed(cluster)
        at.helm("install", "dynamo", CHART)
        at.apply()
        at.until_ready()
        yield at


def run(at: Deployed, name: str, requests: int, width: int) -> Object:
    incident, how = INCIDENTS[name]
    with at.cluster.asking(NAMESPACE, SERVICE, width, how, PROMPTS) as asking:
        at.asking = asking
        asking.more(2 * PROMPTS)
        began, rounds = time.monotonic(), 0
        while not rounds or asking.answered < requests:
            incident(at)
            rounds += 1
        seconds = time.monotonic() - began
        summary = asking.end()
    return {
        "incident": name, "ended": time.strftime("%H:%M"),
        "rounds": rounds, "seconds": round(seconds), "requests": summary["done"],
        "failed": len(summary["failed"]), "differ": len(summary["texts"]) - PROMPTS,
        "reconnected": summary["reconnected"], "first failures": summary["failed"][:3],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("incidents", nargs="+", choices=(*INCIDENTS, "all"), metavar="INCIDENT",
                        help=f"all, or some of: {', '.join(INCIDENTS)}")  # fmt: skip
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--width", type=int, default=4, help="requests at a time")
    given = parser.parse_args()
    if why := why_not():
        raise SystemExit(f"no cluster: {why}")
    names = list(INCIDENTS) if "all" in given.incidents else given.incidents
    with tempfile.TemporaryDirectory(prefix="incidents-") as folder, deployed(Path(folder)) as at:
        for name in names:
            print(json.dumps(run(at, name, given.requests, given.width)), flush=True)


if __name__ == "__main__":
    main()

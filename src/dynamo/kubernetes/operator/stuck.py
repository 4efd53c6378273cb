"""Why pods are not ready, in a sentence; from their objects alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Object = Mapping[str, Any]

_IMAGE = frozenset(("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"))
_CONFIGURATION = frozenset(("CreateContainerConfigError", "CreateContainerError", "RunContainerError"))
_LONGEST = 240


def why_stuck(pods: Iterable[Object]) -> str:
    """The most telling sentence about pods that are not ready; empty where nothing is wrong with them yet."""
    found = [sentence for pod in pods if (sentence := _why(pod))]
    return found[0] if found else ""


def why_no_pods(workload: Object) -> str:
    """What keeps a Deployment from making pods: a quota, an admission rule."""
    for condition in (workload.get("status") or {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return f"{workload['metadata']['name']}: no pod can be made: {_short(condition.get('message', ''))}"
    return ""


def is_ready(pod: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in _conditions(pod))


def _why(pod: Object) -> str:
    if is_ready(pod) or "deletionTimestamp" in pod["metadata"]:
        return ""
    name = pod["metadata"]["name"]
    for condition in _conditions(pod):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"pod {name} cannot be scheduled: {_short(condition.get('message') or condition.get('reason', ''))}"
    status = pod.get("status") or {}
    for each in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        if sentence := _of_container(each, name):
            return sentence
    return ""


def _of_container(status: Object, pod: str) -> str:
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    where = f"pod {pod}, container {status['name']}"
    if reason in _IMAGE:
        return f"{where}: the image {status.get('image')} cannot be pulled: {_short(message or reason)}"
    if reason in _CONFIGURATION:
        return f"{where}: cannot start: {_short(message or reason)}"
    ended = (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get("terminated")
    if not ended or ended.get("exitCode") == 0:
        return ""
    if ended.get("reason") == "OOMKilled":
        return f"{where}: was ended for using more memory than its limit; raise resources.limits.memory"
    said = _last_line(ended.get("message", ""))
    ending = f": {said}" if said else f"; `kubectl logs {pod} -c {status['name']} --previous` shows why"
    return f"{where}: its program ended with code {ended.get('exitCode')}{ending}"


def _last_line(text: str) -> str:
    """The line with which our programs say why they cannot start, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return _short((errors or lines)[-1]) if lines else ""


def _short(text: str) -> str:
    joined = " ".join(str(text).split())
    return joined if len(joined) <= _LONGEST else f"{joined[: _LONGEST - 1]}…"


def _conditions(pod: Object) -> Iterable[Object]:
    return (pod.get("status") or {}).get("conditions") or ()

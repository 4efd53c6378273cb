"""The fields of a pod, as far as a typing mistake in them is found before the API server sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dynamo.kubernetes.graph.problem import GraphError
from dynamo.settings import nearest

# fmt: off
_POD = frozenset((
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy",
    "enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers",
    "hostname", "hostnameOverride", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector", "os", "overhead",
    "preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims", "resources",
    "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates", "securityContext", "serviceAccount",
    "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds",
    "tolerations", "topologySpreadConstraints", "volumes", "workloadRef",
))
_CONTAINER = frozenset((
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
    "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "securityContext",
    "startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices",
    "volumeMounts", "workingDir",
))
_LISTS = frozenset((
    "containers", "initContainers", "volumes", "tolerations", "imagePullSecrets", "args", "command", "env", "envFrom",
    "ports", "volumeMounts", "resourceClaims",
))
# fmt: on
_NAMED = ("env", "volumeMounts", "containers", "initContainers", "volumes", "ports")


def check_pod(pod: Mapping[str, Any], place: str) -> None:
    """Names and rough types; the rest is the API server's, which refuses the objects that are made of it."""
    _check(pod, _POD, place)
    for key in ("containers", "initContainers"):
        for at, container in enumerate(pod.get(key) or ()):
            check_container(container, f"{place}.{key}[{at}]")


def check_container(container: Any, place: str) -> None:
    if not isinstance(container, Mapping):
        raise GraphError(f"{place}: must be a mapping with a name and an image")
    _check(container, _CONTAINER, place)
    for key in ("command", "args"):
        for at, word in enumerate(container.get(key) or ()):
            if not isinstance(word, str):
                raise GraphError(f"{place}.{key}[{at}]: must be a text, not {word!r}; quote it")
    for at, variable in enumerate(container.get("env") or ()):
        check_variable(variable, f"{place}.env[{at}]")


def check_variable(variable: Any, place: str) -> None:
    if not isinstance(variable, Mapping) or not isinstance(variable.get("name"), str):
        raise GraphError(f"{place}: must be a mapping with a name")
    _refuse_unknown(variable, ("name", "value", "valueFrom"), place)
    value = variable.get("value")
    if value is not None and not isinstance(value, str):
        raise GraphError(f"{place}.value: must be a text, not {value!r}; quote it")


def _check(given: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    _refuse_unknown(given, known, place)
    for key, value in given.items():
        if key in _LISTS and value is not None and not isinstance(value, list):
            raise GraphError(f"{place}.{key}: must be a list")
        if key in _NAMED:
            for at, each in enumerate(value or ()):
                if not isinstance(each, Mapping):
                    raise GraphError(f"{place}.{key}[{at}]: must be a mapping")


def _refuse_unknown(given: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            raise GraphError(f"{place}: unknown field '{key}'{nearest(str(key), known)}")

"""Writes status and events, when they are others than before."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import ApiRefusal, ObjectNotFound
from dynamo.kubernetes.operator.kinds import EVENTS, name_of
from dynamo.kubernetes.operator.reconcile import MANAGER
from dynamo.kubernetes.operator.status import is_trouble, now, ready_condition
from dynamo.kubernetes.resources import Resource

log = logging.getLogger(__name__)


class Reporter:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._told: dict[str, tuple[str, str]] = {}

    async def status(self, resource: Resource, found: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Put it on the object, and say a new reason as an event."""
        if dict(found.get("status") or {}) != dict(status):
            metadata = {"name": name_of(found), "namespace": found["metadata"]["namespace"]}
            try:
                await self._api.apply(
                    resource, name_of(found), {"metadata": metadata, "status": dict(status)}, manager=MANAGER,
                    namespace=found["metadata"]["namespace"], subresource="status",
                )  # fmt: skip
            except ObjectNotFound:
                return
        condition = ready_condition(status)
        told = (condition.get("reason", ""), condition.get("message", ""))
        if condition and self._told.get(found["metadata"]["uid"]) != told:
            self._told[found["metadata"]["uid"]] = told
            await self._event(found, "Warning" if is_trouble(condition) else "Normal", *told)

    async def _event(self, found: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        metadata = found["metadata"]
        event = {
            "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(6)}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": found["apiVersion"], "kind": found["kind"], "name": metadata["name"],
                "namespace": metadata["namespace"], "uid": metadata["uid"],
            },
            "type": kind, "reason": reason, "message": message, "firstTimestamp": now(), "lastTimestamp": now(),
            "count": 1, "source": {"component": MANAGER},
        }  # fmt: skip
        try:
            await self._api.create(EVENTS, event, namespace=metadata["namespace"])
        except ApiRefusal as error:
            log.warning("cannot write an event: %s", error)

"""What the cluster holds, followed by watches."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.operator.kinds import labels_of
from dynamo.kubernetes.resources import Resource
from dynamo.kubernetes.watch import Changed, ObjectRemoved, Replaced, ResourceWatch, SeenObject, Unreadable

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name."""


class WatchedKind:
    """All objects of one kind; whoever is touched by a change is told by key."""

    def __init__(
        self, api: KubernetesApi, resource: Resource, owner: Callable[[Object], Key | None],
        touched: Callable[[Key], None], *, namespace: str | None, labels: str = "",
    ) -> None:  # fmt: skip
        self._watch = ResourceWatch(api, resource, dict, namespace=namespace, labels=labels)
        self._resource = resource
        self._owner, self._touched = owner, touched
        self.objects: dict[Key, Object] = {}
        self._owned: dict[Key, set[Key]] = defaultdict(set)
        self.read = asyncio.Event()

    def of(self, owner: Key) -> Iterator[Object]:
        return (self.objects[key] for key in sorted(self._owned.get(owner, ())))

    async def follow(self) -> None:
        async with aclosing(self._watch.changes()) as changes:
            async for change in changes:
                match change:
                    case Replaced(objects):
                        self._replace(objects)
                        self.read.set()
                    case Changed(seen):
                        self._put(seen)
                    case ObjectRemoved(metadata):
                        self._drop((metadata.namespace, metadata.name))

    def _replace(self, objects: Iterable[SeenObject[Any]]) -> None:
        gone = set(self.objects)
        for seen in objects:
            gone.discard((seen.metadata.namespace, seen.metadata.name))
            self._put(seen)
        for key in gone:
            self._drop(key)

    def _put(self, seen: SeenObject[Any]) -> None:
        if isinstance(seen.object, Unreadable):
            return
        key = (seen.metadata.namespace, seen.metadata.name)
        # Lists do not say the kind of each of their items.
        found = {**seen.object, "kind": self._resource.kind, "apiVersion": self._resource.api_version}
        self.objects[key] = found
        if owner := self._owner(found):
            self._owned[owner].add(key)
            self._touched(owner)

    def _drop(self, key: Key) -> None:
        found = self.objects.pop(key, None)
        if found and (owner := self._owner(found)):
            self._owned[owner].discard(key)
            self._touched(owner)


def by_label(label: str) -> Callable[[Object], Key | None]:
    def owner(found: Object) -> Key | None:
        name = labels_of(found).get(label)
        return (found["metadata"]["namespace"], name) if name else None

    return owner


def itself(found: Object) -> Key:
    return found["metadata"]["namespace"], found["metadata"]["name"]

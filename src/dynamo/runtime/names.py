"""Names on the network: `dyn://namespace.component.endpoint`, and their keys in discovery."""

from __future__ import annotations

import re
import secrets

from msgspec import Struct

SCHEME = "dyn://"
DEFAULT_NAMESPACE = "dynamo"
DEFAULT_COMPONENT = "backend"
DEFAULT_ENDPOINT = "generate"
CLEAR_ENDPOINT = "clear_kv_blocks"
"""The endpoint that empties an instance's KV cache, served beside the one that generates."""
CONTROL_ENDPOINT = "control_worker"
"""The endpoint that takes an instance's process out of rotation, back, or ends it; beside the one that generates."""
FILES_ENDPOINT = "model_files"
"""The endpoint that sends the files of an instance's model cards, served beside the one that generates."""
HANDOFF_ENDPOINT = "handoff"
"""The endpoint that sends computed prompts to decode workers; not in discovery, as each offer names its address."""

INSTANCES = "v1/instances/"
CARDS = "v1/mdc/"

_VALID = re.compile(r"[A-Za-z0-9_-]+")


class NamespaceFilter(Struct, frozen=True):
    """The workers a frontend serves. A prefix beats an exact name; the default namespace, like none, stands for all.

    `endpoint` is the only path that is served, if any.
    """

    exact: str | None = None
    prefix: str | None = None
    endpoint: EndpointId | None = None

    def __call__(self, path: str) -> bool:
        """Whether the workers at `namespace/component/endpoint` are served."""
        if self.endpoint is not None:
            return path == self.endpoint.path
        namespace = path.partition("/")[0]
        if self.prefix:
            return namespace.startswith(self.prefix)
        return self.exact in (None, "", DEFAULT_NAMESPACE, namespace)

    @property
    def own(self) -> str:
        """A namespace that it lets through: that of a worker in the frontend's own process."""
        return self.prefix or self.exact or DEFAULT_NAMESPACE

    def own_endpoint(self) -> EndpointId:
        """Where a worker in the frontend's own process serves."""
        return self.endpoint or EndpointId(self.own)


class EndpointId(Struct, frozen=True):
    """One load-balanced service: all its instances answer the same requests."""

    namespace: str = DEFAULT_NAMESPACE
    component: str = DEFAULT_COMPONENT
    name: str = DEFAULT_ENDPOINT

    def __post_init__(self) -> None:
        check_part("namespace", self.namespace)
        check_part("component", self.component)
        check_part("endpoint", self.name)

    def __str__(self) -> str:
        return f"{SCHEME}{self.namespace}.{self.component}.{self.name}"

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.component}/{self.name}"

    @classmethod
    def parse(cls, text: str, default_namespace: str = DEFAULT_NAMESPACE) -> EndpointId:
        """Read `dyn://a.b.c`, with defaults for missing parts: one is a component, two add a namespace."""
        parts = [part for part in re.split(r"[./]", text.strip().removeprefix(SCHEME)) if part]
        match parts:
            case []:
                return cls(default_namespace)
            case [component]:
                return cls(default_namespace, component)
            case [namespace, component]:
                return cls(namespace, component)
            case [namespace, component, *rest]:
                return cls(namespace, component, "_".join(rest))
        raise AssertionError("a list has none, one, two or more parts")

    @classmethod
    def exact(cls, text: str) -> EndpointId:
        """Read a name that must give all three parts."""
        parts = text.strip().removeprefix(SCHEME).split(".")
        if len(parts) != 3:
            raise ValueError(f"endpoint must be namespace.component.endpoint, not '{text}'")
        return cls(*parts)


def check_part(part: str, value: str) -> str:
    if not _VALID.fullmatch(value):
        raise ValueError(f"{part} '{value}' is not a valid name: use letters, digits, '_' and '-'")
    return value


def new_instance_id() -> int:
    """A unique number: 63 random bits, so that every language and store can hold it."""
    return secrets.randbits(63) or 1


def instance_key(endpoint: EndpointId, instance_id: int) -> str:
    return f"{INSTANCES}{endpoint.path}/{instance_id:x}"


def card_key(endpoint: EndpointId, instance_id: int) -> str:
    return f"{CARDS}{endpoint.path}/{instance_id:x}"


def split_key(key: str) -> tuple[EndpointId, int]:
    """The endpoint and instance a key of this module names; ValueError for any other key."""
    match key.split("/"):
        case ["v1", "instances" | "mdc", namespace, component, endpoint, instance]:
            instance_id = int(instance, 16)
            if f"{instance_id:x}" == instance:  # one instance has one key
                return EndpointId(namespace, component, endpoint), instance_id
    raise ValueError(f"not the key of an instance: {key!r}")

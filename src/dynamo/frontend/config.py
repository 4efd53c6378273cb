"""The configuration of the frontend: its settings, the router's, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from dynamo.frontend.admission.keys import ApiKeys, KeyEntry, KnownKey, digest, read_keys
from dynamo.frontend.admission.limits import KeyLimits
from dynamo.frontend.connection import ConnectionLimits
from dynamo.frontend.measure.metrics import clean_prefix
from dynamo.model import ModelError
from dynamo.process.addresses import listening_address
from dynamo.router import RoutingConfig
from dynamo.runtime import RuntimeConfig
from dynamo.runtime.names import EndpointId, NamespaceFilter
from dynamo.serving.request_template import RequestTemplate
from dynamo.settings import given, read
from dynamo.settings.frontend import FrontendSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class FrontendConfig(FrontendSettings, frozen=True, kw_only=True):
    router: RoutingConfig = RoutingConfig()
    request_template: RequestTemplate | None = None
    filed_keys: tuple[KeyEntry, ...] = ()
    """The entries of `api_keys_file`."""
    endpoint: EndpointId | None = None
    """The only endpoint whose workers are served."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tls_cert_path is None) != (self.tls_key_path is None):
            raise ValueError("--tls-cert-path and --tls-key-path need each other: give both or neither")
        if self.kserve_grpc_server and self.workers > 1:
            raise ValueError("--kserve-grpc-server is one process: leave out --http-workers")

    @property
    def http_port(self) -> int:
        return self.grpc_metrics_port if self.kserve_grpc_server else self.port

    @property
    def connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(idle=self.idle_timeout, header=self.header_timeout, stall=self.stall_timeout)

    @property
    def default_key_limits(self) -> KeyLimits:
        return KeyLimits(
            requests_per_second=self.key_requests_per_second,
            tokens_per_second=self.key_tokens_per_second,
            concurrent=self.key_concurrent_requests,
        )

    def keys(self) -> ApiKeys:
        default = self.default_key_limits
        return ApiKeys(
            (
                *(KnownKey(digest=digest(key), limits=default) for key in self.api_keys),
                *(KnownKey(digest=digest(key), admin=True) for key in self.admin_keys),
                *(_known(entry, default) for entry in self.filed_keys),
            )
        )

    @property
    def is_local(self) -> bool:
        return self.host in LOOPBACK or self.host.startswith("127.")

    @property
    def serves(self) -> NamespaceFilter:
        return NamespaceFilter(self.namespace, self.namespace_prefix, self.endpoint)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str],
        *,
        request_template: RequestTemplate | None = None,
        endpoint: EndpointId | None = None,
        **flags: Any,
    ) -> FrontendConfig:
        """`flags` by the names of the frontend's and the router's flags."""
        routing = given(flags, RoutingConfig)
        router = RoutingConfig.from_env(environ, **routing)
        values = read(cls, environ, {name: flags[name] for name in flags if name not in routing})
        values.setdefault("host", listening_address(environ))
        if "metrics_prefix" in values:
            values["metrics_prefix"] = clean_prefix(values["metrics_prefix"])
        keys_file = values.get("api_keys_file")
        filed_keys = tuple(read_keys(keys_file).values()) if keys_file else ()
        return cls(**values, router=router, request_template=request_template, filed_keys=filed_keys, endpoint=endpoint)


def _known(entry: KeyEntry, default: KeyLimits) -> KnownKey:
    given = {name: value for name in KeyLimits.__struct_fields__ if (value := getattr(entry, name)) is not None}
    limits = KeyLimits() if entry.admin and not given else structs.replace(default, **given)
    return KnownKey(digest=digest(entry.key), admin=entry.admin, weight=entry.weight, limits=limits)


def nothing_served_hint(config: FrontendConfig, network: RuntimeConfig, failures: Mapping[str, ModelError]) -> str:
    """Why the models of the workers that joined cannot be served, or how to start a worker that this frontend finds."""
    if failures:
        return "\n".join(f"a worker of '{name}' has joined, but: {why}" for name, why in failures.items())
    if network.discovery.backend == "memory":
        return "no worker can join: discovery in memory ends at this process; use --discovery-backend file or etcd"
    words = ["dynamo-run", f"in={config.serves.own_endpoint()}"]
    if network.discovery.backend != "file":
        words.append(f"--discovery-backend {network.discovery.backend}")
    if network.plane != "tcp":
        words.append(f"--request-plane {network.plane}")
    return f"no worker has joined yet; to start one: {' '.join(words)} tiny"

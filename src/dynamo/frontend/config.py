"""The configuration of the frontend: its settings, the router's, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamo.frontend.connection import ConnectionLimits
from dynamo.frontend.measure.metrics import clean_prefix
from dynamo.router import RoutingConfig
from dynamo.runtime.names import NamespaceFilter
from dynamo.serving.request_template import RequestTemplate
from dynamo.settings import given, read
from dynamo.settings.frontend import FrontendSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class FrontendConfig(FrontendSettings, frozen=True, kw_only=True):
    router: RoutingConfig = RoutingConfig()
    request_template: RequestTemplate | None = None

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
    def ignores_unknown_fields(self) -> bool:
        return self.ignore_unknown_fields and not self.refuse_unknown_fields

    @property
    def is_local(self) -> bool:
        return self.host in LOOPBACK or self.host.startswith("127.")

    @property
    def serves_namespace(self) -> NamespaceFilter:
        return NamespaceFilter(self.namespace, self.namespace_prefix)

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str], *, request_template: RequestTemplate | None = None, **flags: Any
    ) -> FrontendConfig:
        """`flags` by the names of the frontend's and the router's flags."""
        routing = given(flags, RoutingConfig)
        router = RoutingConfig.from_env(environ, **routing)
        values = read(cls, environ, {name: flags[name] for name in flags if name not in routing})
        if "metrics_prefix" in values:
            values["metrics_prefix"] = clean_prefix(values["metrics_prefix"])
        return cls(**values, router=router, request_template=request_template)

"""`--kserve-grpc-server`: the same models over gRPC, under the same keys and limits and in the same metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from multidict import CIMultiDict

from dynamo.api import headers
from dynamo.api.route import Access
from dynamo.frontend.admission.keys import ANYBODY
from dynamo.frontend.admission.limits import MeteredRequest
from dynamo.frontend.callers import BYTES_PER_TOKEN
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.measure.request_record import RequestRecord
from dynamo.frontend.state import Frontend
from dynamo.process.open_files import grpc_connections
from dynamo.protocols.errors import DynamoException, StartError, Unavailable
from dynamo.serving.observer import RequestObserver

if TYPE_CHECKING:
    from dynamo.api.kserve.server import Inference, KserveServer
    from dynamo.api.kserve.service import RpcRoute

_OK = 200


class GrpcAdmission:
    def __init__(self, frontend: Frontend, config: FrontendConfig) -> None:
        self._frontend = frontend
        self._config = config
        self._keys = config.keys()
        self._metered: dict[RequestRecord, MeteredRequest] = {}

    def check(self, route: RpcRoute, metadata: Mapping[str, str]) -> str:
        if route.access is Access.PROBE:
            return ANYBODY
        owner = self._keys.check(CIMultiDict(metadata))
        if route.endpoint and not route.streams:
            self._check_limits(owner)
        return owner

    def begin(self, route: RpcRoute, owner: str, inference: Inference) -> RequestRecord:
        # The messages of one stream come whenever the client sends them.
        self._check_limits(owner)
        requests = self._frontend.requests
        meter = self._frontend.callers.meter(owner)
        metered = meter.admit(inference.size // BYTES_PER_TOKEN + inference.max_tokens) if meter else None
        inference.context.tenant = self._frontend.callers.tenant(owner)
        # Replaced if it is not safe to write to a log.
        logged_id = headers.request_id(CIMultiDict({"x-request-id": inference.id}))
        record = requests.begin("gRPC", f"/{route.method}", logged_id, route.endpoint)
        record.stream = route.streams
        requests.run(record)
        if metered:
            self._metered[record] = metered
        return record

    def _check_limits(self, owner: str) -> None:
        if self._frontend.draining:
            raise Unavailable("The service is shutting down.")
        self._frontend.requests.check(self._config.max_concurrent_requests)
        if meter := self._frontend.callers.meter(owner):
            meter.check()

    def end(self, observer: RequestObserver | None, error: DynamoException | None) -> None:
        record = cast(RequestRecord, observer)
        if metered := self._metered.pop(record, None):
            metered.end(record.input_tokens + record.output_tokens)
        if error:
            record.failed(error)
        self._frontend.requests.end(record, error.status if error else _OK)
        record.forget()


def kserve_server(frontend: Frontend, config: FrontendConfig) -> KserveServer:
    try:
        from dynamo.api.kserve.server import KserveServer
    except ModuleNotFoundError as error:
        raise StartError(f"--kserve-grpc-server needs gRPC ({error}): pip install 'dynamo-serving[kserve]'") from error
    certificate = None
    if config.tls_cert_path and config.tls_key_path:
        certificate = (Path(config.tls_cert_path), Path(config.tls_key_path))
    return KserveServer(
        frontend.models,
        config.host,
        config.port,
        admission=GrpcAdmission(frontend, config),
        certificate=certificate,
        message_limit_mb=config.body_limit_mb,
        connections=grpc_connections(),
        idle_timeout=config.idle_timeout,
    )

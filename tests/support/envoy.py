"""A real Envoy with the shipped configuration, or with bodies as gateways of Kubernetes send them."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.services import free_port
from support.waiting import PATIENCE, until_sync

SHIPPED = Path(__file__).parents[2] / "deploy/gateway/envoy.yaml"


def configuration(port: int, admin: int, pickers: Sequence[str], servers: Sequence[str], *, duplex: bool) -> str:
    """What is shipped, for these addresses; `duplex`: bodies as the protocol of endpoint pickers asks."""
    config: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    [listener] = config["static_resources"]["listeners"]
    listener["address"] = _address(f"127.0.0.1:{port}")
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    [route] = manager["route_config"]["virtual_hosts"][0]["routes"]
    route["response_headers_to_add"] = [{"header": {"key": "x-upstream", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}]
    processing = manager["http_filters"][0]["typed_config"]
    if duplex:
        processing["processing_mode"] |= {
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        }
        # One picker that cannot be reached is another's work.
        processing["grpc_service"]["retry_policy"] = {"retry_on": "connect-failure,refused-stream", "num_retries": 3}
    processing["metadata_options"]["forwarding_namespaces"] = {"untyped": ["envoy.lb.subset_hint"]}
    manager["http_filters"].insert(0, _SUBSET_FROM_HEADER)
    for cluster, addresses in zip(config["static_resources"]["clusters"], (pickers, servers), strict=True):
        cluster["type"] = "STATIC"
        endpoints = [{"endpoint": {"address": _address(each)}} for each in addresses]
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    # A stock server closes connections that are idle, and a request that meets that would be lost: each has its own.
    servers_cluster = config["static_resources"]["clusters"][1]
    servers_cluster["typed_extension_protocol_options"] = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http_protocol_options": {}},
            "common_http_protocol_options": {"max_requests_per_connection": 1},
        }
    }
    config["admin"] = {"address": _address(f"127.0.0.1:{admin}")}
    return json.dumps(config)


_SUBSET_FROM_HEADER = {
    "name": "envoy.filters.http.header_to_metadata",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
        "request_rules": [
            {
                "header": "x-test-subset",
                "on_header_present": {
                    "metadata_namespace": "envoy.lb.subset_hint",
                    "key": "x-gateway-destination-endpoint-subset",
                    "type": "STRING",
                },
                "remove": True,
            }
        ],
    },
}
"""What a gateway's route says of the servers that count."""


def _address(endpoint: str) -> dict[str, Any]:
    host, _, port = endpoint.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


@contextmanager
def envoy(
    program: Path, folder: Path, pickers: Sequence[str], servers: Sequence[str], *, duplex: bool = False
) -> Iterator[str]:
    """The URL of an Envoy that serves."""
    port, admin = free_port(), free_port()
    file = folder / f"envoy-{port}.yaml"
    file.write_text(configuration(port, admin, pickers, servers, duplex=duplex))
    words = [str(program), "-c", str(file), "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]
    with (folder / f"envoy-{port}.log").open("wb") as log:
        child = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        until_sync(lambda: is_live(child, admin, folder / f"envoy-{port}.log"))
        yield f"http://127.0.0.1:{port}"
    finally:
        child.kill()
        child.wait(timeout=PATIENCE)


def is_live(child: subprocess.Popen[bytes], admin: int, log: Path) -> bool:
    assert child.poll() is None, log.read_text()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/ready") as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False

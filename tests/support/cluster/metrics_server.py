"""One external metric for autoscalers, with the value that a test says."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from support.cluster.control_plane import AGGREGATED, SERVICE
from support.cluster.places import ROOT
from support.cluster.running import Cluster

PORT = 9446
GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
BASE = f"/apis/{GROUP}/{VERSION}"
NAME = "wanted_workers"


class ExternalMetric:
    def __init__(self, file: Path) -> None:
        self._file = file

    def set(self, value: int) -> None:
        self._file.write_text(str(value))


@contextmanager
def serving_metrics(cluster: Cluster) -> Iterator[ExternalMetric]:
    """While the block runs, autoscalers find the metric `wanted_workers`, which is 1 at first."""
    metric = ExternalMetric(cluster.folder / "metric")
    metric.set(1)
    files = (str(cluster.folder / name) for name in ("metric", "tls.crt", "tls.key"))
    process = subprocess.Popen(
        [*cluster.inside, sys.executable, "-m", "support.cluster.metrics_server", *files],
        stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
    )  # fmt: skip
    try:
        service = SERVICE.format(name="metrics", port=PORT)
        aggregated = AGGREGATED.format(group=GROUP, version=VERSION, port=PORT).replace("name: shim", "name: metrics")
        cluster.apply(service + aggregated, "kube-system")
        cluster.wait("--for=condition=Available", f"apiservice/{VERSION}.{GROUP}")
        yield metric
    finally:
        process.kill()
        process.wait()


def main(value: str, certificate: str, key: str) -> None:
    async def listed(_: web.Request) -> web.Response:
        resource = {"name": NAME, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
        found = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}"}
        return web.json_response({**found, "resources": [resource]})

    async def metric(_: web.Request) -> web.Response:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        item: dict[str, Any] = {"metricName": NAME, "metricLabels": {}, "timestamp": now}
        items = [{**item, "value": Path(value).read_text()}]
        found = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        return web.json_response({**found, "items": items})

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    app = web.Application()
    app.router.add_get(BASE, listed)
    app.router.add_get(f"{BASE}/namespaces/{{namespace}}/{NAME}", metric)
    web.run_app(app, host="127.0.0.1", port=PORT, ssl_context=tls, print=None)


if __name__ == "__main__":
    main(*sys.argv[1:])

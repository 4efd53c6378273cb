"""Waits a minute for an operator that leads, then says what it serves."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST = os.environ["KUBERNETES_SERVICE_HOST"]
SERVER = f"https://{f'[{HOST}]' if ':' in HOST else HOST}:{os.environ['KUBERNETES_SERVICE_PORT']}"
GROUP = "/apis/nvidia.com/"
NAMESPACE = (ACCOUNT / "namespace").read_text()
TRUSTED = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))


def get(path):
    request = urllib.request.Request(
        SERVER + path, headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10, context=TRUSTED) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        missing = "; apply the definitions of the chart (helm show crds)" if error.code == 404 and GROUP in path else ""
        sys.exit(f"error: the API server answers {error.code} ({error.reason}) to {path}{missing}")
    except urllib.error.URLError as error:
        sys.exit(f"error: the API server at {SERVER} cannot be reached: {error.reason}")


def leader():
    spec = get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/dynamo-operator").get("spec", {})
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return None
    renewed = datetime.strptime(spec["renewTime"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    fresh = (datetime.now(UTC) - renewed).total_seconds() < spec["leaseDurationSeconds"]
    return spec["holderIdentity"] if fresh else None


graphs = get(f"{GROUP}v1beta1/namespaces/{NAMESPACE}/dynamographdeployments")["items"]
until = time.monotonic() + 60
while not (leading := leader()):
    if time.monotonic() > until:
        sys.exit(f"error: no operator leads in the namespace {NAMESPACE}; see the logs of its pods")
    time.sleep(1)
print(f"{leading} leads; graphs of the namespace {NAMESPACE}: {len(graphs)}")

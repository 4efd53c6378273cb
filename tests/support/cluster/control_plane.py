"""Starts a cluster inside namespaces of its own and waits: `python -m support.cluster.control_plane FOLDER NODE…`.

Whoever starts it makes its network and PID namespace; the end of this process ends everything it started. The file
`ready` in the folder says that all nodes are.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from support.cluster.places import (
    ADMIN_TOKEN,
    API_HOST,
    API_SERVICE,
    BIN,
    CRD_PORT,
    DNS_SERVICE,
    SERVER,
    SERVICES,
    SHIM_PORT,
    has,
)

ETCD = "http://127.0.0.1:12379"
GATES = "BoundServiceAccountTokenVolume=true,EndpointSliceTerminatingCondition=true,EndpointSliceNodeName=true"
QUICK = ("--kube-api-qps=500", "--kube-api-burst=1000")

SERVICE = """
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: kube-system}}
spec: {{type: ExternalName, externalName: localhost, ports: [{{port: {port}}}]}}
---
"""
AGGREGATED = """
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {{name: {version}.{group}}}
spec:
  group: {group}
  version: {version}
  groupPriorityMinimum: 100
  versionPriority: 1
  insecureSkipTLSVerify: true
  service: {{namespace: kube-system, name: shim, port: {port}}}
---
"""
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{server}", certificate-authority: "{ca}"}}}}]
users: [{{name: u, user: {{token: {token}}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
MARK = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: marks.test.example.com}
spec:
  group: test.example.com
  scope: Cluster
  names: {plural: marks, kind: Mark}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
"""


class ControlPlane:
    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self._folder = folder
        self._nodes = nodes
        self._ca = folder / "certs" / "apiserver.crt"
        self._commands: dict[str, Sequence[str]] = {}
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> None:
        self._addresses()
        self._certificates()
        self._start_etcd()
        self._start_api_server()
        self._start_controllers()
        self._helper(
            "shim", str(self._folder / "tls.crt"), str(self._folder / "tls.key"), str(SHIM_PORT), str(CRD_PORT)
        )
        self._helper("dns", DNS_SERVICE)
        if has("apiextensions-apiserver"):
            self._start_crd_server()
        self._aggregate()
        for node in self._nodes:
            self._helper("node", node, str(self._folder / "nodes"), log=node)
        self._wait(lambda: self._kubectl("get", "nodes").count(" Ready") == len(self._nodes))
        (self._folder / "ready").touch()

    def keep(self) -> None:
        """Start the API server and etcd again when they end, as tests make them do."""
        while True:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            for name, process in self._started.items():
                if process.poll() is not None and name in ("apiserver", "etcd"):
                    self._start(name, *self._commands[name])
                    break
            else:
                self._reap()

    def _reap(self) -> None:
        """Whatever else ended: this is the first process of the namespace."""
        os.waitpid(-1, os.WNOHANG)

    def _addresses(self) -> None:
        """All inside the namespace's loopback: the in-cluster address of the API works without a proxy."""
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "route", "add", SERVICES, "dev", "lo")
        for address in (API_SERVICE, DNS_SERVICE, API_HOST):
            _run("ip", "addr", "add", f"{address}/32", "dev", "lo")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def _certificates(self) -> None:
        self._openssl("genrsa", "-out", "sa.key", "2048")
        request = ("req", "-newkey", "rsa:2048", "-nodes")
        self._openssl(*request, "-x509", "-keyout", "front.ca.key", "-out", "front.ca.crt", "-subj", "/CN=front-ca")
        self._openssl(*request, "-keyout", "front.key", "-out", "front.csr", "-subj", "/CN=front-proxy-client")
        (self._folder / "front.ext").write_text("extendedKeyUsage=clientAuth")
        self._openssl(
            "x509", "-req", "-in", "front.csr", "-CA", "front.ca.crt", "-CAkey", "front.ca.key", "-CAcreateserial",
            "-extfile", "front.ext", "-out", "front.crt",
        )  # fmt: skip
        names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        self._openssl(
            *request, "-x509", "-keyout", "tls.key", "-out", "tls.crt", "-subj", "/CN=local", "-addext", names
        )
        (self._folder / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')

    def _start_etcd(self) -> None:
        etcd = shutil.which("etcd", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        self._start(
            "etcd", str(etcd), "--data-dir=etcd", f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:12380", "--unsafe-no-fsync", "--log-level=error",
        )  # fmt: skip

    def _start_api_server(self) -> None:
        front = "--requestheader"
        self._start(
            "apiserver", str(BIN / "kube-apiserver"), f"--etcd-servers={ETCD}", "--bind-address=0.0.0.0",
            "--secure-port=443", f"--advertise-address={API_HOST}", "--cert-dir=certs",
            f"--service-cluster-ip-range={SERVICES}", "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=sa.key", "--service-account-signing-key-file=sa.key",
            "--token-auth-file=tokens.csv", "--authorization-mode=Node,RBAC", "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP", f"--feature-gates={GATES}",
            "--default-not-ready-toleration-seconds=2", "--default-unreachable-toleration-seconds=2",
            f"{front}-client-ca-file=front.ca.crt", f"{front}-allowed-names=front-proxy-client",
            f"{front}-username-headers=X-Remote-User", f"{front}-group-headers=X-Remote-Group",
            f"{front}-extra-headers-prefix=X-Remote-Extra-", "--proxy-client-cert-file=front.crt",
            "--proxy-client-key-file=front.key",
        )  # fmt: skip
        self._wait(lambda: _answers(f"{SERVER}/readyz"))
        kubeconfig = KUBECONFIG.format(server=SERVER, ca=self._ca, token=ADMIN_TOKEN)
        (self._folder / "kubeconfig").write_text(kubeconfig)

    def _start_controllers(self) -> None:
        common = ("--kubeconfig=kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1", *QUICK)
        self._start(
            "controllers", str(BIN / "kube-controller-manager"), *common, "--service-account-private-key-file=sa.key",
            f"--root-ca-file={self._ca}", "--controllers=*,-nodeipam,-cloud-node-lifecycle",
            "--use-service-account-credentials", f"--feature-gates={GATES}", "--node-monitor-period=1s",
            "--node-monitor-grace-period=12s", "--horizontal-pod-autoscaler-sync-period=2s",
        )  # fmt: skip
        self._start("scheduler", str(BIN / "kube-scheduler"), *common)

    def _start_crd_server(self) -> None:
        """Today's server of custom resources takes the place of the old one's."""
        self._start(
            "crds", str(BIN / "apiextensions-apiserver"), f"--etcd-servers={ETCD}", "--etcd-prefix=/registry/crds",
            "--bind-address=127.0.0.1", f"--secure-port={CRD_PORT}", "--cert-dir=certs-crds",
            "--kubeconfig=kubeconfig", "--authentication-kubeconfig=kubeconfig",
            "--authorization-kubeconfig=kubeconfig", "--enable-priority-and-fairness=false",
            "--disable-admission-plugins=ValidatingAdmissionPolicy,MutatingAdmissionPolicy",
        )  # fmt: skip
        self._wait(lambda: _answers(f"https://127.0.0.1:{CRD_PORT}/readyz"))

    def _aggregate(self) -> None:
        documents = SERVICE.format(name="shim", port=SHIM_PORT)
        served = {"autoscaling": "v2", "policy": "v1", "discovery.k8s.io": "v1"}
        documents += "".join(
            AGGREGATED.format(group=group, version=version, port=SHIM_PORT) for group, version in served.items()
        )
        if has("apiextensions-apiserver"):
            documents += SERVICE.format(name="crds", port=CRD_PORT)
        self._kubectl("apply", "-f", "-", text=documents)
        names = [f"apiservice/{version}.{group}" for group, version in served.items()]
        self._kubectl("wait", "--for=condition=Available", "--timeout=60s", *names)
        if has("apiextensions-apiserver"):
            service = {"namespace": "kube-system", "name": "crds", "port": CRD_PORT}
            patch = json.dumps({"spec": {"service": service, "insecureSkipTLSVerify": True}})
            self._kubectl("patch", "apiservice", "v1.apiextensions.k8s.io", "--type=merge", "-p", patch)
            # Made at the new server and seen through the old one: the switch has happened.
            url = f"https://127.0.0.1:{CRD_PORT}/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            _open(url, MARK.encode())
            self._wait(lambda: "marks" in self._kubectl("get", "crd"))

    def _helper(self, module: str, *arguments: str, log: str = "") -> None:
        words = (sys.executable, "-m", f"support.cluster.{module}", SERVER, ADMIN_TOKEN, str(self._ca))
        self._start(log or module, *words, *arguments)

    def _start(self, name: str, *words: str) -> None:
        self._commands[name] = words
        with (self._folder / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                words, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            for name, process in self._started.items():
                if process.poll() is not None:
                    text = (self._folder / f"{name}.log").read_text(errors="replace")
                    raise SystemExit(f"{name} ended with {process.returncode}: {text[-2000:]}")
            time.sleep(0.1)

    def _kubectl(self, *words: str, text: str | None = None) -> str:
        """Its output; empty where it fails, so that the call can be waited for."""
        done = subprocess.run(
            [str(BIN / "kubectl"), f"--kubeconfig={self._folder / 'kubeconfig'}", *words],
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
        print("kubectl", *words, done.stdout, done.stderr, flush=True)
        return done.stdout

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._folder, check=True, capture_output=True)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def _open(url: str, body: bytes | None = None) -> bytes:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/yaml"}
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, context=ssl._create_unverified_context()) as answer:
        whole: bytes = answer.read()
        return whole


def _answers(url: str) -> bool:
    try:
        return _open(url).startswith(b"ok")
    except (urllib.error.URLError, OSError):
        return False


def main(folder: str, *nodes: str) -> None:
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    plane = ControlPlane(place, nodes)
    plane.run()
    plane.keep()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Which address a process tells others, as far as this machine's own network shows it."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from dynamo.process.addresses import listening_address, own_address
from dynamo.runtime.config import RuntimeConfig


def test_it_is_an_address_this_machine_can_listen_on() -> None:
    with socket.create_server((own_address(family=socket.AF_INET), 0)):
        pass


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "localhost", "", "no.such.host.invalid", "x" * 70, "a b", "%"])
def test_a_peer_on_this_machine_or_nowhere_decides_nothing(peer: str) -> None:
    assert own_address([peer]) == own_address()


@pytest.mark.parametrize(("family", "version"), [(socket.AF_INET, 4), (socket.AF_INET6, 6)])
def test_it_is_of_the_family_asked_for(family: int, version: int) -> None:
    assert ip_address(own_address(["127.0.0.1", "::1"], family)).version == version


def test_the_services_are_the_peers_where_discovery_spans_machines() -> None:
    environ = {"ETCD_ENDPOINTS": "127.0.0.1:1,http://192.0.2.1", "NATS_SERVER": "user:pw@localhost:4222,127.0.0.1"}
    config = RuntimeConfig.from_env(environ)
    assert config.tcp.peers == config.events.peers == ("127.0.0.1", "192.0.2.1", "localhost")
    assert config.tcp.host == config.events.host == own_address()
    assert RuntimeConfig.from_env(environ | {"DYN_DISCOVERY_BACKEND": "file"}).tcp.peers == ()


def test_where_all_services_are_on_this_machine_the_planes_stay_on_it() -> None:
    config = RuntimeConfig.from_env({"ETCD_ENDPOINTS": "127.0.0.1:1,http://[::1]:2379"})
    assert config.tcp.host == config.events.host == "127.0.0.1"


def test_an_address_that_was_chosen_is_kept() -> None:
    environ = {"ETCD_ENDPOINTS": "127.0.0.1:1", "DYN_TCP_RPC_HOST": "0.0.0.0", "DYN_EVENT_PLANE_HOST": "127.0.0.2"}
    config = RuntimeConfig.from_env(environ)
    assert (config.tcp.host, config.events.host) == ("0.0.0.0", "127.0.0.2")


def test_a_process_listens_on_loopback_and_in_a_pod_everywhere() -> None:
    assert listening_address({}) == "127.0.0.1"
    assert listening_address({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}) in ("0.0.0.0", "::")

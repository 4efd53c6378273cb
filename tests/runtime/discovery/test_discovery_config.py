from __future__ import annotations

from pathlib import Path

import pytest

from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.discovery import (
    DiscoveryConfig,
    DiscoveryError,
    EtcdDiscovery,
    FileDiscovery,
    MemoryDiscovery,
    MemoryStore,
    connect,
)


def config(environ: dict[str, str], flag: str | None = None) -> DiscoveryConfig:
    return RuntimeConfig.from_env(environ, discovery_backend=flag).discovery


@pytest.mark.parametrize(
    ("flag", "environ", "backend"),
    [
        (None, {}, "file"),
        (None, {"ETCD_ENDPOINTS": "a:1"}, "etcd"),
        (None, {"ETCD_ENDPOINTS": ""}, "file"),
        (None, {"ETCD_ENDPOINTS": "a:1", "DYN_DISCOVERY_BACKEND": "mem"}, "memory"),
        ("file", {"ETCD_ENDPOINTS": "a:1", "DYN_DISCOVERY_BACKEND": "mem"}, "file"),
        ("MEM", {}, "memory"),
        ("etcd", {}, "etcd"),
    ],
)
def test_the_flag_wins_over_the_variable_and_that_over_what_is_there(
    flag: str | None, environ: dict[str, str], backend: str
) -> None:
    assert config(environ, flag).backend == backend


def test_an_unknown_backend_is_refused_with_the_list() -> None:
    wanted = "--discovery-backend must be one of memory, file, etcd or kubernetes, not 'consul'"
    with pytest.raises(ValueError, match=wanted):
        config({}, "consul")
    with pytest.raises(ValueError, match="DYN_DISCOVERY_BACKEND must be one of"):
        config({"DYN_DISCOVERY_BACKEND": "zookeeper"})


def test_a_wrong_etcd_variable_matters_only_with_etcd() -> None:
    environ = {"ETCD_LEASE_TTL": "soon"}
    assert config(environ, "file").backend == "file"
    with pytest.raises(DiscoveryError, match="ETCD_LEASE_TTL"):
        config(environ, "etcd")


async def test_connect_gives_the_backend_that_was_named(tmp_path: Path) -> None:
    environ = {"DYN_FILE_KV": str(tmp_path / "kv")}
    assert isinstance(connect(config(environ, "file")), FileDiscovery)
    assert isinstance(connect(config(environ, "etcd")), EtcdDiscovery)
    assert isinstance(connect(config(environ, "memory")), MemoryDiscovery)


async def test_memory_participants_meet_in_the_store_they_are_given() -> None:
    memory, store = config({}, "memory"), MemoryStore()
    one, two = connect(memory, store), connect(memory, store)
    await one.put("v1/a", b"1")
    assert await two.get_prefix("") == {"v1/a": b"1"}
    assert await connect(memory).get_prefix("") == {}

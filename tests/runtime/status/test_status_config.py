from __future__ import annotations

import re

import pytest

from dynamo.runtime import RuntimeConfig
from dynamo.runtime.status import StatusConfig


@pytest.mark.parametrize(
    ("environ", "port"),
    [
        ({}, None),
        ({"DYN_SYSTEM_PORT": "-1"}, None),
        ({"DYN_SYSTEM_PORT": " "}, None),
        ({"DYN_SYSTEM_PORT": "0"}, 0),
        ({"DYN_SYSTEM_PORT": "40000"}, 40000),
        ({"DYN_SYSTEM_ENABLED": "true"}, 8081),
        ({"DYN_SYSTEM_ENABLED": "true", "DYN_SYSTEM_PORT": "9090"}, 9090),
        ({"DYN_SYSTEM_ENABLED": "false", "DYN_SYSTEM_PORT": "9090"}, None),
    ],
)
def test_the_port_switches_it_on(environ: dict[str, str], port: int | None) -> None:
    config = StatusConfig.from_env(environ)
    assert (config.port if config.on else None) == port


def test_everything_can_be_set() -> None:
    config = StatusConfig.from_env(
        {
            "DYN_SYSTEM_PORT": "1",
            "DYN_SYSTEM_HOST": "::1",
            "DYN_SYSTEM_HEALTH_PATH": "/well",
            "DYN_SYSTEM_LIVE_PATH": "/alive",
            "DYN_SYSTEM_STARTING_HEALTH_STATUS": "ready",
            "DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS": '["generate", "other"]',
            "DYN_HEALTH_CHECK_ENABLED": "1",
            "DYN_CANARY_WAIT_TIME": "20",
            "DYN_HEALTH_CHECK_REQUEST_TIMEOUT": "0.5",
        }
    )
    assert config == StatusConfig(
        port=1,
        host="::1",
        health_path="/well",
        live_path="/alive",
        starts_ready=True,
        required=("generate", "other"),
        probes=True,
        idle=20,
        patience=0.5,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DYN_SYSTEM_PORT", "http"),
        ("DYN_SYSTEM_PORT", "65536"),
        ("DYN_SYSTEM_HEALTH_PATH", "health"),
        ("DYN_SYSTEM_LIVE_PATH", "/{x}"),
        ("DYN_SYSTEM_STARTING_HEALTH_STATUS", "well"),
        ("DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS", "generate"),
        ("DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS", "[1]"),
        ("DYN_CANARY_WAIT_TIME", "0"),
        ("DYN_HEALTH_CHECK_REQUEST_TIMEOUT", "soon"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .*{re.escape(value)}"):
        StatusConfig.from_env({name: value})


def test_a_process_that_is_no_worker_tells_nothing() -> None:
    environ = {"DYN_SYSTEM_PORT": "0"}
    assert RuntimeConfig.from_env(environ).status.on
    assert not RuntimeConfig.from_env(environ).without_status().status.on
    assert not RuntimeConfig.in_process(environ).status.on

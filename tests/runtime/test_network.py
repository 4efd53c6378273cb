from __future__ import annotations

import logging

import pytest

from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.network import reject_if_open
from dynamo.runtime.plane.base import PlaneError

FAR = {"ETCD_ENDPOINTS": "192.0.2.1:2379", "DYN_TCP_RPC_HOST": "192.0.2.7", "DYN_EVENT_PLANE_HOST": "192.0.2.7"}
MUTUAL = {"DYN_TCP_TLS_CERT_PATH": "c", "DYN_TCP_TLS_KEY_PATH": "k", "DYN_TCP_TLS_CA_CERT_PATH": "ca"}


def check(**environ: str) -> None:
    reject_if_open(RuntimeConfig.from_env(environ))


def test_on_loopback_no_secret_is_needed() -> None:
    check()
    check(ETCD_ENDPOINTS="localhost:2379")


def test_between_hosts_the_refusal_names_both_ways_in_one_line() -> None:
    with pytest.raises(PlaneError, match=r"DYN_PLANE_TOKEN.*--insecure-plane") as refused:
        check(**FAR)
    assert "request plane on 192.0.2.7 and the event plane on 192.0.2.7" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["DYN_PLANE_TOKEN", "DYN_REQUEST_PLANE_TOKEN"])
def test_a_token_is_enough_for_both_planes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        check(**FAR, **{name: "secret"})
    assert "protected by a token" in caplog.text
    assert "secret" not in caplog.text


def test_certificates_are_enough_for_the_request_plane_only() -> None:
    with pytest.raises(PlaneError, match=r"event plane.*TLS protects the request plane only"):
        check(**FAR, **MUTUAL)
    check(**FAR, **MUTUAL, DYN_EVENT_PLANE="nats")


def test_a_certificate_without_an_authority_lets_anybody_in() -> None:
    one_way = {name: value for name, value in MUTUAL.items() if "CA" not in name}
    with pytest.raises(PlaneError, match="any client is accepted"):
        check(**FAR, **one_way, DYN_EVENT_PLANE="nats")


def test_what_is_allowed_in_words_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check(**FAR, DYN_INSECURE_PLANE="1")
    assert "without a secret" in caplog.text

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.discovery.memory import MemoryDiscovery, MemoryStore
from dynamo.runtime.events import (
    EventPlaneConfig,
    EventPlaneError,
    MemoryEventPlane,
    NatsEventPlane,
    ZmqEventPlane,
    event_plane,
)
from dynamo.runtime.events.base import Subscribers, check_pattern, check_subject
from dynamo.runtime.nats import NatsConnection
from dynamo.runtime.nats_config import NatsConfig


def test_the_flag_wins_over_the_environment_over_the_default() -> None:
    assert EventPlaneConfig.from_env({}) == EventPlaneConfig(kind="zmq", host="127.0.0.1")
    assert EventPlaneConfig.from_env({"DYN_EVENT_PLANE": "", "DYN_EVENT_PLANE_HOST": ""}) == EventPlaneConfig()
    environ = {"DYN_EVENT_PLANE": "nats", "DYN_EVENT_PLANE_HOST": "10.0.0.1"}
    assert EventPlaneConfig.from_env(environ) == EventPlaneConfig(kind="nats", host="10.0.0.1")
    assert EventPlaneConfig.from_env(environ, kind="memory").kind == "memory"


@pytest.mark.parametrize("kind", ["kafka", "ZMQ", "nats "])
def test_an_unknown_kind_is_refused_with_the_valid_ones(kind: str) -> None:
    with pytest.raises(ValueError, match=r"unknown event plane .*: choose one of memory, zmq, nats"):
        EventPlaneConfig.from_env({"DYN_EVENT_PLANE": kind})


def test_each_kind_makes_its_plane() -> None:
    discovery = MemoryDiscovery(MemoryStore())
    connection = NatsConnection(NatsConfig())
    for kind, plane in (("memory", MemoryEventPlane), ("zmq", ZmqEventPlane), ("nats", NatsEventPlane)):
        config = EventPlaneConfig.from_env({}, kind)
        assert isinstance(event_plane(config, discovery, nats=connection), plane)
    with pytest.raises(EventPlaneError, match="needs the process's NATS connection"):
        event_plane(EventPlaneConfig(kind="nats"), discovery)


words = st.lists(st.sampled_from(["a", "b", "ab", "kv-events"]), min_size=1, max_size=4)


@given(words, words, st.booleans())
def test_a_pattern_hears_its_subject_or_what_lies_deeper(subject: list[str], pattern: list[str], deeper: bool) -> None:
    heard: list[str] = []
    subscribers = Subscribers()
    subscribers.add(".".join([*pattern, ">"] if deeper else pattern), lambda subject, _: heard.append(subject))
    subscribers.deliver(".".join(subject), b"")
    expected = len(subject) > len(pattern) and subject[: len(pattern)] == pattern if deeper else subject == pattern
    assert heard == ([".".join(subject)] if expected else [])


@given(st.text(max_size=12))
def test_a_subject_is_words_joined_by_dots(text: str) -> None:
    valid = all(
        word and all("!" <= letter <= "~" and letter not in "*>" for letter in word) for word in text.split(".")
    )
    try:
        check_subject(text)
        check_pattern(text)
        accepted = True
    except EventPlaneError:
        accepted = False
    assert accepted == valid

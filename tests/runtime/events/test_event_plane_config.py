from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.discovery.memory import MemoryDiscovery, MemoryStore
from dynamo.runtime.events import (
    EventPlaneConfig,
    EventPlaneError,
    EventPlaneKind,
    MemoryEventPlane,
    NatsEventPlane,
    ZmqEventPlane,
    event_plane,
)
from dynamo.runtime.events.base import Subscribers, check_pattern, check_subject
from dynamo.runtime.nats.config import NatsConfig
from dynamo.runtime.nats.connection import NatsConnection


def test_the_flag_wins_over_the_environment_over_the_default() -> None:
    assert RuntimeConfig.from_env({}).events == EventPlaneConfig(kind="zmq", host="127.0.0.1")
    assert RuntimeConfig.from_env({"DYN_EVENT_PLANE": "", "DYN_EVENT_PLANE_HOST": ""}).events == EventPlaneConfig()
    environ = {"DYN_EVENT_PLANE": "nats", "DYN_EVENT_PLANE_HOST": "10.0.0.1"}
    assert RuntimeConfig.from_env(environ).events == EventPlaneConfig(kind="nats", host="10.0.0.1")
    assert RuntimeConfig.from_env(environ, event_plane="memory").events.kind == "memory"
    assert RuntimeConfig.from_env({}, discovery_backend="memory").events.kind == "memory"


def test_an_unknown_kind_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="DYN_EVENT_PLANE must be one of memory, zmq or nats, not 'kafka'"):
        RuntimeConfig.from_env({"DYN_EVENT_PLANE": "kafka"})


def test_each_kind_makes_its_plane() -> None:
    discovery = MemoryDiscovery(MemoryStore())
    connection = NatsConnection(NatsConfig())
    planes: dict[EventPlaneKind, type] = {"memory": MemoryEventPlane, "zmq": ZmqEventPlane, "nats": NatsEventPlane}
    for kind, plane in planes.items():
        assert isinstance(event_plane(EventPlaneConfig(kind=kind), discovery, nats=connection), plane)
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

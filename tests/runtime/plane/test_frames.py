from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.protocols.errors import InvalidArgument, ProtocolError
from dynamo.runtime.plane import frames
from dynamo.runtime.plane.frames import FrameDecoder, Kind, frame

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
messages = st.one_of(
    st.builds(lambda s, v: (Kind.ITEM, frames.Item(s, frames.encode_payload(v))), st.integers(0, 2**40), values),
    st.builds(lambda s: (Kind.END, frames.End(s)), st.integers(0, 2**40)),
    st.builds(lambda s, k: (Kind.CANCEL, frames.Cancel(s, k)), st.integers(0, 2**40), st.booleans()),
    st.builds(lambda s, m: (Kind.ERROR, frames.Error(s, "unknown", m, 500)), st.integers(0, 9), st.text(max_size=9)),
    st.builds(
        lambda d: (Kind.DELTAS, d),
        st.dictionaries(st.integers(1, 99), st.lists(st.integers(0, 2**32 - 1), max_size=4), max_size=4),
    ),
    st.just((Kind.PING, None)),
)


def plain(kind: int, body: Any) -> Any:
    """A body by value: raw payloads compare as what they hold."""
    if isinstance(body, frames.Item):
        return kind, body.stream, msgspec.msgpack.decode(body.payload)
    return kind, body


@given(st.lists(messages, max_size=6), st.lists(st.integers(0, 200), max_size=8))
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(sent: list[Any], cuts: list[int]) -> None:
    data = b"".join(frame(kind, body) for kind, body in sent)
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    decoder = FrameDecoder()
    received = [message for start, end in itertools.pairwise(edges) for message in decoder.feed(data[start:end])]
    assert [plain(*message) for message in received] == [plain(*message) for message in sent]


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_packed_prompts_come_out_as_they_went_in(prompt: list[int]) -> None:
    packed = frames.pack(prompt)
    assert packed == b"".join(token.to_bytes(4, "little") for token in prompt)
    assert frames.unpack(packed).tolist() == prompt


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_bad_bytes_raise_one_kind_of_error_and_nothing_else(chunks: list[bytes]) -> None:
    decoder = FrameDecoder()
    try:
        for chunk in chunks:
            decoder.feed(chunk)
    except ProtocolError:
        pass


@given(messages, st.integers(0, 60), st.integers(0, 255))
def test_a_flipped_byte_is_a_protocol_error_or_another_message(sent: Any, place: int, value: int) -> None:
    data = bytearray(frame(*sent))
    data[place % len(data)] = value
    try:
        FrameDecoder(limit=1000).feed(bytes(data))
    except ProtocolError:
        pass


def test_an_oversize_frame_is_refused_before_its_body_is_awaited() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        FrameDecoder(limit=100).feed(frames.HEADER.pack(101, Kind.ITEM))


def test_a_large_frame_in_small_pieces_is_put_together_once() -> None:
    body = frames.Item(1, frames.encode_payload(b"x" * 1_000_000))
    data = frame(Kind.ITEM, body)
    decoder = FrameDecoder()
    out = [message for at in range(0, len(data), 1000) for message in decoder.feed(data[at : at + 1000])]
    assert [plain(*message) for message in out] == [plain(Kind.ITEM, body)]


def test_a_value_over_the_limit_is_the_senders_error() -> None:
    with pytest.raises(InvalidArgument, match="over the limit"):
        frame(Kind.ITEM, frames.Item(1, frames.encode_payload(b"x" * frames.MAX_FRAME)))

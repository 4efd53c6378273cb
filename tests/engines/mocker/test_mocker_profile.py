from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.engines.mocker import (
    MockerArgs,
    MockerEngine,
    MockVocabulary,
    Profile,
    ProfileTiming,
    Ranks,
    answer_for,
    read_profile,
)
from dynamo.engines.mocker.profile import _array
from dynamo.protocols.engine import PreprocessedRequest, StopConditions
from dynamo.protocols.errors import InvalidArgument

PROFILE: dict[str, Any] = {
    "prefill_isl": [100.0, 200.0, 400.0],
    "prefill_ttft_ms": [10.0, 20.0, 30.0],
    "decode_active_kv_tokens": [0.0, 1000.0],
    "decode_context_length": [0.0, 100.0],
    "decode_itl": [[2.0, 4.0], [6.0, 12.0]],
}


def npy(values: list[Any], kind: str = "<f8") -> bytes:
    shape = (len(values), len(values[0])) if isinstance(values[0], list) else (len(values),)
    flat = [number for row in values for number in row] if len(shape) == 2 else values
    header = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    code = {"<f8": "d", "<i8": "q"}[kind]
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack(f"<{len(flat)}{code}", *flat)


def written(path: Path, arrays: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in arrays.items():
            archive.writestr(f"{name}.npy", data)
    return path


def test_a_profiler_s_file_is_read(tmp_path: Path) -> None:
    arrays = {name: npy(values) for name, values in PROFILE.items()}
    arrays["prefill_isl"] = npy([100, 200, 400], "<i8")
    assert read_profile(written(tmp_path / "p.npz", arrays)) == Profile(**PROFILE)


@pytest.mark.parametrize(("tokens", "milliseconds"), [(0, 0), (100, 10), (150, 15), (300, 25), (600, 40), (50, 5)])
def test_prefill_lies_on_lines_through_the_points_and_beyond(tokens: int, milliseconds: float) -> None:
    timing = ProfileTiming(Profile(**PROFILE), MockerArgs())
    assert timing.prefill(tokens) == pytest.approx(milliseconds / 1e3)


@pytest.mark.parametrize(
    ("sequences", "context", "milliseconds"), [(10, 1000, 12), (10, 500, 6), (20, 1000, 9), (10, 2000, 30), (0, 0, 0)]
)
def test_decode_lies_between_the_four_points_around_it(sequences: int, context: int, milliseconds: float) -> None:
    timing = ProfileTiming(Profile(**PROFILE), MockerArgs())
    assert timing.decode(sequences, context) == pytest.approx(milliseconds / 1e3)


def test_decode_takes_a_millisecond_at_least() -> None:
    low = Profile(**{**PROFILE, "decode_itl": [[0.1, 0.1], [0.1, 0.1]]})
    assert ProfileTiming(low, MockerArgs(speedup_ratio=2.0)).decode(1, 10) == pytest.approx(0.0005)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefill_isl": [1.0]}, "'prefill_isl' must have at least two values"),
        ({"prefill_isl": [1.0, 1.0, 2.0]}, "each above the one before"),
        ({"prefill_ttft_ms": [1.0]}, "'prefill_ttft_ms' must have one value for each"),
        ({"decode_itl": [[1.0, 2.0]]}, "'decode_itl' must have the shape of its two axes, 2 by 2"),
        ({"decode_itl": [[1.0, 2.0], [1.0, float("nan")]]}, "times must be finite"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Profile(**{**PROFILE, **change})


def test_a_file_that_is_no_profile_is_refused_when_the_engine_is_made(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    for path in (tmp_path / "nothing.npz", tmp_path, tmp_path / "text.npz"):
        with pytest.raises(InvalidArgument, match="cannot be read"):
            MockerEngine(MockerArgs(planner_profile_data=str(path)))


def test_a_profile_about_something_strange_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "p.npz", {name: npy(values) for name, values in PROFILE.items()})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("about.json", '{"shared_ms": "much"}')
    with pytest.raises(InvalidArgument, match=r"about\.json: Expected `float`"):
        read_profile(path)


@given(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_file_is_a_profile_or_refused(damage: list[tuple[int, int]]) -> None:
    with TemporaryDirectory() as folder:
        arrays = {name: npy(values) for name, values in PROFILE.items()}
        path = written(Path(folder) / "p.npz", arrays, zipfile.ZIP_DEFLATED)
        data = bytearray(path.read_bytes())
        for position, byte in damage:
            data[position % len(data)] = byte
        path.write_bytes(data)
        try:
            read_profile(path)
        except InvalidArgument:
            pass


def test_a_simulation_keeps_the_times_of_the_profile_its_arguments_name(tmp_path: Path) -> None:
    path = written(tmp_path / "p.npz", {name: npy(values) for name, values in PROFILE.items()})
    args = MockerArgs(planner_profile_data=str(path))
    ranks = Ranks(args)
    prompt = list(range(200))
    request = PreprocessedRequest(token_ids=prompt, stop_conditions=StopConditions(max_tokens=1))
    ranks.add(1, prompt, answer_for(request, MockVocabulary(), args.context_limit))
    assert ranks.step(0.0).ends == pytest.approx(0.02)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "p.npz", {name: npy(values) for name, values in PROFILE.items() if name != "prefill_isl"})
    with pytest.raises(InvalidArgument, match=r"prefill_isl\.npy"):
        read_profile(path)


def test_an_array_with_the_wrong_dimensions_is_refused(tmp_path: Path) -> None:
    arrays = {name: npy(values) for name, values in PROFILE.items()}
    arrays["decode_itl"] = npy([1.0, 2.0])
    with pytest.raises(InvalidArgument, match="'decode_itl' must have two dimensions"):
        read_profile(written(tmp_path / "p.npz", arrays))


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: npy([1.0, 2.0])[:-8] + tail))
def test_any_bytes_are_an_array_or_refused(data: bytes) -> None:
    try:
        _array("x", data)
    except InvalidArgument:
        pass


@given(st.integers(0, 140), st.integers(0, 255))
def test_a_damaged_array_is_an_array_or_refused(position: int, byte: int) -> None:
    data = bytearray(npy([1.0, 2.0]))
    data[position] = byte
    try:
        _array("x", bytes(data))
    except InvalidArgument:
        pass

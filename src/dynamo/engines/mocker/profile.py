"""Timing measured on a real engine: tables of a profiler, read between and beyond their points."""

from __future__ import annotations

import ast
import math
import struct
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.protocols.errors import InvalidArgument

from .args import MockerArgs
from .timing import PolynomialTiming, Scale, Timing

ARRAYS = ("prefill_isl", "prefill_ttft_ms", "decode_active_kv_tokens", "decode_context_length", "decode_itl")
"""The tables of a profile, by the names of their arrays in the file."""
ABOUT = "about.json"
"""Beside the arrays: what was measured. Files of other profilers do not have it."""
_NUMBERS = {"<f8": "d", "<f4": "f", "<i8": "q", "<i4": "i", "<u8": "Q", "<u4": "I"}


class About(Struct, frozen=True, kw_only=True):
    """What a profile is about, and what its tables do not say. Times in milliseconds."""

    model: str = ""
    shared_ms: float = 0.0
    """What an iteration that prefills and decodes does only once."""
    frontend_ms: float | None = None
    """From a client to the engine and back; not part of the tables."""
    engine: dict[str, Any] = {}
    """Arguments of the mocker, as the measured engine has them."""


class Profile(Struct, frozen=True):
    """Times in milliseconds: prefill by new tokens; decode by context tokens in all and per sequence."""

    prefill_isl: list[float]
    prefill_ttft_ms: list[float]
    decode_active_kv_tokens: list[float]
    decode_context_length: list[float]
    decode_itl: list[list[float]]
    about: About = About()

    def __post_init__(self) -> None:
        for name in ("prefill_isl", "decode_active_kv_tokens", "decode_context_length"):
            axis = getattr(self, name)
            if len(axis) < 2 or any(not low < high for low, high in pairwise(axis)):
                raise InvalidArgument(f"profile: '{name}' must have at least two values, each above the one before")
        rows, columns = len(self.decode_active_kv_tokens), len(self.decode_context_length)
        if len(self.prefill_ttft_ms) != len(self.prefill_isl):
            raise InvalidArgument("profile: 'prefill_ttft_ms' must have one value for each of 'prefill_isl'")
        if len(self.decode_itl) != rows or any(len(row) != columns for row in self.decode_itl):
            raise InvalidArgument(f"profile: 'decode_itl' must have the shape of its two axes, {rows} by {columns}")
        times = (*self.prefill_ttft_ms, *(time for row in self.decode_itl for time in row))
        if not all(math.isfinite(time) for time in times):
            raise InvalidArgument("profile: times must be finite")


class ProfileTiming:
    """Straight lines between the points of a profile and on beyond the outermost ones."""

    def __init__(self, profile: Profile, args: MockerArgs) -> None:
        self._profile = profile
        self._scale = Scale(args)

    def prefill(self, new_tokens: int) -> float:
        if not new_tokens:
            return 0.0
        low, share = _between(self._profile.prefill_isl, new_tokens)
        times = self._profile.prefill_ttft_ms
        return self._scale.prefill * max(0.0, times[low] + share * (times[low + 1] - times[low]))

    def decode(self, sequences: int, context_tokens: float) -> float:
        if not sequences:
            return 0.0
        table = self._profile.decode_itl
        row, down = _between(self._profile.decode_active_kv_tokens, context_tokens)
        column, right = _between(self._profile.decode_context_length, context_tokens / sequences)
        upper = table[row][column] + right * (table[row][column + 1] - table[row][column])
        lower = table[row + 1][column] + right * (table[row + 1][column + 1] - table[row + 1][column])
        return self._scale.decode * max(1.0, upper + down * (lower - upper))

    def mixed(self, new_tokens: int, sequences: int, context_tokens: int) -> float:
        prefill, decode = self.prefill(new_tokens), self.decode(sequences, context_tokens)
        if not decode:
            return prefill
        return max(prefill, decode, prefill + decode - self._scale.prefill * self._profile.about.shared_ms)


def timing_for(args: MockerArgs) -> Timing:
    """The profile the arguments name, or else the published curves."""
    if args.planner_profile_data is None:
        return PolynomialTiming(args)
    return ProfileTiming(read_profile(Path(args.planner_profile_data)), args)


def read_profile(path: Path) -> Profile:
    """The arrays of a profiler's .npz file by name; an error names what is wrong with the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {name: _array(name, archive.read(f"{name}.npy")) for name in ARRAYS}
            about = archive.read(ABOUT) if ABOUT in archive.namelist() else b"{}"
    except KeyError as error:
        raise InvalidArgument(f"profile {path}: {error.args[0]}") from None
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidArgument(f"profile {path} cannot be read: {str(error) or 'it is cut short'}") from None
    flat = {name: values for name, (shape, values) in arrays.items() if len(shape) == 1}
    shape, table = arrays["decode_itl"]
    if len(shape) != 2 or len(flat) != 4:
        raise InvalidArgument(f"profile {path}: 'decode_itl' must have two dimensions and the others one")
    rows = [table[at : at + shape[1]] for at in range(0, len(table), max(1, shape[1]))]
    try:
        return Profile(**flat, decode_itl=rows, about=msgspec.json.decode(about, type=About))
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidArgument(f"profile {path}: {ABOUT}: {error}") from None


def _between(axis: Sequence[float], value: float) -> tuple[int, float]:
    """The interval to interpolate in, and how far into it (or beyond it) the value lies."""
    low = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


def _array(name: str, data: bytes) -> tuple[tuple[int, ...], list[float]]:
    """One .npy file: magic, version, a Python literal that describes it, the numbers."""
    try:
        if data[:6] != b"\x93NUMPY":
            raise ValueError("not a .npy file")
        width = 2 if data[6] == 1 else 4
        start = 8 + width
        end = start + int.from_bytes(data[8:start], "little")
        header = ast.literal_eval(data[start:end].decode("latin1").strip())
        shape = tuple(int(length) for length in header["shape"])
        if header["fortran_order"] and len(shape) > 1:
            raise ValueError("column order is not supported")
        numbers = struct.unpack_from(f"<{math.prod(shape)}{_NUMBERS[header['descr']]}", data, end)
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        SyntaxError,
        MemoryError,
        RecursionError,
        struct.error,
    ) as error:
        raise InvalidArgument(f"profile: array '{name}' cannot be read: {error}") from None
    return shape, [float(number) for number in numbers]

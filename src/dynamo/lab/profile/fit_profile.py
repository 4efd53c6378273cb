"""Curves through measured times, and the file of a profile that the mocker and the simulator read."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from dynamo.engines.mocker.profile import ABOUT, ARRAYS, About, Profile

_STEPS = 40
_SMALLEST = 16.0


class PrefillTime(Struct, frozen=True):
    tokens: int
    milliseconds: float


class DecodeTime(Struct, frozen=True):
    """The time between tokens while `requests` ran together, each with a context of `tokens` tokens."""

    requests: int
    context: float
    milliseconds: float


class MixedTime(Struct, frozen=True):
    """How a prompt of `tokens` tokens and the requests that were decoding changed each other's times."""

    tokens: int
    requests: int
    decode_ms: float
    """Between their tokens before and after it."""
    step_ms: float
    """Between their tokens around the step that computed it."""
    ttft_ms: float
    """Its own time to the first token."""

    def waited_steps(self, frontend_ms: float) -> float:
        """Steps that the prompt waited for: half of one on average, and one more if the next was scheduled already."""
        return (self.ttft_ms - frontend_ms - self.step_ms) / self.decode_ms


class DecodeFit(Struct, frozen=True):
    """`idle + per_request * requests + per_token * tokens of context in all`, in milliseconds."""

    idle: float
    per_request: float
    per_token: float

    def milliseconds(self, requests: float, context: float) -> float:
        return self.idle + self.per_request * requests + self.per_token * requests * context


def fit_decode(times: Sequence[DecodeTime]) -> DecodeFit:
    """Least squares of the relative errors. Coefficients that come out below zero are left out."""
    used = [True, True, True]
    while True:
        found = _least_squares(times, used)
        worst = min(range(1, 3), key=lambda at: found[at])
        if found[worst] >= 0:
            return DecodeFit(max(0.0, found[0]), found[1], found[2])
        used[worst] = False


def _least_squares(times: Sequence[DecodeTime], used: Sequence[bool]) -> list[float]:
    columns = [at for at in range(3) if used[at]]
    rows = [(1.0, float(one.requests), one.requests * one.context) for one in times]
    size = len(columns)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for row, one in zip(rows, times, strict=True):
        weight = 1 / one.milliseconds**2
        for i, left in enumerate(columns):
            for j, right in enumerate(columns):
                matrix[i][j] += weight * row[left] * row[right]
            matrix[i][size] += weight * row[left] * one.milliseconds
    for i in range(size):
        best = max(range(i, size), key=lambda at: abs(matrix[at][i]))
        matrix[i], matrix[best] = matrix[best], matrix[i]
        pivot = matrix[i][i] or 1e-12
        matrix[i] = [value / pivot for value in matrix[i]]
        for j in range(size):
            if j != i:
                matrix[j] = [value - matrix[j][i] * own for value, own in zip(matrix[j], matrix[i], strict=True)]
    found = [0.0] * 3
    for at, column in enumerate(columns):
        found[column] = matrix[at][size]
    return found


def profile_from(
    prefill: Sequence[PrefillTime], decode: DecodeFit, longest: float, most_requests: int, about: About | None = None
) -> Profile:
    """Prefill as measured; decode as a table of the fit, from 1 to `most_requests` of up to `longest` tokens."""
    ordered = sorted(prefill, key=lambda one: one.tokens)
    contexts = _from_to(_SMALLEST, max(longest, 2 * _SMALLEST))
    active = _from_to(_SMALLEST, most_requests * contexts[-1])
    table = [[decode.milliseconds(max(1.0, total / each), each) for each in contexts] for total in active]
    return Profile(
        prefill_isl=[float(one.tokens) for one in ordered],
        prefill_ttft_ms=[one.milliseconds for one in ordered],
        decode_active_kv_tokens=active,
        decode_context_length=contexts,
        decode_itl=table,
        about=about or About(),
    )


def _from_to(low: float, high: float) -> list[float]:
    """Each the same factor above the one before."""
    return [low * (high / low) ** (step / _STEPS) for step in range(_STEPS + 1)]


def write_profile(profile: Profile, path: Path) -> None:
    """An .npz file, as NumPy writes it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(ABOUT, msgspec.json.encode(profile.about))
        for name in ARRAYS:
            values = getattr(profile, name)
            rows = values if name == "decode_itl" else [values]
            shape = (len(values), len(values[0])) if name == "decode_itl" else (len(values),)
            archive.writestr(f"{name}.npy", _npy(shape, [value for row in rows for value in row]))


def _npy(shape: tuple[int, ...], values: Sequence[float]) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    data = io.BytesIO()
    data.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    data.write(struct.pack(f"<{len(values)}d", *values))
    return data.getvalue()

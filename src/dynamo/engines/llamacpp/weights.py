"""Tells the weights of two files apart without reading all of them, which takes long."""

from __future__ import annotations

from pathlib import Path

import xxhash

_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


def weights_digest(file: Path, *about: object) -> str:
    """Covers `about`, the size of the file and samples of its bytes: equal for copies of one file."""
    size = file.stat().st_size
    digest = xxhash.xxh3_128(repr((*about, size)).encode())
    with file.open("rb") as weights:
        for sample in range(_SAMPLES):
            weights.seek(sample * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(weights.read(_SAMPLE_BYTES))
    return str(digest.hexdigest())

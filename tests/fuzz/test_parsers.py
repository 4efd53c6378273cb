"""What is kept, and some hundred mutations of it, are read or refused; `make fuzz` goes on with others for hours."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fuzz.parsers import KEPT, PARSERS, kept, mutated

MUTATIONS = 150


def test_every_parser_has_inputs_and_every_input_a_parser() -> None:
    assert {path.name for path in KEPT.iterdir()} == set(PARSERS)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # how aiohttp reports a part's header that it does not read
@pytest.mark.parametrize("name", PARSERS)
def test_whatever_comes_is_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    parser, inputs, rng = PARSERS[name], kept(name), random.Random(name)
    for data in (b"", *inputs, *(mutated(rng, inputs) for _ in range(MUTATIONS))):
        try:
            parser.read(data, tmp_path)
        except parser.refuses:
            pass
        except Exception as error:
            raise AssertionError(f"{name}: {data[:2000]!r}") from error

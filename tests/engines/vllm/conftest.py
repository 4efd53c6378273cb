"""Tests with a real vLLM: collected only by an interpreter that has one, such as that of `tests/engines/install`."""

from __future__ import annotations

import importlib.util
import os
import warnings

import pytest

_spec = importlib.util.find_spec("vllm")
if _spec is None or _spec.origin is None:  # this folder alone is a namespace package
    collect_ignore_glob = ["test_*.py"]
else:
    from dynamo.engines.vllm.environment import installed, prepare

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare(os.environ, installed(), [])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")  # vLLM's imports warn


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    warnings.simplefilter("ignore", ResourceWarning)  # vLLM leaves its ZMQ context to the end of the process

"""What `dynamo-run in=http` says when it serves."""

from __future__ import annotations

import pytest

from dynamo.frontend.config import FrontendConfig
from dynamo.run.http import greeting


@pytest.mark.parametrize("ui", [True, False])
def test_the_greeting_names_the_page_if_there_is_one(ui: bool) -> None:
    lines = greeting("http://127.0.0.1:8080", FrontendConfig(ui=ui), "tiny").splitlines()
    assert ("to chat, open http://127.0.0.1:8080/ in a browser" in lines) == ui

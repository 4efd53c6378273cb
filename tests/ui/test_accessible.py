"""axe-core's checks of contrast, names and roles, on each view of the page and in both themes."""

from __future__ import annotations

from typing import Any

import pytest

from ui.conftest import Chat
from ui.install import AXE

pytestmark = pytest.mark.ui

EVERYTHING = """# Title

Some **bold**, `code`, [a link](https://example.org) and ~~gone~~.

- [x] done
- [ ] to do

> quoted

| a | b |
|---|--:|
| 1 | 2 |

```python
# comment
def f(x): return "text" + str(1)
```
"""


def violations(chat: Chat) -> list[Any]:
    chat.page.evaluate(AXE.read_text())
    found = chat.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_all_views_pass(chat: Chat, theme: Any, width: int) -> None:
    chat.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    chat.page.set_viewport_size({"width": width, "height": 900})
    assert violations(chat) == []
    chat.ask(EVERYTHING)
    chat.ask("THINK " + EVERYTHING).get_by_text("Reasoning").click()
    chat.send("FAIL")
    chat.page.locator(".problem:visible").wait_for()
    chat.complete()
    chat.button("Retry").last.click()
    chat.page.locator(".branches").first.wait_for()
    chat.complete()
    assert violations(chat) == []
    for button, close in (("Settings", "Close settings"), ("Show as curl or Python", "Close code")):
        chat.button(button).click()
        assert violations(chat) == []
        chat.button(close).click()
    if width < 860:
        chat.button("Show conversations").click()
        assert violations(chat) == []

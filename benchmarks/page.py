"""How smoothly the chat page shows a long answer: the gaps between frames, and the longest task between two of them.

make test-ui && .venv/bin/python benchmarks/page.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / ".ui" / "python")]

TOKENS = 10_000
PART = """## Part {number}

Some **bold** words, `code` and a [link](https://example.org) in a sentence that goes on for a while, as they do.

- first of {number}
- second, with *emphasis*

| a | b |
|---|--:|
| {number} | 2 |

```python
def part_{number}(x):
    return x + {number}  # and so on
```

"""
RECORD = """() => {
  window.gaps = [];
  let last = performance.now();
  const frame = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""


def longest_task(trace: bytes) -> float:
    """Milliseconds of processor time: on a machine that does other work too, the time on the clock says little."""
    events = json.loads(trace)["traceEvents"]
    main = {
        (one["pid"], one["tid"])
        for one in events
        if one["name"] == "thread_name" and one["args"].get("name") == "CrRendererMain"
    }
    tasks = [one.get("tdur", 0) for one in events if (one["pid"], one["tid"]) in main and "RunTask" in one["name"]]
    return max(tasks, default=0) / 1000


def texts(tokens: int) -> dict[str, str]:
    from support.toys import toy_tokenizer

    def long(part: str) -> str:
        size = len(toy_tokenizer().encode(part.format(number=100)))
        return "".join(part.format(number=number) for number in range(1 + tokens // size))

    return {
        "mixed": long(PART),
        "one list": long("- item {number} of a list that is long\n"),
        "one table": "| a | b |\n|---|---|\n" + long("| row {number} | of a long table |\n"),
        "one code block": "```python\n" + long("x = {number}  # one more line\n"),
        "one paragraph": long("word {number} and "),
    }


def main() -> None:
    from playwright.sync_api import sync_playwright

    from support.models import write
    from support.toys import toy_folder
    from ui.conftest import FLAGS, Chat, Servers
    from ui.install import chromium

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = toy_folder(Path(name) / "model")
        config = json.loads((folder / "config.json").read_text())
        write(folder / "config.json", config | {"max_position_embeddings": 1_000_000})
        servers = Servers(Path(name), folder)
        with servers.frontend() as (frontend, url), servers.worker():
            frontend.line_with("model 'painter' can be served")
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            for kind, text in texts(TOKENS).items():
                if sys.argv[1:] and kind not in sys.argv[1:]:
                    continue
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                chat = Chat(page, url).opened()
                page.set_default_timeout(600_000)
                chat.type("PACED " + text)
                page.evaluate(RECORD)
                browser.start_tracing(
                    page=page, categories=["toplevel", "disabled-by-default-devtools.timeline", "__metadata"]
                )
                chat.button("Send").click()
                chat.button("Stop").wait_for()
                chat.complete()
                gaps = page.evaluate("window.gaps")
                task = longest_task(browser.stop_tracing())
                facts = chat.answers.last.locator(".stats").inner_text().replace("\n", ", ")
                late = sum(gap > 100 for gap in gaps)
                print(
                    f"{kind}: {len(gaps)} frames, {late} over 100 ms, longest {max(gaps):.0f} ms; "
                    f"longest task {task:.0f} ms of processor time; {facts}",
                    flush=True,
                )
                page.close()
            browser.close()


if __name__ == "__main__":
    main()

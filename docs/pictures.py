"""Makes the pictures of the pages: frontends and workers are started, Chromium opens the pages, which are kept as PNG.

Needs what `make test-ui` installs, and Debian's fonts-inter, fonts-jetbrains-mono and pngquant. The answers in the
chat are written below; all else is the product.

    make test-ui && .venv/bin/python docs/pictures.py [fleet]
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
sys.path += [str(ROOT / "tests"), str(ROOT / ".ui" / "python")]

FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include>/etc/fonts/fonts.conf</include>
<match target="pattern"><test name="family"><string>sans</string></test>
<edit name="family" mode="prepend" binding="strong"><string>Inter</string></edit></match>
<match target="pattern"><test name="family"><string>system-ui</string></test>
<edit name="family" mode="prepend" binding="strong"><string>Inter</string></edit></match>
<match target="pattern"><test name="family"><string>ui-monospace</string></test>
<edit name="family" mode="prepend" binding="strong"><string>JetBrains Mono</string></edit></match></fontconfig>"""

ANSWERS = {
    "prefix": """<think>Start from what the cache holds, then why the place matters, then a figure.</think>\
Every worker keeps the attention state of prompts that it has computed. If a new prompt *begins* like an old one, only \
the rest has to be computed, so the **first token comes sooner**.

The router therefore asks two questions of each worker:

1. How much of this prompt does it hold already?
2. How busy is it?

| worker | prompt cached | blocks in use | cost |
|:--|--:|--:|--:|
| 1 | 0 % | 120 | 64 |
| 2 | **92 %** | 310 | **21** |
| 3 | 40 % | 95 | 45 |

Worker 2 wins, although it is the busiest. In code:

```python
def cost(worker, prompt):
    missing = len(prompt) - worker.cached(prompt)  # to be computed
    return weight * missing + worker.blocks_in_use

best = min(workers, key=lambda worker: cost(worker, prompt))
```
""",
    "haiku": "Blocks rest in their place,\nthe same words come home again:\nno step is walked twice.",
    "weather": '<tool_call>\n{"name": "weather", "arguments": {"city": "Lyon", "days": 2}}\n</tool_call>',
}
QUESTION = "Why should a request go to the worker that has seen its prefix?"
TOOL = '[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'


async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    from support.toys import EOS, toy_tokenizer

    tokenizer = toy_tokenizer()
    question = tokenizer.decode(request["token_ids"]).rpartition("user")[2]
    ids = tokenizer.encode(next(answer for word, answer in ANSWERS.items() if word in question))
    for id in ids:
        yield {"token_ids": [id]}
        await asyncio.sleep(0.004)
    size = len(request["token_ids"])
    usage = {"prompt_tokens": size, "prompt_tokens_details": {"cached_tokens": size // 16 * 16}}
    yield {"token_ids": [tokenizer.id_of(EOS)], "finish_reason": "eos", "completion_usage": usage}


def serve(folder: Path) -> None:
    import uvloop

    from dynamo.llm.register import register_card
    from dynamo.runtime import DistributedRuntime, dynamo_worker
    from support.toys import toy_card

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        places = [runtime.endpoint(f"dynamo.{name}.generate") for name in ("small", "large")]
        for place, name in zip(places, ("demo-8b", "demo-70b"), strict=True):
            await register_card(place, toy_card(folder, name, tool_call_parser="hermes", reasoning_parser="basic"))
        await asyncio.gather(*(place.serve_endpoint(generate) for place in places))

    uvloop.run(worker())


def take(url: str) -> None:
    from playwright.sync_api import sync_playwright

    from ui.conftest import FLAGS, Chat
    from ui.install import chromium

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=[*FLAGS, "--hide-scrollbars"])
        for theme in ("light", "dark"):
            for width, height in ((390, 844), (1280, 860), (2560, 1300)):
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
                chat = Chat(context.new_page(), url).opened("demo-8b")
                chat.ask("Write a haiku about caches")
                chat.page.keyboard.press("Alt+n")
                if width == 2560:
                    chat.button("Compare two models").click()
                chat.ask(QUESTION)
                chat.page.mouse.move(width / 2, 5)
                keep(chat.page, f"chat-{width}-{theme}")
                if (width, theme) == (1280, "light"):
                    chat.settings(**{"Tools_(JSON": TOOL})
                    chat.page.keyboard.press("Alt+n")
                    chat.ask("What is the weather in Lyon?")
                    keep(chat.page, "chat-tool")
                context.close()
        browser.close()


def take_fleet(url: str) -> None:
    from playwright.sync_api import sync_playwright

    from ui.conftest import FLAGS
    from ui.install import chromium

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=[*FLAGS, "--hide-scrollbars"])
        for theme in ("light", "dark"):
            for width, height in ((390, 844), (1280, 860), (2560, 1300)):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
                page.goto(f"{url}/fleet")
                page.wait_for_selector(".decision")
                page.get_by_text("What is cached where").click()
                page.locator("#prefixes").wait_for()
                page.locator("#planners-part").wait_for()
                page.wait_for_timeout(5000)  # the rate of requests is known after some seconds
                page.locator(".decision summary").nth(2).click()
                page.get_by_role("button", name="Pause").click()
                page.mouse.move(width / 2, 5)
                keep(page, f"fleet-{width}-{theme}", full_page=True)
                page.close()
        browser.close()


def chat_for_ever(url: str, number: int, done: threading.Event) -> None:
    """Clients in two groups, each with a prefix of its own."""
    prefix = "You answer briefly. " * (60 if number % 2 else 20)
    turn = 0
    while not done.is_set():
        turn += 1
        # Some prompts are long and new, so that computing them elsewhere pays.
        question = f"Question {turn} of {number}. " * (40 if number % 4 == 0 else 1)
        messages = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
        body = json.dumps({"model": "demo-8b", "max_tokens": 300, "messages": messages}).encode()
        request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request).read()


def fleet_pictures(place: Path) -> None:
    """Of mockers with little memory, so that its use can be seen, and a planner that advises."""
    from support.running import running
    from support.services import free_port

    done, port = threading.Event(), free_port()
    url = f"http://127.0.0.1:{port}"
    mocker = "kind: mocker, flags: {model-path: tiny, model-name: demo-8b, block-size: 16, num-gpu-blocks-override: 400"
    (place / "serve.yaml").write_text(f"""
components:
  prefill: {{{mocker}, disaggregation-mode: prefill}}}}
  worker: {{{mocker}, disaggregation-mode: decode}}, replicas: 3}}
  frontend: {{flags: {{http-port: {port}, router-mode: kv}}}}
""")
    config = {
        "deployment": str(place / "serve.yaml"),
        "frontend_url": url,
        "optimization_target": "sla",
        "load_adjustment_interval_seconds": 3,
        "advisory": True,
    }
    planner = [sys.executable, "-m", "dynamo.planner", "--config", json.dumps(config)]
    with running(place, program=planner) as process:
        process.line_with("planning every")
        clients = [threading.Thread(target=chat_for_ever, args=(url, number, done)) for number in range(12)]
        for client in clients:
            client.start()
        try:
            take_fleet(url)
        finally:
            done.set()
            for client in clients:
                client.join()


def keep(page: Any, name: str, *, full_page: bool = False) -> None:
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path, full_page=full_page)
    if tool := shutil.which("pngquant"):
        subprocess.run([tool, "--force", "--ext", ".png", "--quality", "70-95", "--strip", path], check=True)
    print(path.relative_to(ROOT), path.stat().st_size)


def main() -> None:
    from support.running import SOURCE, running
    from support.toys import toy_folder

    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        place = Path(name)
        folder = toy_folder(place / "model")
        (place / "fonts.conf").write_text(FONTS)
        os.environ["FONTCONFIG_FILE"] = str(place / "fonts.conf")
        fleet_pictures(place)
        if "fleet" in sys.argv[1:]:
            return
        path = f"{SOURCE}:{ROOT / 'tests'}"
        with running(place, "in=http", "out=dyn", "--http-port", "0") as frontend:
            url = frontend.url()
            with running(place, program=[sys.executable, __file__, str(folder)], PYTHONPATH=path):
                frontend.line_with("model 'demo-70b' can be served")
                take(url)


if __name__ == "__main__":
    serve(Path(sys.argv[1])) if sys.argv[1:] not in ([], ["fleet"]) else main()

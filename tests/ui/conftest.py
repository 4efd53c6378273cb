"""Chromium, and servers with the models of page_worker.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.models import write
from support.running import SOURCE, Process, running
from support.toys import toy_folder
from support.waiting import PATIENCE, until_sync
from ui.install import PACKAGES, chromium, is_optional, why_missing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request

HERE = Path(__file__).parent
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if why := why_missing():
        (pytest.skip if is_optional() else pytest.fail)(f"the page cannot be tested: {why}")
    sys.path.append(str(PACKAGES))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled vocabulary with room for long answers, and no weights."""
    folder = toy_folder(tmp_path_factory.mktemp("models") / "talker")
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", config | {"max_position_embeddings": 1_000_000})
    return folder


class Servers:
    """A frontend and its worker, both processes."""

    def __init__(self, place: Path, model: Path) -> None:
        self.place = place
        self.model = model

    @contextmanager
    def frontend(self, *words: str, port: str = "0") -> Iterator[tuple[Process, str]]:
        with running(self.place, "in=http", "out=dyn", "--http-port", port, *words) as process:
            yield process, process.url()

    @contextmanager
    def worker(self) -> Iterator[Process]:
        path = f"{SOURCE}:{HERE.parent}"
        program = [sys.executable, str(HERE / "page_worker.py")]
        with running(self.place, program=program, PYTHONPATH=path, MODEL_FOLDER=str(self.model)) as process:
            process.line_with("the page's worker is ready")
            yield process


@pytest.fixture
def servers(tmp_path: Path, model: Path) -> Servers:
    return Servers(tmp_path, model)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[str]:
    """A server that all tests share."""
    servers = Servers(tmp_path_factory.mktemp("server"), model)
    with servers.frontend() as (frontend, url), servers.worker():
        frontend.line_with("model 'painter' can be served")
        yield url


class Chat:
    """The page as its user sees it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Parts of console messages that the test brings about."""
        page.set_default_timeout(PATIENCE * 1000)
        page.on("console", lambda message: self._logged(message.type, message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _logged(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(part in text for part in self.expected):
            self.errors.append(text)

    def open(self) -> Chat:
        self.page.goto(self.url + "/")
        self.page.wait_for_selector("body[data-ready]")
        return self

    def opened(self, model: str = "talker") -> Chat:
        """With this model chosen, as soon as it is served."""
        self.open()
        self.page.wait_for_selector(f"select.model option[value={model}]", state="attached")
        self.page.get_by_label("Model", exact=True).select_option(model)
        return self

    def until(self, expression: str) -> None:
        """Wait until it is true. Playwright's own wait would evaluate inside the page, whose policy forbids that."""
        until_sync(lambda: self.page.evaluate(expression))

    def type(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)

    def send(self, text: str) -> None:
        self.type(text)
        self.button("Send").click()

    def ask(self, text: str) -> Locator:
        """Send, and wait for the whole answer, which is returned."""
        before = self.answers.count()
        self.send(text)
        self.until(f"document.querySelectorAll('.answer').length > {before}")
        return self.complete()

    def complete(self) -> Locator:
        """The last answer, once no answer is on its way."""
        self.button("Send").wait_for()
        return self.answers.last

    @property
    def answers(self) -> Locator:
        return self.page.locator(".message.answer")

    def said(self) -> list[str]:
        """What each answer on the page says."""
        return self.page.locator(".message.answer > .markdown").all_inner_texts()

    def button(self, name: str, within: Locator | None = None) -> Locator:
        return (within or self.page).get_by_role("button", name=name, exact=True)

    def settings(self, **values: str) -> None:
        """Fill fields of the dialog by their labels."""
        self.button("Settings").click()
        dialog = self.page.get_by_role("dialog")
        for label, value in values.items():
            dialog.get_by_label(label.replace("_", " ")).fill(value)
        self.button("Close settings").click()

    def request_of(self, act: Callable[[], Any]) -> dict[str, Any]:
        """The body of the chat request that `act` causes."""

        def is_chat(request: Request) -> bool:
            return request.url.endswith("/v1/chat/completions")

        with self.page.expect_request(is_chat) as info:
            act()
        return dict(info.value.post_data_json)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(
        viewport={"width": 1280, "height": 800}, permissions=["clipboard-read", "clipboard-write"]
    )
    yield context
    context.close()


@pytest.fixture
def at(context: BrowserContext) -> Iterator[Callable[..., Any]]:
    """A page of a server, the chat unless another is named; afterwards, that the console stayed silent."""
    chats: list[Chat] = []

    def make(url: str, kind: type[Chat] = Chat) -> Chat:
        chats.append(kind(context.new_page(), url))
        return chats[-1]

    yield make
    assert [error for chat in chats for error in chat.errors] == []


@pytest.fixture
def chat(at: Callable[..., Any], url: str) -> Chat:
    opened: Chat = at(url).opened()
    return opened

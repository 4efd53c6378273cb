"""`dynamo top`: the fleet in a terminal, from the same stream as the page at /fleet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

import msgspec

from dynamo.cli.top.screen import lines, printable
from dynamo.frontend.fleet import Document, apply_merge_patch
from dynamo.process.backoff import Backoff
from dynamo.settings.arguments import CommandParser

ABOUT = """\
Show the workers of a server, their load and tiers, the running requests, the last hand-offs and routing decisions and
what the planner says, as they change. Into a pipe or a file, the present state is written once. Where the server has
keys, set DYN_ADMIN_KEY."""
DEFAULT_URL = "http://localhost:8080"
LONGEST_EVENT = 1 << 24
LONGEST_RETRY = 15.0
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


class TopError(Exception):
    """Its message is for the user."""


def parser() -> CommandParser:
    flags = CommandParser("dynamo top", ABOUT, "q quits.")
    flags.add_argument("url", nargs="?", default=DEFAULT_URL, metavar="URL", help=f"the server ({DEFAULT_URL})")
    flags.add_argument("--prefixes", action="store_true", help="also show the largest cached prefixes")
    return flags


def top(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Returns the status of the process."""
    asked = parser().parse_args(words)
    prefixes, url = asked.prefixes, asked.url.rstrip("/")
    url = url if "://" in url else f"http://{url}"
    key = environment.get("DYN_ADMIN_KEY")
    try:
        asyncio.run(_watch(url, key, prefixes) if sys.stdout.isatty() else _once(url, key, prefixes))
    except TopError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


async def documents(url: str, key: str | None, prefixes: bool = False) -> AsyncGenerator[Document, None]:
    """The state after each event, until the stream breaks. Raises TopError if the server rejects."""
    import aiohttp  # by its functions, not the module: --help needs no client

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=limits, read_bufsize=LONGEST_EVENT) as http,
        http.get(f"{url}/fleet/events{'?prefixes=true' if prefixes else ''}") as answer,
    ):
        if answer.status in (401, 403):
            raise TopError(f"{url} needs the key of an administrator in DYN_ADMIN_KEY")
        if answer.status != 200:
            raise TopError(f"{url}/fleet/events answered {answer.status}: is this a Dynamo frontend?")
        document: Document = {}
        name = b""
        async for line in answer.content:
            if line.startswith(b"event: "):
                name = line[7:].strip()
            elif line.startswith(b"data: "):
                data = msgspec.json.decode(line[6:])
                if name == b"snapshot":
                    document = data
                else:
                    apply_merge_patch(document, data)
                yield document


async def _once(url: str, key: str | None, prefixes: bool) -> None:
    import aiohttp

    try:
        async for document in documents(url, key, prefixes):
            known = any(model.get("known_blocks") for model in document["models"].values())
            if prefixes and known and not document["prefixes"]:
                continue  # they are being looked for
            print("\n".join(lines(document, time.time(), 1 << 16)))
            return
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise TopError(f"{url} cannot be reached: {error}") from None
    raise TopError(f"{url} ended the connection")


async def _watch(url: str, key: str | None, prefixes: bool) -> None:
    with _open_screen() as quitting:
        following = asyncio.create_task(_follow(url, key, prefixes))
        await asyncio.wait((following, quitting), return_when=asyncio.FIRST_COMPLETED)
        if not following.done():
            following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


async def _follow(url: str, key: str | None, prefixes: bool) -> None:
    """Draw each state; connect again when the stream breaks."""
    import aiohttp

    pauses, document = Backoff(1.0, LONGEST_RETRY), None
    while True:
        try:
            async for document in documents(url, key, prefixes):
                pauses.reset()
                _draw(document, f"{printable(url)}   q quits")
            why = "it ended the connection"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error)
        note = f"{printable(url)}: connecting again   q quits"
        if document:
            _draw(document, note)
        else:
            _paint([note, "", "".join(character if character.isprintable() else "?" for character in why)])
        await asyncio.sleep(pauses.pause())


def _draw(document: Document, note: str) -> None:
    width, height = shutil.get_terminal_size()
    _paint(lines(document, time.time(), width, height - 1, note))


def _paint(text: list[str]) -> None:
    """From the top, over what was there: clearing first would flicker."""
    sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in text) + "\x1b[J")
    sys.stdout.flush()


@contextlib.contextmanager
def _open_screen() -> Iterator[asyncio.Future[None]]:
    """Switch to the terminal's alternate screen; yields a future that is done when q is pressed."""
    quitting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with contextlib.ExitStack() as stack:
        if sys.stdin is not None and sys.stdin.isatty():
            stack.enter_context(_read_keys(quitting))
        sys.stdout.write(_ENTER)
        try:
            yield quitting
        finally:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()


@contextlib.contextmanager
def _read_keys(quitting: asyncio.Future[None]) -> Iterator[None]:
    """Read single keys, unechoed."""
    import termios
    import tty

    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)

    def pressed() -> None:
        typed = os.read(descriptor, 64)
        if (not typed or b"q" in typed.lower()) and not quitting.done():
            quitting.set_result(None)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

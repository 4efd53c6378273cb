"""`dynamo inspect`: what a running process does, without a restart."""

from __future__ import annotations

import argparse
import http.client
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dynamo.cli.inspect.text import show_part
from dynamo.process.addresses import is_loopback
from dynamo.runtime.inspection import InspectionRequest
from dynamo.runtime.inspection.facts import command_of, read_status
from dynamo.runtime.inspection.objects import LONGEST_SECONDS
from dynamo.runtime.inspection.place import check_folder, inspection_folder, processes, socket_path
from dynamo.settings.arguments import CommandParser

ANSWER_SECONDS = 60.0
"""The limit for each part of an answer, which takes milliseconds unless the machine is overloaded."""
HTTP_SECONDS = 15.0
"""The limit over HTTP, where a blocked event loop cannot answer."""
ALL_ROWS = 100_000
EPILOG = """\
Without PROCESS, lists the processes of this user that can be inspected. PROCESS is a process id, a worker's status
address (DYN_SYSTEM_PORT) or a frontend's URL. A process of this user is asked over a Unix socket, which works without
any port and while its event loop is blocked; others over HTTP with DYN_PLANE_TOKEN (workers) or DYN_ADMIN_KEY
(frontends).

  dynamo inspect                                   which processes there are
  dynamo inspect 4711                              tasks, streams, bookings, links and queues
  dynamo inspect 4711 tasks streams                all rows of these tables
  dynamo inspect 4711 --stacks                     what each thread does now
  dynamo inspect 4711 --profile 10 --folded out    where the time of 10 seconds goes; `out` for flame graphs
  dynamo inspect http://localhost:8080 --log info,dynamo.router=debug
"""


class InspectError(Exception):
    """Its message is for the user."""


def parser() -> CommandParser:
    flags = CommandParser("dynamo inspect", "Look inside a running frontend, router or worker.", EPILOG)
    flags.add_argument("process", nargs="?", metavar="PROCESS", help="process id, status address or frontend URL")
    flags.add_argument("tables", nargs="*", metavar="TABLE", help="tasks, streams, bookings, links, queues; else all")
    one = flags.add_mutually_exclusive_group()
    one.add_argument("--stacks", action="store_true", help="the stack of each thread")
    one.add_argument("--profile", type=float, metavar="SECONDS", help="sample all threads for this time")
    one.add_argument("--objects", action="store_true", help="objects in memory by type; takes some seconds")
    one.add_argument("--log", metavar="FILTER", help="change the log levels, as DYN_LOG is written; '' shows them")
    flags.add_argument("--folded", metavar="FILE", help="of --profile: stacks for flame graph tools")
    flags.add_argument("--json", action="store_true", help="the answer as lines of JSON")
    return flags


def inspect(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Returns the status of the process: 3 if the event loop of the inspected one is blocked."""
    flags = parser().parse_args(words)
    folder = inspection_folder(environ)
    if flags.process is None:
        _list(folder)
        return 0
    blocked = False
    try:
        for part in _ask(flags.process, _request(flags), folder, environ):
            if part["kind"] == "error":
                raise InspectError(part["error"])
            blocked |= part["kind"] == "blocked"
            if part["kind"] == "profile" and flags.folded:
                _write_folded(flags.folded, part)
            if flags.json:
                print(msgspec.json.encode(part).decode(), flush=True)
            else:
                print("\n".join(show_part(part, every=bool(flags.tables))), flush=True)
    except InspectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 3 if blocked else 0


def _request(flags: argparse.Namespace) -> InspectionRequest:
    fields: dict[str, Any] = {}
    if flags.stacks:
        fields = {"what": "stacks"}
    elif flags.profile is not None:
        fields = {"what": "profile", "seconds": flags.profile}
    elif flags.objects:
        fields = {"what": "objects"}
    elif flags.log is not None:
        fields = {"what": "log", "filter": flags.log}
    elif flags.tables:
        fields = {"tables": tuple(flags.tables), "most": ALL_ROWS}
    try:
        return msgspec.convert(fields, InspectionRequest)
    except msgspec.ValidationError as error:
        raise InspectError(str(error)) from None


def _ask(process: str, request: InspectionRequest, folder: Path, environ: Mapping[str, str]) -> Iterator[Any]:
    if process.isdigit():
        yield from _ask_socket(int(process), request, folder)
        return
    url = process if "://" in process else f"http://{process}"
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise InspectError(f"{process} is neither a process id nor an address: {error}") from None
    local = is_loopback(parts.hostname or "") and listening_process(port, processes(folder))
    if local:
        yield from _ask_socket(local, request, folder)
    else:
        yield from _ask_http(url, request, environ)


def _ask_socket(pid: int, request: InspectionRequest, folder: Path) -> Iterator[Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS + _takes(request))
        try:
            if _state(pid)[:1] in ("T", "t"):
                raise InspectError(_silent(pid))
            check_folder(folder)  # rejects one of another user, who could answer anything
            connection.connect(str(socket_path(folder, pid)))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    yield msgspec.json.decode(line)
        except TimeoutError:
            raise InspectError(_silent(pid)) from None
        except OSError as error:
            others = ", ".join(map(str, processes(folder))) or "none"
            raise InspectError(
                f"process {pid} cannot be inspected ({error.strerror or error}); those of this user that can: {others}"
            ) from None


def _takes(request: InspectionRequest) -> float:
    """Seconds that the process asked takes on purpose."""
    return {"profile": request.seconds, "objects": LONGEST_SECONDS}.get(request.what, 0.0)


def _silent(pid: int) -> str:
    """Why not even a thread of the process answers, as far as the system knows."""
    state = _state(pid)
    if not state:
        return f"process {pid} has ended"
    if state[:1] in "Tt":
        return f"process {pid} is stopped: state {state}; continue it with kill -CONT {pid}"
    return (
        f"no thread of process {pid} answers: native code holds Python's lock, or the machine is overloaded ({state})"
    )


def _state(pid: int) -> str:
    """The state of a process as /proc has it, like `S (sleeping)`; empty where it is not known."""
    try:
        return read_status(pid)["State"]
    except (OSError, KeyError):
        return ""


def _ask_http(url: str, request: InspectionRequest, environ: Mapping[str, str]) -> Iterator[Any]:
    key = environ.get("DYN_ADMIN_KEY") or environ.get("DYN_PLANE_TOKEN") or environ.get("DYN_REQUEST_PLANE_TOKEN")
    sent = urllib.request.Request(
        f"{url.rstrip('/')}/inspect",
        msgspec.json.encode(request),
        {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})},
    )
    patience = HTTP_SECONDS + _takes(request)
    try:
        with urllib.request.urlopen(sent, timeout=patience) as answer:
            for line in answer:
                yield msgspec.json.decode(line)
    except urllib.error.HTTPError as error:
        why = error.read(2000).decode(errors="replace").strip()
        keys = "; set DYN_ADMIN_KEY for a frontend or DYN_PLANE_TOKEN for a worker" if error.code in (401, 403) else ""
        raise InspectError(f"{url} answered {error.code}: {why}{keys}") from None
    except TimeoutError:
        raise InspectError(
            f"{url} does not answer: its event loop may be blocked. On its own machine, `dynamo inspect PID` asks a "
            "thread that answers nevertheless"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InspectError(f"cannot ask {url}: {error}") from None


def listening_process(port: int, pids: Iterable[int]) -> int | None:
    """Which of these processes listens on this TCP port, as the system says."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        inodes |= {
            f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port
        }
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                if os.readlink(f"/proc/{pid}/fd/{number}") in inodes:
                    return pid
            except OSError:
                continue
    return None


def _list(folder: Path) -> None:
    found = [(pid, command_of(pid)) for pid in processes(folder)]
    for pid, command in found:
        print(f"{pid:>8}  {command}")
    if not found:
        print("No process of this user can be inspected: none runs, or DYN_INSPECT is off.")


def _write_folded(path: str, part: dict[str, Any]) -> None:
    try:
        Path(path).write_text("".join(f"{stack} {count}\n" for stack, count in part["folded"].items()))
    except OSError as error:
        raise InspectError(f"cannot write {path}: {error.strerror or error}") from None

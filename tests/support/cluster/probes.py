"""Startup, readiness and liveness probes of one container, as a kubelet makes them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from typing import Any

import aiohttp

Object = dict[str, Any]


class Probes:
    """Runs until it is cancelled. `ready` hears of readiness, `restart` is called when the container must end."""

    def __init__(
        self, container: Object, ip: str, pid: int, ready: Callable[[bool], None], restart: Callable[[], None]
    ) -> None:
        self._container = container
        self._ip = ip
        self._pid = pid
        self._ready = ready
        self._restart = restart

    async def run(self) -> None:
        startup = self._container.get("startupProbe")
        if startup and not await self._succeeds(startup):
            self._restart()
            return
        async with asyncio.TaskGroup() as probing:
            if readiness := self._container.get("readinessProbe"):
                probing.create_task(self._watch_readiness(readiness))
            else:
                self._ready(True)
            if liveness := self._container.get("livenessProbe"):
                probing.create_task(self._watch_liveness(liveness))

    async def _succeeds(self, probe: Object) -> bool:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        for _ in range(probe.get("failureThreshold", 3)):
            if await self._check(probe):
                return True
            await asyncio.sleep(probe.get("periodSeconds", 10))
        return False

    async def _watch_readiness(self, probe: Object) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        good = bad = 0
        while True:
            good, bad = (good + 1, 0) if await self._check(probe) else (0, bad + 1)
            if good >= probe.get("successThreshold", 1):
                self._ready(True)
            elif bad >= probe.get("failureThreshold", 3):
                self._ready(False)
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _watch_liveness(self, probe: Object) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        bad = 0
        while bad < probe.get("failureThreshold", 3):
            bad = 0 if await self._check(probe) else bad + 1
            await asyncio.sleep(probe.get("periodSeconds", 10))
        self._restart()

    async def _check(self, probe: Object) -> bool:
        try:
            async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
                if "httpGet" in probe:
                    return await self._http(probe["httpGet"])
                if "tcpSocket" in probe:
                    _, writer = await asyncio.open_connection(self._ip, self._port(probe["tcpSocket"]["port"]))
                    writer.close()
                    return True
                return await self._exec(probe["exec"]["command"])
        except (aiohttp.ClientError, OSError):  # a TimeoutError is one
            return False

    async def _http(self, get: Object) -> bool:
        scheme, host = get.get("scheme", "HTTP").lower(), get.get("host") or self._ip
        url = f"{scheme}://{host}:{self._port(get['port'])}{get.get('path', '/')}"
        headers = {each["name"]: each["value"] for each in get.get("httpHeaders") or []}
        async with aiohttp.ClientSession() as session, session.get(url, ssl=False, headers=headers) as answer:
            return 200 <= answer.status < 400

    async def _exec(self, command: list[str]) -> bool:
        process = await asyncio.create_subprocess_exec(
            "nsenter", "-t", str(self._pid), "--net", "--mount", "--root", "--", *command,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()

    def _port(self, port: int | str) -> int:
        if isinstance(port, int):
            return port
        ports = self._container.get("ports") or []
        return int(next(each["containerPort"] for each in ports if each.get("name") == port))

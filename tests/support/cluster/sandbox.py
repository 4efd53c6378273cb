"""The namespaces of a pod: a network with an address of its own, and for each container a root file system."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.cluster.places import DNS_SERVICE, ROOT

Object = dict[str, Any]

_GATEWAY = "169.254.1.1"


class Sandbox:
    """Holds the network of a pod while a process of its own lives; routed, so that pods of one node reach Services."""

    def __init__(self, holder: asyncio.subprocess.Process, ip: str) -> None:
        self._holder = holder
        self.ip = ip

    @classmethod
    async def make(cls, hostname: str, ip: str, host_ip: str, link: str) -> Sandbox:
        # It says when its namespaces are there.
        script = 'hostname "$1"; echo; exec sleep infinity'
        holder = await asyncio.create_subprocess_exec(
            "unshare", "--net", "--uts", "--ipc", "sh", "-c", script, "-", hostname,
            stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert holder.stdout
        await holder.stdout.readline()
        pid = str(holder.pid)
        await _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", pid)
        await _shell(
            f"ip link set {link} up",
            f"ip addr add {_GATEWAY}/32 dev {link} scope link",
            f"ip route add {ip}/32 dev {link} src {host_ip}",
        )
        await _run("nsenter", "-t", pid, "-n", "sh", "-ec", "\n".join((
            "ip link set lo up", f"ip addr add {ip}/32 dev eth0", "ip link set eth0 up",
            f"ip route add {_GATEWAY} dev eth0", f"ip route add default via {_GATEWAY}",
        )))  # fmt: skip
        return cls(holder, ip)

    async def start(
        self, pod: Object, container: Object, environment: dict[str, str], argv: Sequence[str],
        volumes: dict[str, Path], log: Path,
    ) -> asyncio.subprocess.Process:  # fmt: skip
        script = _root_script(pod, container, volumes)
        words = [f"{key}={value}" for key, value in environment.items()] + list(argv)
        with log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                "nsenter", "-t", str(self._holder.pid), "--net", "--uts", "--ipc", "--",
                "unshare", "--mount", "--propagation", "private", "--", "sh", "-ec", script, "-", *words,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    async def close(self) -> None:
        self._holder.kill()
        await self._holder.wait()


def _root_script(pod: Object, container: Object, volumes: dict[str, Path]) -> str:
    """Mounts an overlay of this machine's files, whose changes stay in memory, and executes its arguments there."""
    root = "/mnt/root"
    lines = [
        "mount -t tmpfs tmpfs /mnt",
        "mkdir /mnt/upper /mnt/work /mnt/root",
        f"mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work {root}",
        *(f"mount --rbind /{each} {root}/{each}" for each in ("proc", "dev", "sys")),
        f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",
        f"mkdir -p {root}/run && mount -t tmpfs tmpfs {root}/run",
        # Its file system may be another one than that of the root.
        f"mkdir -p {root}{ROOT} && mount --bind {ROOT} {root}{ROOT}",
    ]
    for mount in container.get("volumeMounts") or []:
        source = volumes[mount["name"]] / mount.get("subPath", "")
        target = shlex.quote(root + mount["mountPath"].replace("/var/run/", "/run/"))
        if source.is_file():
            lines.append(f"mkdir -p $(dirname {target}) && touch {target}")
        else:
            lines.append(f"mkdir -p {target}")
        lines.append(f"mount --bind {shlex.quote(str(source))} {target}")
        if mount.get("readOnly"):
            lines.append(f"mount -o remount,bind,ro {target}")
    search = f"{pod['metadata']['namespace']}.svc.cluster.local svc.cluster.local"
    resolver = f"nameserver {DNS_SERVICE}\\nsearch {search}\\noptions ndots:5\\n"
    lines += [
        f"printf '{resolver}' > {root}/run/resolv.conf",
        f"rm -f {root}/etc/resolv.conf && ln -s /run/resolv.conf {root}/etc/resolv.conf",
    ]
    security = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    if security.get("readOnlyRootFilesystem"):
        lines.append(f"mount -o remount,ro {root}")
    user = ""
    if number := security.get("runAsUser"):
        user = f"--userspec={number}:{security.get('runAsGroup', number)}"
    folder = shlex.quote(container.get("workingDir") or "/tmp")
    lines.append(f'exec chroot {user} {root} /usr/bin/env -i -C {folder} "$@"')
    return "\n".join(lines)


async def _shell(*lines: str) -> None:
    await _run("sh", "-ec", "\n".join(lines))


async def _run(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, errors = await process.communicate()
    if process.returncode:
        raise OSError(f"{' '.join(words)}: {errors.decode(errors='replace').strip()}")


def end_group(process: asyncio.subprocess.Process, signal: int) -> None:
    """Send the signal to the group of a process that leads a session."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal)
        except ProcessLookupError:
            pass

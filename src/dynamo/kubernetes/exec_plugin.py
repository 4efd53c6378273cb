"""Credentials from a program that a kubeconfig names, as the tools of EKS, GKE and AKS set it up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.kubernetes.files import ClusterAccessError

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_LIMIT_SECONDS = 60.0
_EARLY = timedelta(seconds=10)
"""A credential that ends so soon may have ended when it arrives."""
_LONGEST_MESSAGE = 300


class EnvironmentVariable(Struct, frozen=True):
    name: str
    value: str = ""


class ExecConfig(Struct, frozen=True, rename="camel"):
    """What a kubeconfig says about its program."""

    command: str
    api_version: str = _VERSIONS[0]
    args: list[str] | None = None
    env: list[EnvironmentVariable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False


class PluginCluster(Struct, frozen=True, rename="kebab", omit_defaults=True):
    """The cluster, as the program is told of it."""

    server: str
    certificate_authority_data: bytes | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None


class ExecStatus(Struct, frozen=True, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class ExecCredential(Struct, frozen=True, rename="camel"):
    api_version: str
    status: ExecStatus | None = None


class Credential(Struct, frozen=True):
    token: bytes | None
    certificate: bytes | None
    key: bytes | None
    expires: datetime | None

    @property
    def is_fresh(self) -> bool:
        return self.expires is None or datetime.now(UTC) < self.expires - _EARLY


class ExecPlugin:
    """Runs the program when a credential is needed, and keeps that until it expires or is refused."""

    def __init__(self, config: ExecConfig, cluster: PluginCluster, folder: Path, where: str) -> None:
        """A path in `config` is relative to `folder`, that of the kubeconfig; `where` begins messages."""
        if config.api_version not in _VERSIONS:
            wanted = " or ".join(_VERSIONS)
            raise ClusterAccessError(f"{where}: apiVersion must be {wanted}, not '{config.api_version}'")
        self._config = config
        self._cluster = cluster
        self._folder = folder
        self._where = where
        self._kept: Credential | None = None
        self._running = asyncio.Lock()

    async def credential(self) -> Credential:
        """Raises ClusterAccessError where the program gives none."""
        async with self._running:
            if self._kept is None or not self._kept.is_fresh:
                self._kept = self._read(await self._run())
            return self._kept

    def forget(self) -> None:
        """The server refused what the program gave."""
        self._kept = None

    async def _run(self) -> bytes:
        command = self._config.command
        if os.sep in command:
            command = str(self._folder / command)
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *(self._config.args or ()),
                env=self._environment(os.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f"; {self._config.install_hint}" if self._config.install_hint else ""
            raise ClusterAccessError(f"{self._where}: {command}: {error.strerror}{hint}") from error
        try:
            async with asyncio.timeout(_LIMIT_SECONDS):
                output, errors = await process.communicate()
        except TimeoutError:
            raise ClusterAccessError(f"{self._where}: {command} took more than {_LIMIT_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            said = errors.decode(errors="replace").strip()[-_LONGEST_MESSAGE:]
            raise ClusterAccessError(f"{self._where}: {command} ended with {process.returncode}: {said}")
        return output

    def _environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": False}
        if self._config.provide_cluster_info:
            spec["cluster"] = self._cluster
        asked = {"apiVersion": self._config.api_version, "kind": "ExecCredential", "spec": spec}
        own = {each.name: each.value for each in self._config.env or ()}
        return {**inherited, **own, "KUBERNETES_EXEC_INFO": msgspec.json.encode(asked).decode()}

    def _read(self, output: bytes) -> Credential:
        command = self._config.command
        try:
            answer = msgspec.json.decode(output, type=ExecCredential)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # Its own text may hold a token.
            raise ClusterAccessError(f"{self._where}: {command} printed no ExecCredential") from None
        if answer.api_version != self._config.api_version:
            raise ClusterAccessError(
                f"{self._where}: {command} answers in {answer.api_version},"
                f" and was asked for {self._config.api_version}"
            )
        status = answer.status
        if status is None or not (status.token or (status.client_certificate_data and status.client_key_data)):
            raise ClusterAccessError(f"{self._where}: {command} gave neither a token nor a certificate with its key")
        expires = status.expiration_timestamp
        return Credential(
            token=_bytes(status.token),
            certificate=_bytes(status.client_certificate_data),
            key=_bytes(status.client_key_data),
            expires=expires.replace(tzinfo=UTC) if expires and expires.tzinfo is None else expires,
        )


def _bytes(text: str | None) -> bytes | None:
    return text.encode() if text else None

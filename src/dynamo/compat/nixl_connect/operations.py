"""Transfers: the passive side offers memory and waits, the active side moves the bytes."""

from __future__ import annotations

import asyncio
import uuid
from enum import IntEnum
from typing import Any, Self

from dynamo.compat.nixl_connect.agent import NixlAgent
from dynamo.compat.nixl_connect.memory import Descriptor
from dynamo.compat.nixl_connect.metadata import OperationKind, RdmaMetadata, SerializedDescriptor

_POLL_SECONDS = 0.001


class OperationStatus(IntEnum):
    UNINITIALIZED = 0
    INITIALIZED = 1
    IN_PROGRESS = 2
    COMPLETE = 3
    CANCELLED = 4
    ERRORED = 5

    def __str__(self) -> str:
        return self.name


_ENDED = (OperationStatus.COMPLETE, OperationStatus.CANCELLED, OperationStatus.ERRORED)


class AbstractOperation:
    """Its memory is registered with NIXL until it is released, at the end of a `with` block or with the object."""

    kind: OperationKind

    def __init__(self, connector: NixlAgent, local: Descriptor | list[Descriptor]) -> None:
        self._connector = connector
        self._local = [local] if isinstance(local, Descriptor) else list(local)
        if not self._local or not all(isinstance(each, Descriptor) for each in self._local):
            raise TypeError("an operation needs a Descriptor or a list of them")
        if len({each.device.kind for each in self._local}) > 1:
            raise ValueError("the descriptors of one operation must be on one kind of device")
        self._registered = connector.register(self._local)

    @property
    def operation_kind(self) -> OperationKind:
        return self.kind

    @property
    def connector(self) -> NixlAgent:
        return self._connector

    @property
    def status(self) -> OperationStatus:
        raise NotImplementedError

    async def wait_for_completion(self) -> None:
        """Raises RuntimeError if the transfer fails or is cancelled."""
        while (status := self.status) not in _ENDED:  # noqa: ASYNC110 - NIXL has nothing to wait on
            await asyncio.sleep(_POLL_SECONDS)
        if status is not OperationStatus.COMPLETE:
            raise RuntimeError(f"the {self.kind} operation ended as {status}")

    def release(self) -> None:
        registered, self._registered = self._registered, None
        if registered is not None:
            self._connector.deregister(registered)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_registered", None) is not None:
            self.release()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(status={self.status}, local={self._local})"


class PassiveOperation(AbstractOperation):
    """Complete when the other side has said so."""

    def __init__(self, connector: NixlAgent, local: Descriptor | list[Descriptor]) -> None:
        super().__init__(connector, local)
        self._key = uuid.uuid4().hex
        self._complete = False
        connector.expect(self._key)

    def metadata(self) -> RdmaMetadata:
        """What the other side needs."""
        described = [
            SerializedDescriptor(device=str(each.device), ptr=each.ptr, size=each.size) for each in self._local
        ]
        return RdmaMetadata(
            descriptors=described,
            nixl_metadata=RdmaMetadata.packed(self._connector.agent.get_agent_metadata()),
            notification_key=self._key,
            operation_kind=self.kind.value,
        )

    @property
    def status(self) -> OperationStatus:
        self._complete = self._complete or self._connector.notified(self._key)
        return OperationStatus.COMPLETE if self._complete else OperationStatus.INITIALIZED

    def release(self) -> None:
        self._connector.forget(self._key)
        super().release()


class ReadableOperation(PassiveOperation):
    """Memory that the other side reads."""

    kind = OperationKind.READ


class WritableOperation(PassiveOperation):
    """Memory that the other side writes."""

    kind = OperationKind.WRITE

    def __init__(self, connector: NixlAgent, local: Descriptor | list[Descriptor]) -> None:
        for each in [local] if isinstance(local, Descriptor) else local:
            if isinstance(each, Descriptor) and not each.is_writable:
                raise ValueError("bytes cannot be written to; use a bytearray")
        super().__init__(connector, local)


class ActiveOperation(AbstractOperation):
    """Begins when it is made."""

    def __init__(self, connector: NixlAgent, local: Descriptor | list[Descriptor], remote: RdmaMetadata) -> None:
        if remote.operation_kind != self.kind:
            offered = OperationKind(remote.operation_kind) if 0 <= remote.operation_kind <= 2 else "unknown"
            raise ValueError(f"the other side offers a {offered} operation, not a {self.kind} operation")
        self._handle: Any = None
        self._status = OperationStatus.UNINITIALIZED
        super().__init__(connector, local)
        try:
            self._begin(remote)
        except BaseException:
            self.release()
            raise

    def _begin(self, metadata: RdmaMetadata) -> None:
        remote = [each.to_descriptor() for each in metadata.descriptors]
        sizes, offered = [each.size for each in self._local], [each.size for each in remote]
        if sizes != offered:
            raise ValueError(f"the sizes must be equal: {sizes} bytes here, {offered} there")
        agent = self._connector.agent
        name = agent.add_remote_agent(metadata.agent_metadata())
        self._handle = agent.initialize_xfer(
            self.kind.name,
            _transfer_list(agent, self._local),
            _transfer_list(agent, remote),
            name.decode() if isinstance(name, bytes) else name,
            metadata.notification_key.encode(),
        )
        self._status = _status(agent.transfer(self._handle))

    @property
    def status(self) -> OperationStatus:
        if self._status is OperationStatus.IN_PROGRESS:
            self._status = _status(self._connector.agent.check_xfer_state(self._handle))
        return self._status

    def cancel(self) -> None:
        """Stop a transfer that has not ended."""
        if self.status not in _ENDED:
            self._status = OperationStatus.CANCELLED
            self._release_handle()

    def release(self) -> None:
        self._release_handle()
        super().release()

    def _release_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._connector.agent.release_xfer_handle(handle)


class ReadOperation(ActiveOperation):
    kind = OperationKind.READ

    def results(self) -> list[Descriptor]:
        """The local memory, once it is filled."""
        if self.status is not OperationStatus.COMPLETE:
            raise RuntimeError(f"the read operation is {self.status}, not COMPLETE")
        return self._local


class WriteOperation(ActiveOperation):
    kind = OperationKind.WRITE


def _status(state: str) -> OperationStatus:
    return {"DONE": OperationStatus.COMPLETE, "PROC": OperationStatus.IN_PROGRESS}.get(state, OperationStatus.ERRORED)


def _transfer_list(agent: Any, descriptors: list[Descriptor]) -> Any:
    kind = descriptors[0].device.kind.nixl_mem_type
    return agent.get_xfer_descs([(each.ptr, each.size, each.device.id) for each in descriptors], kind)

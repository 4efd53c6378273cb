"""Memory that is transferred: where it is and how long it is."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any


class DeviceKind(IntEnum):
    UNSPECIFIED = 0
    HOST = 1
    CUDA = 2
    XPU = 3

    def __str__(self) -> str:
        return {DeviceKind.HOST: "cpu", DeviceKind.UNSPECIFIED: "unspecified"}.get(self, self.name.lower())

    @property
    def nixl_mem_type(self) -> str:
        return "DRAM" if self is DeviceKind.HOST else "VRAM"


_KINDS = {"cpu": DeviceKind.HOST, "host": DeviceKind.HOST, "cuda": DeviceKind.CUDA, "xpu": DeviceKind.XPU}


class Device:
    """`Device("cuda:1")`, `Device("cpu")` or `Device((DeviceKind.CUDA, 1))`."""

    def __init__(self, metadata: str | tuple[DeviceKind, int]) -> None:
        if isinstance(metadata, tuple):
            self.kind, self.id = DeviceKind(metadata[0]), int(metadata[1])
            return
        if not isinstance(metadata, str):
            raise TypeError(f"a device is a text or (DeviceKind, id), not {type(metadata).__name__}")
        name, _, number = metadata.strip().lower().partition(":")
        if name not in _KINDS or not (number or "0").isdigit():
            raise ValueError(f"a device is like cpu, cuda or cuda:1, not {metadata!r}")
        self.kind, self.id = _KINDS[name], int(number or 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self.kind, self.id) == (other.kind, other.id)

    def __hash__(self) -> int:
        return hash((self.kind, self.id))

    def __str__(self) -> str:
        return str(self.kind) if self.kind is DeviceKind.HOST else f"{self.kind}:{self.id}"

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"


class Descriptor:
    """A region of memory, whose owner it keeps alive.

    Of: bytes, bytearray or memoryview; a torch tensor; (a NumPy or CuPy array, its device); or (address, size in bytes,
    device, owner). Arrays and tensors must be contiguous. Memory that is written to must be writable: not bytes.
    """

    def __init__(self, data: Any) -> None:
        self.ptr, self.size, self.device, self._owner = _region(data)
        if self.size <= 0:
            raise ValueError("a descriptor needs at least one byte")
        self.is_writable = not isinstance(data, bytes)

    def __repr__(self) -> str:
        return f"Descriptor(ptr={self.ptr:#x}, size={self.size}, device={self.device})"


def _region(data: Any) -> tuple[int, int, Device, Any]:
    match data:
        case bytes():
            return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0, len(data), Device("cpu"), data
        case bytearray() | memoryview():
            buffer = (ctypes.c_char * len(memoryview(data).cast("B"))).from_buffer(data)
            return ctypes.addressof(buffer), len(buffer), Device("cpu"), buffer
        case (int() as ptr, int() as size, device, owner):
            return ptr, size, _device(device), owner
        case (array, device):
            return *_array_region(array), _device(device), array
    if hasattr(data, "data_ptr"):
        if not data.is_contiguous():
            raise ValueError("the tensor is not contiguous; use tensor.contiguous()")
        device = Device(str(data.device))
        return int(data.data_ptr()), int(data.numel() * data.element_size()), device, data
    raise TypeError(f"a descriptor cannot be made of {type(data).__name__}")


def _device(device: Device | str) -> Device:
    return device if isinstance(device, Device) else Device(device)


def _array_region(array: Any) -> tuple[int, int]:
    if not hasattr(array, "flags") or not hasattr(array, "nbytes"):
        raise TypeError(f"a descriptor cannot be made of {type(array).__name__}; expected a NumPy or CuPy array")
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous; use numpy.ascontiguousarray")
    address = array.ctypes.data if hasattr(array, "ctypes") else array.data.ptr
    return int(address), int(array.nbytes)

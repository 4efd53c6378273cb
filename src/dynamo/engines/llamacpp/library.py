"""llama.cpp's C API by ctypes, from the shared library inside the wheel of xllamacpp.

Only functions whose signatures are stable are called. The two structs of parameters change between versions, so they
are taken as bytes from the library's own defaults, and the few fields that we set are found in them and checked.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import struct
from ctypes import c_bool, c_char_p, c_int32, c_size_t, c_uint32, c_void_p
from functools import cache
from typing import Any

from dynamo.engines.base import EngineError
from dynamo.model import ModelError
from dynamo.model.gguf.llama_cpp import (
    KNOWN,
    LOG,
    OVERRIDES,
    PACKAGE,
    Params,
    Signatures,
    check_layout,
    open_library,
)

__all__ = [
    "CACHE_TYPES",
    "LOG",
    "LlamaBatch",
    "Params",
    "context_params",
    "library",
    "model_params",
    "version",
    "without_vocabulary",
]

_FLAGS = bytes((0, 1, 1, 1, 1, 0))
"""The defaults of embeddings, offload_kqv, no_perf, op_offload, swa_full and kv_unified, which stand in a row."""
_CACHE_TYPES = struct.pack("<ii", 1, 1)
"""The defaults of type_k and type_v: f16."""
CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}


class LlamaBatch(ctypes.Structure):
    """`llama_batch`."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    )


_INTEGER, _TEXT = 0, 3


class _MetadataOverride(ctypes.Structure):
    """`llama_model_kv_override`; an empty key ends a list of them."""

    _fields_ = (("kind", c_int32), ("key", ctypes.c_char * 128), ("_", c_int32), ("value", ctypes.c_char * 128))

    def __init__(self, kind: int = 0, key: bytes = b"", value: bytes = b"") -> None:
        super().__init__(kind, key)
        ctypes.memmove(ctypes.addressof(self) + type(self).value.offset, value, len(value))


_SIGNATURES: Signatures = {
    "llama_context_default_params": (Params, ()),
    "llama_model_n_ctx_train": (c_int32, (c_void_p,)),
    "llama_model_desc": (c_int32, (c_void_p, c_char_p, c_size_t)),
    "llama_model_size": (ctypes.c_uint64, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, Params)),
    "llama_free": (None, (c_void_p,)),
    "llama_n_ctx": (c_uint32, (c_void_p,)),
    "llama_n_ctx_seq": (c_uint32, (c_void_p,)),
    "llama_n_batch": (c_uint32, (c_void_p,)),
    "llama_n_seq_max": (c_uint32, (c_void_p,)),
    "llama_set_n_threads": (None, (c_void_p, c_int32, c_int32)),
    "llama_set_abort_callback": (None, (c_void_p, c_void_p, c_void_p)),
    "llama_decode": (c_int32, (c_void_p, LlamaBatch)),
    "llama_get_logits": (c_void_p, (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_memory_clear": (None, (c_void_p, c_bool)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_memory_seq_cp": (None, (c_void_p, c_int32, c_int32, c_int32, c_int32)),
    "llama_memory_seq_pos_max": (c_int32, (c_void_p, c_int32)),
    "llama_state_seq_get_size": (c_size_t, (c_void_p, c_int32)),
    "llama_state_seq_get_data": (c_size_t, (c_void_p, c_char_p, c_size_t, c_int32)),
    "llama_state_seq_set_data": (c_size_t, (c_void_p, c_char_p, c_size_t, c_int32)),
}


@cache
def library() -> Any:
    """The loaded library; raises EngineError where there is none that can be used."""
    try:
        return open_library(_SIGNATURES)
    except ModelError as error:
        raise EngineError(f"the engine llamacpp cannot run: {error}") from error


def version() -> str:
    return importlib.metadata.version(PACKAGE)


def model_params(gpu_layers: int) -> Params:
    params: Params = library().llama_model_default_params()
    # Two pointers stand before it, in all versions since 2024.
    struct.pack_into("<i", params.raw, 16, gpu_layers)
    return params


def without_vocabulary(params: Params, architecture: str, vocab_size: int) -> Any:
    """Have a file loaded that lacks its tokenizer; what it returns must live until the model is loaded.

    Raises EngineError if the library's defaults are not laid out as expected.
    """
    try:
        check_layout(params)
    except ModelError as error:
        raise EngineError(str(error)) from error
    overrides = (_MetadataOverride * 3)(
        _MetadataOverride(_TEXT, b"tokenizer.ggml.model", b"no_vocab"),
        _MetadataOverride(_INTEGER, f"{architecture}.vocab_size".encode(), struct.pack("<q", vocab_size)),
    )
    struct.pack_into("<Q", params.raw, OVERRIDES, ctypes.addressof(overrides))
    return overrides


def context_params(cells: int, batch: int, sequences: int, cache_type: str) -> Params:
    """Raises EngineError if the library's defaults are not laid out as expected."""
    params: Params = library().llama_context_default_params()
    raw = bytes(params.raw)
    flags, types = raw.find(_FLAGS, 64), raw.find(_CACHE_TYPES, 64)
    if struct.unpack_from("<4I", raw) != (512, 2048, 512, 1) or not 0 < types < flags:
        raise EngineError(f"{PACKAGE} {version()} has parameters that this build does not know; install {KNOWN}*")
    struct.pack_into("<4I", params.raw, 0, cells, batch, min(batch, 512), sequences)
    struct.pack_into("<2i", params.raw, types, *2 * (CACHE_TYPES[cache_type],))
    params.raw[flags + len(_FLAGS) - 1] = True
    return params

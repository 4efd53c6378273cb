"""llama.cpp's C API by ctypes, from the shared library inside the wheel of xllamacpp.

Only functions whose signatures are stable are called. The two structs of parameters change between versions, so they
are taken as bytes from the library's own defaults, and the few fields that we set are found in them and checked.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import logging
import struct
from ctypes import c_bool, c_char_p, c_int32, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from dynamo.engines.base import EngineError

log = logging.getLogger(__name__)

PACKAGE = "xllamacpp"
KNOWN = "2026.10."
"""Versions that begin with this were tried."""

_PARAMS_BYTES = 512
_FLAGS = bytes((0, 1, 1, 1, 1, 0))
"""The defaults of embeddings, offload_kqv, no_perf, op_offload, swa_full and kv_unified, which stand in a row."""
_CACHE_TYPES = struct.pack("<ii", 1, 1)
"""The defaults of type_k and type_v: f16."""
CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}

_LogCallback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


class Params(ctypes.Structure):
    """Either struct of parameters: larger than both, of which the library reads only its own part."""

    _fields_ = (("raw", ctypes.c_uint8 * _PARAMS_BYTES),)


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


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (_LogCallback, c_void_p)),
    "llama_model_default_params": (Params, ()),
    "llama_context_default_params": (Params, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, Params)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_model_n_ctx_train": (c_int32, (c_void_p,)),
    "llama_model_desc": (c_int32, (c_void_p, c_char_p, c_size_t)),
    "llama_model_size": (ctypes.c_uint64, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
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
    spec = importlib.util.find_spec(PACKAGE)
    files = (
        [] if spec is None else [path for at in spec.submodule_search_locations or () for path in Path(at).glob("*.so")]
    )
    if not files:
        raise EngineError(f"the engine llamacpp needs the package {PACKAGE}; pip install 'dynamo-serving[llama_cpp]'")
    version = importlib.metadata.version(PACKAGE)
    if not version.startswith(KNOWN):
        log.warning("%s %s was not tried with this build, which knows %s*", PACKAGE, version, KNOWN)
    try:
        loaded = ctypes.CDLL(str(files[0]))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise EngineError(f"llama.cpp in {PACKAGE} {version} cannot be used: {error}; install {KNOWN}*") from error
    loaded.llama_log_set(_LOG_CALLBACK, None)
    loaded.llama_backend_init()
    return loaded


def version() -> str:
    return importlib.metadata.version(PACKAGE)


def model_params(gpu_layers: int) -> Params:
    params: Params = library().llama_model_default_params()
    # Two pointers stand before it, in all versions since 2024.
    struct.pack_into("<i", params.raw, 16, gpu_layers)
    return params


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


class _Log:
    """llama.cpp's log lines, which arrive in pieces. Its last error explains why a call failed."""

    def __init__(self) -> None:
        self.last_error = ""
        self._line = ""
        self._level = logging.DEBUG

    def write(self, level: int, text: bytes | None, _: Any) -> None:
        if level in _LEVELS:
            self._level = _LEVELS[level]
        self._line += (text or b"").decode(errors="replace")
        if not self._line.endswith("\n"):
            return
        line, self._line = self._line.strip(), ""
        if self._level >= logging.ERROR:
            self.last_error = line
        # A failure is raised with the last error; the rest is for those who debug.
        log.debug("%s", line)


_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
LOG = _Log()
_LOG_CALLBACK = _LogCallback(LOG.write)
"""Kept for the life of the process: the library calls it at any time."""

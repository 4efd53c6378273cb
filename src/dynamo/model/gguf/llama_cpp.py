"""llama.cpp's shared library, from the wheel of xllamacpp, and the vocabulary of a GGUF file as that library reads it.

A GGUF file names how text is cut before it is tokenized, and only llama.cpp knows all these names.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import logging
import re
import struct
import tempfile
import weakref
from collections.abc import Mapping
from ctypes import c_bool, c_char_p, c_int32, c_uint8, c_void_p
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from dynamo.model.gguf.file import COUNT_OF_TENSORS, Gguf
from dynamo.protocols.errors import ModelError

log = logging.getLogger(__name__)

PACKAGE = "xllamacpp"
KNOWN = "2026.10."
"""Versions that begin with this were tried."""

_PARAMS_BYTES = 512
OVERRIDES, _VOCAB_ONLY = 64, 72
_FLAGS = bytes((0, 0, 1, 0, 0))
"""The defaults of the flags in the parameters of a model, of which `vocab_only` is the first."""
_LONGEST_PIECE = 4096
"""Characters that are given to llama.cpp at once: its regular expressions recurse, and 20,000 letters in a row end the
process with a stack of 8 MiB."""
_CUT = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")
"""Before a space between two words every pre-tokenizer cuts."""

_FOUND_IN_TEXT = (3, 4)
"""The types of tokens that are looked for before a text is cut: control tokens and those of users."""

LogCallback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
Signatures = Mapping[str, tuple[Any, tuple[Any, ...]]]


class Params(ctypes.Structure):
    """A struct of parameters: larger than all of them, of which the library reads only its own part."""

    _fields_ = (("raw", c_uint8 * _PARAMS_BYTES),)


_SIGNATURES: Signatures = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (LogCallback, c_void_p)),
    "llama_model_default_params": (Params, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, Params)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_vocab_get_add_bos": (c_bool, (c_void_p,)),
    "llama_vocab_get_add_eos": (c_bool, (c_void_p,)),
    "llama_vocab_bos": (c_int32, (c_void_p,)),
    "llama_vocab_eos": (c_int32, (c_void_p,)),
    "llama_tokenize": (c_int32, (c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool)),
    "llama_token_to_piece": (c_int32, (c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool)),
}


def open_library(more: Signatures) -> Any:
    """The library with the functions above and `more`; raises ModelError where there is none that can be used."""
    spec = importlib.util.find_spec(PACKAGE)
    files = (
        [] if spec is None else [path for at in spec.submodule_search_locations or () for path in Path(at).glob("*.so")]
    )
    if not files:
        raise ModelError(f"the package {PACKAGE} is not installed; pip install 'dynamo-serving[llama_cpp]'")
    version = importlib.metadata.version(PACKAGE)
    if not version.startswith(KNOWN):
        log.warning("%s %s was not tried with this build, which knows %s*", PACKAGE, version, KNOWN)
    try:
        loaded = ctypes.CDLL(str(files[0]))
        for name, (result, arguments) in {**_SIGNATURES, **more}.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ModelError(f"llama.cpp in {PACKAGE} {version} cannot be used: {error}; install {KNOWN}*") from error
    loaded.llama_log_set(_LOG_CALLBACK, None)
    loaded.llama_backend_init()
    return loaded


@cache
def _library() -> Any:
    return open_library({})


def check_layout(params: Params) -> None:
    """Raises ModelError if the default parameters of a model are not laid out as this build knows them."""
    if bytes(params.raw[OVERRIDES : _VOCAB_ONLY + len(_FLAGS)]) != bytes(8) + _FLAGS:
        raise ModelError(f"{PACKAGE} has parameters that this build does not know; install {KNOWN}*")


class LlamaVocabulary:
    """Encodes text exactly as llama.cpp does for this file; may be used by several threads."""

    def __init__(self, path: Path, gguf: Gguf) -> None:
        """Blocks while it reads the file's metadata; raises ModelError if llama.cpp cannot use them."""
        self._library = _library()
        params: Params = self._library.llama_model_default_params()
        check_layout(params)
        params.raw[_VOCAB_ONLY] = True
        with tempfile.NamedTemporaryFile(suffix=".gguf") as head:
            head.write(_without_tensors(path, gguf))
            head.flush()
            model = self._library.llama_model_load_from_file(head.name.encode(), params)
        if not model:
            raise ModelError(f"llama.cpp cannot read the tokenizer of {path}: {LOG.last_error or 'it gives no reason'}")
        weakref.finalize(self, self._library.llama_model_free, model)
        self._vocab = self._library.llama_model_get_vocab(model)
        vocab = self._vocab
        self._before = [self._library.llama_vocab_bos(vocab)] if self._library.llama_vocab_get_add_bos(vocab) else []
        self._after = [self._library.llama_vocab_eos(vocab)] if self._library.llama_vocab_get_add_eos(vocab) else []
        named = zip(
            gguf.metadata.get("tokenizer.ggml.tokens", ()),
            gguf.metadata.get("tokenizer.ggml.token_type", ()),
            strict=False,
        )
        self._whole = [token for token, kind in named if kind in _FOUND_IN_TEXT]
        """Tokens that must not be cut."""
        self._longest = max(map(len, self._whole), default=0)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids = list(self._before) if add_special_tokens else []
        for start, end in pairwise(self._cuts(text)):
            ids += self._encode(text[start:end].encode())
        return ids + self._after if add_special_tokens else ids

    def piece(self, id: int) -> bytes:
        """The bytes of a token, special ones included."""
        buffer = ctypes.create_string_buffer(1024)
        length = self._library.llama_token_to_piece(self._vocab, id, buffer, len(buffer), 0, True)
        return buffer.raw[: max(0, length)]

    def _encode(self, text: bytes) -> list[int]:
        room = len(text) + 8
        buffer = (c_int32 * room)()
        count = self._library.llama_tokenize(self._vocab, text, len(text), buffer, room, False, True)
        return buffer[:count]

    def _cuts(self, text: str) -> list[int]:
        """Where the pieces of a long text begin and end; a word that is longer than a piece is cut anywhere."""
        at = [0]
        while len(text) - at[-1] > _LONGEST_PIECE:
            last, most = at[-1], at[-1] + _LONGEST_PIECE
            words = [cut.start() for cut in _CUT.finditer(text, last + 1, most + 1)]
            anywhere = range(most, most - self._longest, -1)
            at.append(next((cut for cut in (*reversed(words), *anywhere) if not self._through_token(text, cut)), most))
        return [*at, len(text)]

    def _through_token(self, text: str, cut: int) -> bool:
        return any(text.find(token, max(0, cut - len(token) + 1), cut + len(token) - 1) >= 0 for token in self._whole)


def _without_tensors(path: Path, gguf: Gguf) -> bytes:
    """The file's head as a file of its own: the rest may be elsewhere, or hundreds of gigabytes."""
    with path.open("rb") as file:
        head = bytearray(file.read(gguf.size))
    struct.pack_into("<Q", head, COUNT_OF_TENSORS, 0)
    return bytes(head) + bytes(64)


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
        # The last line of a failed load says no more than that.
        if self._level >= logging.ERROR and not line.endswith("failed to load model"):
            self.last_error = line
        # A failure is raised with the last error; the rest is for those who debug.
        log.debug("%s", line)


_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
LOG = _Log()
_LOG_CALLBACK = LogCallback(LOG.write)
"""Kept for the life of the process: the library calls it at any time."""

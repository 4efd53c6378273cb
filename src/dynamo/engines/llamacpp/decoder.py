"""One model in llama.cpp: a batch to fill, a step to compute, and the memory of its sequences.

All methods but `abort` are called by one thread at a time.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamo.engines.base import EngineError
from dynamo.engines.llamacpp.library import (
    LOG,
    LlamaBatch,
    context_params,
    library,
    model_params,
    version,
    without_vocabulary,
)

DECODED, NO_ROOM, ABORTED = 0, 1, 2
"""What `decode` returns; anything else is a failure."""

_CELLS = 256
"""llama.cpp rounds the number of cells up to a multiple of this."""

Logits = NDArray[np.float32]


class LlamaDecoder:
    def __init__(
        self,
        path: Path,
        *,
        cells: int,
        batch: int,
        sequences: int,
        threads: int,
        gpu_layers: int,
        cache_type: str,
        vocabulary: tuple[str, int] | None = None,
    ) -> None:
        """Load the model; `cells` 0 is as many as the model's context is long.

        `vocabulary`: architecture and number of tokens of a file without a tokenizer.
        """
        self._context: Any = None
        self._model: Any = None
        self._memory: Any = None
        self._library: Any = library()
        params = model_params(gpu_layers)
        overrides = without_vocabulary(params, *vocabulary) if vocabulary is not None else None
        self._model = self._library.llama_model_load_from_file(str(path).encode(), params)
        del overrides
        if not self._model:
            raise EngineError(f"llama.cpp cannot load {path}: {LOG.last_error or 'it gives no reason'}")
        try:
            cells = -(-(cells or self.trained_context) // _CELLS) * _CELLS
            self.n_batch = min(batch, cells)
            self._open(path, cells, self.n_batch, sequences, threads, cache_type)
        except BaseException:
            self.close()
            raise
        self.vocab_size: int = self._library.llama_vocab_n_tokens(self._library.llama_model_get_vocab(self._model))
        self.rewinds = not (
            self._library.llama_model_is_recurrent(self._model) or self._library.llama_model_is_hybrid(self._model)
        )
        """Whether the end of a sequence can be removed and its beginning shared; not so in a recurrent model."""
        self._allocate(self.n_batch)
        self._scratch = sequences - 1
        """A sequence that only `copy` and `put` use."""
        if self.rewinds:
            self._watch_for_abort()

    @property
    def trained_context(self) -> int:
        return int(self._library.llama_model_n_ctx_train(self._model))

    @property
    def description(self) -> str:
        text = ctypes.create_string_buffer(256)
        self._library.llama_model_desc(self._model, text, len(text))
        # Of a model of an unusual size llama.cpp says "?B".
        named = text.value.decode(errors="replace").replace(" ?B", "")
        return f"{named}, {self._library.llama_model_size(self._model)} bytes"

    def decode(self, count: int) -> int:
        """Compute the first `count` entries of the batch."""
        self._batch.n_tokens = count
        return int(self._library.llama_decode(self._context, self._batch))

    def logits(self, rows: int) -> Logits:
        """The logits of the entries marked in `wanted`, in their order; valid until the next `decode`."""
        address = self._library.llama_get_logits(self._context)
        flat = (ctypes.c_float * (rows * self.vocab_size)).from_address(address)
        return np.ctypeslib.as_array(flat).reshape(rows, self.vocab_size)

    def abort(self, wanted: bool) -> None:
        """Make a running and every further `decode` end early, or no longer; may be called by any thread."""
        self._abort_flag[0] = b"\1" if wanted else b"\0"

    def share(self, source: int, target: int, count: int, start: int = 0) -> None:
        """Let `target` hold the positions of `source` from `start` up to `count`, without copying them."""
        self._library.llama_memory_seq_cp(self._memory, source, target, start, count)

    def truncate(self, sequence: int, count: int) -> None:
        """Keep only the first `count` positions."""
        self._library.llama_memory_seq_rm(self._memory, sequence, count, -1)

    def length(self, sequence: int) -> int:
        return int(self._library.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def clear(self) -> None:
        self._library.llama_memory_clear(self._memory, False)

    def state(self, sequence: int) -> bytes:
        """All that is computed of a sequence."""
        size = self._library.llama_state_seq_get_size(self._context, sequence)
        buffer = ctypes.create_string_buffer(size)
        written = self._library.llama_state_seq_get_data(self._context, buffer, size, sequence)
        return buffer.raw[:written]

    def restore(self, sequence: int, state: bytes) -> bool:
        """Fill an empty sequence with a state; False if it is not one of this model, or finds no room."""
        return bool(self._library.llama_state_seq_set_data(self._context, state, len(state), sequence) == len(state))

    def copy(self, sequence: int, start: int, end: int) -> bytes:
        """The state of the positions of a sequence from `start` up to `end`."""
        self.share(sequence, self._scratch, end, start)
        try:
            return self.state(self._scratch)
        finally:
            self.truncate(self._scratch, 0)

    def put(self, state: bytes, target: int, start: int, end: int) -> bool:
        """Give `target` the positions of a state from `start` up to `end`; False if there is no room."""
        restored = self.restore(self._scratch, state) and self.length(self._scratch) >= end
        if restored:
            self.share(self._scratch, target, end, start)
        self.truncate(self._scratch, 0)
        return restored

    def restores(self) -> bool:
        """Whether states can be copied and put back, tried with one token; the memory must be empty."""
        self.token[0] = self.position[0] = self.sequence[0] = 0
        self.wanted[0] = 1
        works = self.decode(1) == DECODED and self.put(self.copy(0, 0, 1), 1, 0, 1) and self.length(1) == 1
        self.clear()
        return works

    def close(self) -> None:
        if self._context:
            self._library.llama_free(self._context)
        if self._model:
            self._library.llama_model_free(self._model)
        self._context = self._model = None

    def _open(self, path: Path, cells: int, batch: int, sequences: int, threads: int, cache_type: str) -> None:
        if self._library.llama_model_has_encoder(self._model):
            raise EngineError(f"llamacpp serves models that only decode; {path} has an encoder")
        self._context = self._library.llama_init_from_model(
            self._model, context_params(cells, batch, sequences, cache_type)
        )
        if not self._context:
            raise EngineError(
                f"llama.cpp cannot make a context of {cells} tokens for {path}: {LOG.last_error or 'out of memory?'}"
            )
        self.cells: int = self._library.llama_n_ctx(self._context)
        found = (
            self._library.llama_n_ctx_seq(self._context),
            self._library.llama_n_batch(self._context),
            self._library.llama_n_seq_max(self._context),
        )
        if found != (self.cells, batch, sequences):
            raise EngineError(f"xllamacpp {version()} does not take the parameters as this build gives them: {found}")
        self._library.llama_set_n_threads(self._context, threads, threads)
        self._memory = self._library.llama_get_memory(self._context)

    def _allocate(self, batch: int) -> None:
        self.token = np.zeros(batch, np.int32)
        self.position = np.zeros(batch, np.int32)
        self.sequence = np.zeros(batch, np.int32)
        self.wanted = np.zeros(batch, np.int8)
        self._ones = np.ones(batch, np.int32)
        self._pointers = self.sequence.ctypes.data + 4 * np.arange(batch, dtype=np.uint64)
        self._batch = LlamaBatch(
            token=self.token.ctypes.data,
            pos=self.position.ctypes.data,
            n_seq_id=self._ones.ctypes.data,
            seq_id=self._pointers.ctypes.data,
            logits=self.wanted.ctypes.data,
        )

    def _watch_for_abort(self) -> None:
        self._abort_flag = ctypes.create_string_buffer(2)
        # The callback is asked after each operation of the graph. A Python function would need the GIL each time;
        # strlen of a text that is empty or one byte long says the same.
        strlen = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p)
        self._library.llama_set_abort_callback(self._context, strlen, ctypes.addressof(self._abort_flag))

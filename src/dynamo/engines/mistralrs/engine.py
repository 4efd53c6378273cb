"""The engine: a bounded pool of threads that each read one answer, and a queue back to the event loop.

mistral.rs batches the answers itself. Its calls block, and its `Runner` can only be used by one thread at a time, so a
request is sent under a lock, which takes no time; the iterator it returns is then read without the lock.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo.engines.base import EngineError, EngineInfo, Running
from dynamo.engines.mistralrs.load import MistralRsArgs, describe, load, most_sequences
from dynamo.engines.mistralrs.options import plan
from dynamo.engines.mistralrs.stream import MistralRsStream
from dynamo.engines.mistralrs.vocabulary import Vocabulary
from dynamo.engines.registry import EngineSpec
from dynamo.protocols.card import ModelInput
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import EngineShutdown, InvalidArgument
from dynamo.runtime.stream import Sink

if TYPE_CHECKING:
    from dynamo.engines.grammar_guide import GrammarGuide, Guides

log = logging.getLogger(__name__)


class MistralRsEngine:
    """mistral.rs with token ids in and out. At most `max_seqs` answers run at a time; the others are queued here."""

    model_input = ModelInput.Tokens

    def __init__(self, spec: EngineSpec) -> None:
        if spec.model is None:
            raise EngineError("mistralrs needs a model: a folder, a GGUF file or a Hugging Face id")
        self._spec = spec
        self._model = spec.model
        self._args = MistralRsArgs.from_spec(spec)
        self._streams: set[MistralRsStream] = set()
        self._reading: set[Future[None]] = set()
        self._send = threading.Lock()
        self._seed_logged = False
        self._guides: Guides | None = None
        self._runner: Any = None

    async def start(self) -> EngineInfo:
        # Loading holds the GIL most of the time, so nothing else runs meanwhile: start before serving. The thread is
        # for the rest of it, such as reading a large file.
        begun = time.perf_counter()
        version = importlib.metadata.version("mistralrs")
        log.info("loading %s with mistralrs %s", self._model.path, version)
        try:
            self.context_length = await asyncio.to_thread(self._load)
        except BaseException:
            self._runner = None
            raise
        self._mailbox = LoopMailbox(asyncio.get_running_loop())
        self._pool = ThreadPoolExecutor(self._max_seqs, thread_name_prefix="mistralrs")
        log.info(
            "loaded %s in %.1f s: context of %d tokens, up to %d answers at a time",
            self._model.path, time.perf_counter() - begun, self.context_length, self._max_seqs,
        )  # fmt: skip
        return EngineInfo(
            context_length=self.context_length,
            max_num_seqs=self._max_seqs,
            guided_decoding=True,
            resumes_guided=True,
        )

    def _load(self) -> int:
        described = describe(self._spec)
        self._max_seqs = most_sequences(self._model, self._args)
        ends = described.eos_token_ids
        self._vocabulary = Vocabulary(described.tokenizer, ends[0] if ends else None, rename=not self._model.is_gguf)
        self._tokenizer, self._ends = described.tokenizer, ends
        with tempfile.TemporaryDirectory(prefix="dynamo-mistralrs-", ignore_cleanup_errors=True) as folder:
            self._runner = load(self._model, self._args, self._max_seqs, self._vocabulary, Path(folder))
        possible = self._runner.max_sequence_length() or described.context_length
        asked = self._spec.context_length
        if asked is None:
            if possible is None:
                raise EngineError(f"mistralrs does not know the context length of {self._model.path}: give one")
            return int(possible)
        if asked < 1 or (possible is not None and asked > possible):
            raise EngineError(f"context length {asked} is not within what the model can do, 1 to {possible}")
        return asked

    def generate(self, request: PreprocessedRequest, sink: Sink) -> Running:
        """Start one answer; if the request is invalid, its sink fails at once."""
        if self._runner is None:
            sink.fail(EngineShutdown("mistralrs is not running"))
            return _NOT_RUNNING
        try:
            planned = plan(request, self._vocabulary, self.context_length)
        except InvalidArgument as error:
            sink.fail(error)
            return _NOT_RUNNING
        if request.sampling_options.seed is not None and not self._seed_logged:
            self._seed_logged = True
            log.info("mistralrs cannot seed single requests: seeds are accepted and have no effect")
        guidance = request.sampling_options.guided_decoding
        stream = MistralRsStream(
            planned,
            self._vocabulary,
            sink,
            self._open,
            self._mailbox.post,
            self._streams.discard,
            partial(self._guide, guidance) if guidance else None,
        )
        self._streams.add(stream)
        stream.queued = self._pool.submit(stream.follow)
        self._reading.add(stream.queued)
        stream.queued.add_done_callback(self._reading.discard)
        return stream

    def quiet(self) -> bool:
        # An aborted answer keeps its slot until its thread has read the next token.
        return not self._streams and not self._reading

    def _guide(self, guidance: dict[str, Any]) -> GrammarGuide | None:
        """Follows a grammar beside mistral.rs; called in the pool."""
        # Only guided answers pay for the import of numpy and llguidance.
        from dynamo.engines.grammar_guide import Guides

        if self._guides is None:
            self._guides = Guides("mistralrs", self._tokenizer, self._tokenizer.vocab_size, self._ends)
        try:
            return self._guides.guide(guidance)
        except InvalidArgument:
            return None  # mistral.rs has its own version of the library, and judges grammars itself

    def _open(self, parameters: dict[str, Any]) -> Any:
        import mistralrs

        request = mistralrs.ChatCompletionRequest(**parameters)
        with self._send:
            return self._runner.send_chat_completion_request(request)

    async def close(self) -> None:
        if self._runner is None:
            return
        for stream in tuple(self._streams):
            stream.fail(EngineShutdown("engine shutting down"))
        # A thread ends at its next token.
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
        self._runner = None
        if self._guides is not None:
            await asyncio.to_thread(self._guides.close)


class LoopMailbox:
    """A queue from the threads to the event loop, which is woken once for all that is in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False

    def post(self, deliver: Callable[[Any], None], what: Any) -> None:
        """Call `deliver(what)` on the event loop, in order."""
        self._posted.append((deliver, what))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Cleared first: whatever is posted from now on wakes the loop again, or is still delivered in this round.
        self._woken = False
        while self._posted:
            deliver, what = self._posted.popleft()
            deliver(what)


class _NotRunning:
    def abort(self) -> None:
        """There is nothing to free."""


_NOT_RUNNING = _NotRunning()

"""One answer: a thread reads it from mistral.rs, and the event loop passes it to its sink."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from dynamo.engines.mistralrs.load import one_line
from dynamo.engines.mistralrs.options import Plan
from dynamo.engines.mistralrs.vocabulary import Vocabulary
from dynamo.protocols.engine import EngineOutput, TopLogprob, Usage
from dynamo.protocols.errors import Cancelled, DynamoException, InvalidArgument, Unknown, from_exception
from dynamo.runtime.stream import Sink

if TYPE_CHECKING:
    from dynamo.engines.grammar_guide import GrammarGuide

log = logging.getLogger(__name__)


class MistralRsStream:
    """`follow` runs in a thread of the pool; all other methods are called on the event loop."""

    def __init__(
        self,
        plan: Plan,
        vocabulary: Vocabulary,
        sink: Sink,
        open_stream: Callable[[dict[str, Any]], Any],
        post: Callable[[Callable[[Any], None], Any], None],
        forget: Callable[[MistralRsStream], None],
        guide: Callable[[], GrammarGuide | None] | None = None,
    ) -> None:
        """`guide` follows the same grammar as mistral.rs does, to close the answer before its limit."""
        self._make_guide = guide
        self._guide: GrammarGuide | None = None
        self._plan = plan
        self._vocabulary = vocabulary
        self._sink = sink
        self._open = open_stream
        self._post = post
        self._forget = forget
        self._generated: list[int] = []
        self._count = 0
        self._done = False
        self._ended = False
        """The last token that was read ended the answer, or nobody wants it any more."""
        self.queued: Future[None] | None = None

    def abort(self) -> None:
        self.fail(Cancelled("request was cancelled"))

    def fail(self, error: DynamoException) -> None:
        if not self._done:
            self._finish()
            self._sink.fail(error)

    def _finish(self) -> None:
        """At its next token the thread closes the stream, and so frees the engine's slot."""
        self._done = True
        self._forget(self)
        if self.queued is not None:
            self.queued.cancel()

    def _deliver(self, what: list[int] | EngineOutput | DynamoException) -> None:
        if self._done:
            return
        try:
            if isinstance(what, list):
                self._sink.tokens(what)
            elif isinstance(what, DynamoException):
                self.fail(what)
            else:
                self._sink.item(what)
                if what.finish_reason is not None and not self._done:
                    self._finish()
                    self._sink.end()
        except Exception as error:  # a sink's failure must not affect other answers
            log.exception("the sink of an answer failed")
            self.fail(from_exception(error))

    def follow(self) -> None:
        """Run the answer to its end. With `ignore_eos` and before `min_tokens`, mistral.rs is kept from ending it."""
        plan = self._plan
        try:
            if self._make_guide is not None:
                self._guide = self._make_guide()
            if plan.resumed:
                self._resume()
                return
            ended = False
            held = plan.max_tokens if plan.ignore_eos else plan.min_tokens
            if held:
                ended = self._follow(held, may_end=False)
            if not ended and self._count < plan.max_tokens:
                self._follow(plan.max_tokens - self._count, may_end=True)
        except BaseException as error:  # a panic in the library is not an Exception, and the sink must learn of it
            self._post(self._deliver, self._explain(error))

    def _resume(self) -> None:
        """Continue a guided answer: mistral.rs's own grammar can only begin, so each token is asked for by itself."""
        guide, plan = self._guide, self._plan
        if guide is None:
            raise Unknown("this grammar cannot be followed from the middle of an answer")
        guide.resume(plan.resumed, plan.max_tokens)
        while not guide.complete:
            banned = (~guide.allowed()).nonzero()[0].tolist()
            if self._step(plan.next_token(self._vocabulary, self._generated, banned)):
                return
        self._count += 1  # the end token, the only one that may follow
        self._end("stop", hidden=True)

    def _step(self, parameters: dict[str, Any]) -> bool:
        """Pass on one token; returns whether the answer ended."""
        before = len(self._generated)
        for chunk in self._chunks(parameters):
            choice = chunk.choices[0]
            if choice.finish_reason == "stop":
                self._count += choice.logprobs is None
                self._end("stop", hidden=choice.logprobs is None)
                return True
        if self._ended:
            return True
        if self._count >= self._plan.max_tokens:
            self._end("length", hidden=False)
            return True
        if len(self._generated) == before or self._guide is None:
            raise Unknown("mistralrs chose a token that the grammar does not have")
        return False

    def _follow(self, limit: int, *, may_end: bool) -> bool:
        """Pass on up to `limit` tokens; returns whether the answer ended."""
        parameters = self._plan.request(self._vocabulary, self._generated, limit, may_end=may_end)
        before = self._count
        for chunk in self._chunks(parameters):
            choice = chunk.choices[0]
            reason = choice.finish_reason
            if reason is None:
                continue
            # The engine also counts tokens that it cannot report.
            self._count = before + chunk.usage.completion_tokens
            self._check(chunk.usage.prompt_tokens, len(self._plan.prompt) + before)
            if reason == "length" and not may_end and self._count < self._plan.max_tokens:
                return False
            self._end("length" if reason == "length" else "stop", hidden=choice.logprobs is None)
            return True
        if not self._ended and not self._done:
            raise RuntimeError("mistralrs ended the answer without a reason")
        return True

    def _chunks(self, parameters: dict[str, Any]) -> Iterator[Any]:
        """The chunks of one request, after their tokens were passed on; none after the one that ends the answer."""
        for chunk in self._open(parameters):
            sampled = chunk.choices[0].logprobs
            self._ended = self._done or (sampled is not None and self._token(sampled))
            if self._ended:
                return
            yield chunk

    def _token(self, sampled: Any) -> bool:
        """Pass on one token; returns whether the answer ends with it."""
        piece = bytes(sampled.bytes or b"")
        id = self._vocabulary.id_of(piece)
        self._count += 1
        if id is None:
            self._guide = None  # it cannot follow what has no id
            self._post(self._deliver, EngineOutput(text=piece.decode(errors="replace")))
            return False
        plan = self._plan
        if self._guide is not None and (last := self._led_to_end(self._guide, id)):
            self._close(last)
            return True
        self._generated.append(id)
        ends = id in plan.ends and self._count >= plan.min_tokens
        if not ends and plan.logprobs is None:
            self._post(self._deliver, [id])
            return False
        output = EngineOutput(token_ids=[id])
        if plan.logprobs is not None:
            output.log_probs = [sampled.logprob]
            output.top_logprobs = [
                [
                    TopLogprob(token_id=top.token, logprob=top.logprob, rank=rank)
                    for rank, top in enumerate(sampled.top_logprobs, 1)
                ]
            ]
        if ends:
            output.finish_reason = "stop"
            output.stop_reason = id if id in plan.stop_ids else None
            output.completion_usage = self._usage()
        self._post(self._deliver, output)
        return ends

    def _led_to_end(self, guide: GrammarGuide, id: int) -> list[int] | None:
        """The tokens that must end the answer, `id` among them or not; None while there is room."""
        left = self._plan.max_tokens - self._count
        try:
            taken = guide.accept(id, left)
        except InvalidArgument:
            self._guide = None
            return None
        if taken != id:
            return [taken, *guide.closing]
        return [id] if not left and guide.complete else None

    def _close(self, ids: list[int]) -> None:
        """End the answer with these tokens in place of the last one: mistral.rs would go on until its limit."""
        self._count += len(ids) - 1
        output = EngineOutput(token_ids=ids, finish_reason="stop", completion_usage=self._usage())
        if self._plan.logprobs is not None:
            output.log_probs = [0.0] * len(ids)  # no other token was possible
            output.top_logprobs = [[TopLogprob(token_id=id, logprob=0.0, rank=1)] for id in ids]
        self._post(self._deliver, output)

    def _end(self, reason: str, *, hidden: bool) -> None:
        output = EngineOutput(finish_reason=reason, completion_usage=self._usage())
        end = self._vocabulary.end
        if reason == "stop" and hidden and end in self._plan.ends:
            output.token_ids = [end]
        self._post(self._deliver, output)

    def _usage(self) -> Usage:
        prompt = len(self._plan.prompt)
        return Usage(prompt_tokens=prompt, completion_tokens=self._count, total_tokens=prompt + self._count)

    def _check(self, counted: int, sent: int) -> None:
        if counted != sent:
            log.warning("mistralrs read a prompt of %d tokens as %d", sent, counted)

    def _explain(self, error: BaseException) -> DynamoException:
        if isinstance(error, DynamoException):
            return error
        message = one_line(error)
        # A grammar is compiled before the first token; a later failure is not the client's mistake.
        if "grammar" in self._plan.parameters and not self._count and isinstance(error, ValueError):
            return InvalidArgument(f"guided_decoding: {message}")
        log.error("mistralrs failed: %s", message, exc_info=error)
        return Unknown(f"mistralrs failed: {message}")

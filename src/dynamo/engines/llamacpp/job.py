"""One request, as the engine's thread works on it, and how a request becomes one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynamo.engines.grammar_guide import GrammarGuide
from dynamo.engines.llamacpp.blocks import Held
from dynamo.engines.llamacpp.sampling import Sampler
from dynamo.engines.request_options import reject_options
from dynamo.kv.block_names import BlockNames
from dynamo.kv.tiers import TierFetch
from dynamo.protocols.engine import PreprocessedRequest, SamplingOptions, TopLogprob, Usage
from dynamo.protocols.errors import ContextLengthExceeded, InvalidArgument
from dynamo.runtime.stream import Sink

_SEEDS = 1 << 64
_LACKS = ("use_beam_search", "best_of", "a LoRA adapter", "kv_transfer_params")


class Job:
    """Tokens so far, how many of them are computed, and when it ends."""

    __slots__ = (
        "aborted",
        "cached_tokens",
        "computed",
        "ends",
        "fetch",
        "guide",
        "held",
        "logprobs",
        "max_tokens",
        "min_tokens",
        "names",
        "prompt_logprobs",
        "prompt_tokens",
        "restoring",
        "resumed",
        "sampler",
        "scored",
        "scoring",
        "sink",
        "stop_ids",
        "tokens",
    )

    def __init__(
        self, request: PreprocessedRequest, sink: Sink, *, context_length: int, vocab_size: int, names: BlockNames
    ) -> None:
        """Raises InvalidArgument for unsupported options and for a prompt that does not fit into the context."""
        reject_options("llamacpp", request, *_LACKS)
        self.sink = sink
        self.tokens = _prompt(request.token_ids, vocab_size)
        self.prompt_tokens = len(self.tokens)
        room = context_length - self.prompt_tokens
        if room < 1:
            raise ContextLengthExceeded(
                f"the prompt has {self.prompt_tokens} tokens, which leaves no room in a context of {context_length}",
                tokens=self.prompt_tokens,
                limit=context_length,
            )
        stops = request.stop_conditions
        if stops.max_tokens is not None and stops.max_tokens < 1:
            raise InvalidArgument(f"max_tokens must be at least 1, not {stops.max_tokens}")
        self.max_tokens = room if stops.max_tokens is None else min(room, stops.max_tokens)
        self.min_tokens = min(stops.min_tokens or 0, self.max_tokens)
        self.stop_ids = frozenset(stops.stop_token_ids or ())
        natural = () if stops.ignore_eos else (*(stops.stop_token_ids_hidden or ()), *request.eos_token_ids)
        # Ids that the model does not have never come; where tokens are banned, they must not be used as indices.
        self.ends = frozenset(id for id in self.stop_ids.union(natural) if 0 <= id < vocab_size)
        self.logprobs = request.output_options.logprobs
        self.prompt_logprobs = request.output_options.prompt_logprobs or 0
        self.scoring = request.output_options.prompt_logprobs is not None
        """The log probabilities of the prompt are still to be sent, so all of it must be computed."""
        self.scored: list[list[TopLogprob] | None] = [None]
        """Those of the prompt's tokens so far; the first has no context."""
        first = max(0, self.prompt_tokens - request.resumed_tokens)
        self.resumed = self.tokens[first:]
        """The end of the prompt: what another worker generated of this answer."""
        self.sampler = _sampler(request.sampling_options, request.choice, vocab_size)
        self.sampler.see(self.tokens[:first], self.resumed, vocab_size)
        self.guide: GrammarGuide | None = None
        routing = request.routing
        self.names = names.chain(routing.cache_salt if routing else None)
        self.held: Held | None = None
        self.computed = 0
        self.cached_tokens: int | None = None
        self.aborted = False
        self.fetch: TierFetch | None = None
        """What is being read, or was read, of its prefix."""
        self.restoring = False
        """The blocks that follow the computed ones may be in a tier."""

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.generated,
            total_tokens=len(self.tokens),
            prompt_tokens_details={"cached_tokens": self.cached_tokens or 0},
        )

    @property
    def plain(self) -> bool:
        """Its next token may be sampled together with those of others."""
        return self.sampler.plain and self.guide is None and self.generated >= self.min_tokens

    @property
    def hashes(self) -> list[int]:
        """The names of its blocks, as far as they were asked for."""
        return self.names.names

    def hash_up_to(self, blocks: int) -> None:
        """Know the names of the first `blocks` blocks."""
        self.names.extend(self.tokens, blocks)


def _prompt(ids: Sequence[int], vocab_size: int) -> list[int]:
    tokens = list(ids)
    if not tokens:
        raise InvalidArgument("the prompt is empty")
    if not all(isinstance(id, int) for id in tokens) or min(tokens) < 0 or max(tokens) >= vocab_size:
        raise InvalidArgument(f"token ids must be integers from 0 to {vocab_size - 1}")
    return tokens


def _sampler(options: SamplingOptions, choice: int, vocab_size: int) -> Sampler:
    repetition = 1.0 if options.repetition_penalty is None else options.repetition_penalty
    if repetition <= 0:
        raise InvalidArgument(f"repetition_penalty must be above 0, not {repetition}")
    return Sampler(
        temperature=1.0 if options.temperature is None else options.temperature,
        top_p=1.0 if options.top_p is None else options.top_p,
        top_k=options.top_k or 0,
        min_p=options.min_p or 0.0,
        presence=options.presence_penalty or 0.0,
        frequency=options.frequency_penalty or 0.0,
        repetition=repetition,
        bias=_bias(options.logit_bias, vocab_size),
        seed=None if options.seed is None else (options.seed + choice) % _SEEDS,
    )


def _bias(logit_bias: dict[str, float] | None, vocab_size: int) -> dict[int, float]:
    try:
        bias = {int(id): float(value) for id, value in (logit_bias or {}).items()}
    except (TypeError, ValueError):
        raise InvalidArgument("logit_bias: keys must be token ids and values numbers") from None
    if any(not 0 <= id < vocab_size or not math.isfinite(value) for id, value in bias.items()):
        raise InvalidArgument(f"logit_bias: keys must be token ids below {vocab_size} and values finite numbers")
    return bias

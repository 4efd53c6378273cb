"""Requests as the engine's process takes them, checked by vLLM.

vLLM builds and checks the sampling parameters of each request anew, which takes most of the time until a request is
sent. Most requests have the options of one before them: those get a copy of its request with their own prompt.
"""

from __future__ import annotations

import copy
import time
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.async_llm import AsyncLLM

from dynamo.engines.vllm.adapters import VllmAdapters
from dynamo.engines.vllm.environment import installed
from dynamo.engines.vllm.options import SALT_PREFIX, sampling_params
from dynamo.protocols.engine import PreprocessedRequest, Routing
from dynamo.protocols.errors import InvalidArgument

_MOST_OPTIONS = 1024
"""Sets of options to remember."""
_NO_ROUTING = Routing()


class Intake:
    def __init__(self, llm: AsyncLLM, tasks: Sequence[str], adapters: VllmAdapters) -> None:
        config = llm.vllm_config
        self._process = llm.input_processor.process_inputs
        self._tasks = tasks
        self._adapters = adapters
        self._ranks = len(llm.engine_core.engine_ranks_managed)
        self._thinks = bool(getattr(config.reasoning_config, "enabled", False))
        self._most_tokens = config.model_config.max_model_len
        self._vocabulary = config.model_config.get_vocab_size()
        self._greedy_only = installed().cpu and config.speculative_config is not None
        self._unchecked_ids = config.model_config.skip_tokenizer_init
        self._encoder = msgspec.msgpack.Encoder()
        self._known: dict[bytes, Any] = {}

    def from_known(self, request_id: str, request: PreprocessedRequest) -> Any | None:
        """A copy of an earlier request with the same options, or None: only `checked` can judge this one."""
        options, ids, routing = self._options(request), request.token_ids, request.routing or _NO_ROUTING
        known = self._known.get(options) if options is not None else None
        if (
            known is None
            or not isinstance(ids, array)
            or not 0 < len(ids) < self._most_tokens
            or max(ids) >= self._vocabulary
            or not 0 <= (routing.dp_rank or 0) < self._ranks
        ):
            return None
        made = copy.copy(known)
        made.request_id = request_id
        made.prompt_token_ids = ids.tolist()
        made.arrival_time = time.time()
        made.cache_salt = _salt(routing)
        made.priority = -(routing.priority or 0)
        made.data_parallel_rank = self._rank(routing)
        return made

    def checked(self, request_id: str, request: PreprocessedRequest, params: Any) -> Any:
        """Raises InvalidArgument, or an error of vLLM's."""
        routing = request.routing or _NO_ROUTING
        made = self._process(
            request_id,
            tokens_input(self._token_ids(request.token_ids), cache_salt=_salt(routing)),
            params,
            supported_tasks=self._tasks,
            # A higher priority goes first for dynamo, a lower one for vLLM.
            priority=-(routing.priority or 0),
            data_parallel_rank=self._rank(routing),
            lora_request=self._adapters.find(routing.lora_name) if routing.lora_name else None,
        )
        if made.sampling_params is not None and (options := self._options(request)) is not None:
            if len(self._known) >= _MOST_OPTIONS:
                self._known.clear()
            self._known[options] = known = copy.copy(made)
            known.prompt_token_ids = []
        return made

    def params(self, request: PreprocessedRequest) -> Any:
        if self._greedy_only and request.sampling_options.temperature != 0:
            raise InvalidArgument(
                "temperature must be 0: this worker guesses tokens ahead, with which vLLM for CPUs samples wrong ones"
            )
        return sampling_params(request, thinks=self._thinks)

    def _options(self, request: PreprocessedRequest) -> bytes | None:
        """Equal for requests whose parameters are the same; None where they depend on more than the options."""
        sampling, stops, routing = request.sampling_options, request.stop_conditions, request.routing
        if (
            stops.max_tokens is None  # then it is what the prompt leaves
            or sampling.seed is not None  # seldom the same twice
            or sampling.guided_decoding
            or request.kv_transfer_params
            or (routing is not None and routing.lora_name)
        ):
            return None
        return self._encoder.encode((sampling, stops, request.output_options, request.eos_token_ids))

    def _rank(self, routing: Routing) -> int | None:
        return routing.dp_rank if self._ranks > 1 else None

    def _token_ids(self, ids: Sequence[int]) -> list[int]:
        """vLLM checks ids against the vocabulary only where it has a tokenizer; a wrong one kills a GPU engine."""
        try:
            packed = ids if isinstance(ids, array) else array("I", ids)
        except (OverflowError, TypeError):
            raise InvalidArgument("token ids must be integers from 0 to 4294967295") from None
        if self._unchecked_ids and packed and max(packed) >= self._vocabulary:
            raise InvalidArgument(f"token id {max(packed)} is not in the model's vocabulary")
        return packed.tolist()


def _salt(routing: Routing) -> str | None:
    return f"{SALT_PREFIX}{routing.cache_salt}" if routing.cache_salt else None

"""Requests to and outputs of a token-level engine.

A handler written in Python sees these structs as plain dicts, so the field names are a contract with engine authors.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, convert, field


class StopConditions(Struct, kw_only=True):
    max_tokens: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_token_ids_hidden: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    max_thinking_tokens: int | None = None


class SamplingOptions(Struct, kw_only=True):
    n: int | None = None
    best_of: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    seed: int | None = None
    include_stop_str_in_output: bool | None = None
    logit_bias: dict[str, float] | None = None
    guided_decoding: dict[str, Any] | None = None


class OutputOptions(Struct, kw_only=True):
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    formatted_prompt: bool | None = None


class Tenant(Struct, frozen=True):
    """On whose behalf a request is made; tenants share what is scarce by their weights."""

    name: str
    weight: float = 1.0
    keys: int = 0
    """How many there are of its kind, itself included; 0 where tenants are not told apart."""
    background: bool = False
    """It is served when no tenant in the foreground waits: a batch."""
    cache_salt: str = ""
    """What keeps its cached prefixes apart from those of others; empty where all share them."""

    @property
    def shares(self) -> bool:
        """Others have keys too, so what it asks for passes the fair queue."""
        return self.keys > 1


class Session(Struct, frozen=True):
    """The conversation of an agent, of which a request is one turn. It belongs to an API key."""

    id: str
    owner: str = ""
    parent: str = ""
    """The session of the agent that started this one; empty where there is none."""
    final: bool = False
    """The agent says that this is its last turn."""
    named: bool = True
    """The client named it; otherwise it is guessed from how the prompt begins, and binds no worker."""


class SessionName(Struct, frozen=True, array_like=True):
    """What a worker knows of a session: names by which it tells sessions and their tenants apart."""

    digest: str
    tenant: str = ""


class Routing(Struct, kw_only=True, omit_defaults=True):
    """What the client asked of the router, and the part of the router's choice that the worker must know."""

    backend_instance_id: int | None = None
    dp_rank: int | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    strict_priority: int | None = None
    """The tier in the router's queue: a higher one goes first, whatever the policy."""
    expected_output_tokens: int | None = None
    prefill_worker_id: int | None = None
    """From the client, where the prompt must be computed; for a decode worker, where it was."""
    prefill_dp_rank: int | None = None
    session: SessionName | None = None
    """Set by the router where workers are told of pauses."""


class PrefillResult(Struct, kw_only=True, omit_defaults=True):
    """What a prefill worker answered, for the decode worker that continues."""

    disaggregated_params: dict[str, Any]
    prompt_tokens_details: dict[str, Any] | None = None


class BootstrapInfo(Struct, kw_only=True, omit_defaults=True):
    """Where the two workers of one request meet: both get it at the same time."""

    bootstrap_host: str
    bootstrap_port: int
    bootstrap_room: int
    handoff_id: str | None = None


class PreprocessedRequest(Struct, kw_only=True):
    """One prompt as token ids, with everything an engine needs to continue it."""

    model: str = ""
    token_ids: Sequence[int]
    """An `array("I")` in our own pipeline and after decoding, a list in requests built by other programs."""
    stop_conditions: StopConditions = field(default_factory=StopConditions)
    sampling_options: SamplingOptions = field(default_factory=SamplingOptions)
    output_options: OutputOptions = field(default_factory=OutputOptions)
    resumed_tokens: int = 0
    """How many of the last `token_ids` are part of the answer: another worker generated them before it failed. Its
    grammar, penalties and random numbers go on from there, where the engine can do that."""
    choice: int = 0
    """Index of this choice among the `n` for one prompt. Engines that sample at random may ignore it."""
    eos_token_ids: list[int] = []
    mdc_sum: str | None = None
    annotations: list[str] = []
    routing: Routing | None = None
    kv_transfer_params: dict[str, Any] | None = None
    prefill_result: PrefillResult | None = None
    bootstrap_info: BootstrapInfo | None = None
    extra_args: dict[str, Any] | None = None
    dimensions: int | None = None
    """The dimensions of an embedding; None: all that the model has."""

    @classmethod
    def from_dict(cls, request: Mapping[str, Any]) -> PreprocessedRequest:
        """From a caller's dict, whose `token_ids` may be an array; raises `msgspec.ValidationError`."""
        token_ids = request.get("token_ids")
        if isinstance(token_ids, array):
            request = {**request, "token_ids": token_ids.tolist()}
        return convert(request, cls)


class TopLogprob(Struct, kw_only=True, omit_defaults=True):
    token_id: int
    logprob: float
    rank: int | None = None
    token: str | None = None
    bytes: list[int] | None = None


class Usage(Struct, kw_only=True, omit_defaults=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None

    def consistent(self) -> Usage:
        """The same figures made to add up: no part is negative or exceeds its whole."""
        prompt, completion = max(0, self.prompt_tokens), max(0, self.completion_tokens)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=_within(self.prompt_tokens_details, prompt),
            completion_tokens_details=_within(self.completion_tokens_details, completion),
        )


def _within(details: dict[str, Any] | None, whole: int) -> dict[str, Any] | None:
    if details is None:
        return None
    return {
        name: min(max(0, value), whole) if name in _PARTS and isinstance(value, int) else value
        for name, value in details.items()
    }


_PARTS = ("cached_tokens", "audio_tokens", "reasoning_tokens")


class EngineOutput(Struct, kw_only=True, omit_defaults=True):
    """One step of one request: the new tokens only, with `finish_reason` set on the last step.

    `finish_reason` is eos, stop, length, cancelled, content_filter or "error: why".
    """

    token_ids: list[int] = []
    text: str | None = None
    tokens: list[str | None] | None = None
    cum_log_probs: float | None = None
    log_probs: list[float] | None = None
    top_logprobs: list[list[TopLogprob]] | None = None
    prompt_logprobs: list[list[TopLogprob] | None] | None = None
    """One entry per prompt token, which must include that token itself; None for the first."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    index: int | None = None
    completion_usage: Usage | None = None
    kv_transfer_params: dict[str, Any] | None = None
    disaggregated_params: dict[str, Any] | None = None
    extra_args: dict[str, Any] | None = None

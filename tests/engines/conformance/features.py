"""Which engine has which feature: the tests of this folder and the table in docs/engines.md follow from it.

A feature that an engine lacks is refused by name, never passed over in silence. The only exception is a seed, which
OpenAI calls best effort: it may be accepted without effect if the log says so.
"""

from __future__ import annotations

import importlib.util
import os
from enum import StrEnum
from typing import Any

from msgspec import Struct


class Has(StrEnum):
    YES = "yes"
    REFUSED = "refused"
    LOGGED = "no effect, logged"
    LOADED = "if loaded"
    """Refused by name unless the operator has loaded it."""
    NONE = "–"
    """It does not declare the feature, so nothing can ask for it."""


class Feature(Struct, frozen=True):
    title: str
    test: str
    engines: dict[str, Has]


ENGINES = ("mistralrs", "vllm", "llamacpp", "mocker", "echo_core")
ON_A_GPU = ("sglang",)
"""Tested by `benchmarks/gpu/sglang.py suite` alone, which names them in CONFORMANCE_ENGINE."""
NOT_SHOWN = ("killed",)
"""What no run of theirs has shown yet."""
MODELS = ("mistralrs", "vllm", "llamacpp", "sglang")
"""They compute with the weights."""


def _has(*engines: str, other: Has = Has.REFUSED, **more: Has) -> dict[str, Has]:
    return {name: more.get(name, Has.YES if name in engines else other) for name in (*ENGINES, *ON_A_GPU)}


_ALL = _has(*ENGINES, *ON_A_GPU)
FEATURES = {
    "greedy": Feature(
        "the model's greedy answers, equal in all engines", "test_greedy_answers_are_those_of_every_other_engine",
        _has(*MODELS, other=Has.NONE),
    ),
    "repeats": Feature("same request, same answer", "test_a_greedy_request_gets_the_same_answer_again", _ALL),
    "max_tokens": Feature("`max_tokens`", "test_an_answer_is_as_long_as_its_limit", _ALL),
    "eos": Feature("ends at the end token", "test_the_end_token_ends_an_answer", _has(*MODELS, other=Has.NONE)),
    "ignore_eos": Feature(
        "`ignore_eos`, `min_tokens`", "test_an_answer_goes_on_past_its_end_if_asked_to", _has(*MODELS, other=Has.NONE)
    ),
    "stop_ids": Feature("`stop_token_ids`", "test_a_stop_id_ends_an_answer", _ALL),
    "stop": Feature("stop strings", "test_a_stop_string_ends_an_answer", _ALL),
    "n": Feature("`n` choices", "test_every_choice_of_n_is_an_answer", _ALL),
    "sampling": Feature(
        "temperature, `top_p`, `top_k`, `min_p`, penalties, `logit_bias`", "test_sampling_options_change_the_answer",
        _has(*MODELS, other=Has.NONE),
    ),
    "seed": Feature(
        "`seed`", "test_a_seed_repeats_an_answer_or_is_logged_as_without_effect",
        _has("vllm", "llamacpp", "mocker", mistralrs=Has.LOGGED, sglang=Has.LOGGED, echo_core=Has.NONE),
    ),
    "logprobs": Feature("`logprobs`", "test_log_probabilities_belong_to_their_tokens", _has(*MODELS, "mocker")),
    "prompt_logprobs": Feature(
        "`prompt_logprobs`", "test_a_prompt_has_log_probabilities_too", _has("llamacpp", "vllm", "mocker", "sglang")
    ),
    "guided": Feature(
        "guided decoding: JSON, regex, choice, grammar, tool calls", "test_100_of_100_guided_answers_are_valid",
        _has(*MODELS),
    ),
    "resumed": Feature(
        "guided decoding: continues what another worker began",
        "test_an_answer_that_another_worker_began_is_continued", _has(*MODELS, other=Has.NONE, sglang=Has.NONE),
    ),
    "structural_tag": Feature(
        "guided decoding: structural tags", "test_a_structural_tag_is_followed_or_refused", _has("vllm", "sglang")
    ),
    "beam_search": Feature("beam search, `best_of`", "test_what_an_engine_lacks_it_refuses_by_name", _has()),
    "lora": Feature("LoRA adapters", "test_what_an_engine_lacks_it_refuses_by_name", _has("mocker", vllm=Has.LOADED)),
    "overlong": Feature(
        "400 for a prompt longer than the context", "test_a_prompt_longer_than_the_context_is_the_clients_mistake", _ALL
    ),
    "mixed": Feature("32 mixed requests equal their solo runs", "test_32_mixed_requests_equal_their_solo_runs", _ALL),
    "abort": Feature("cancellation frees everything", "test_aborted_requests_free_everything", _ALL),
    "cached": Feature(
        "`cached_tokens` in the usage; `cache_salt`", "test_a_repeated_prefix_is_served_from_the_cache",
        _has("vllm", "llamacpp", "mocker", "sglang", other=Has.NONE),
    ),
    "kv_events": Feature(
        "KV events", "test_it_declares_what_the_table_says",
        _has("vllm", "llamacpp", "mocker", "sglang", other=Has.NONE),
    ),
    "load": Feature(
        "load", "test_it_declares_what_the_table_says", _has("vllm", "llamacpp", "mocker", "sglang", other=Has.NONE)
    ),
    "steps": Feature(
        "[recorded steps](traces.md#recorded-steps)", "test_it_declares_what_the_table_says",
        _has("vllm", "llamacpp", "mocker", other=Has.NONE),
    ),
    "clear_cache": Feature(
        "`POST /clear_kv_blocks`", "test_the_cache_can_be_emptied",
        _has("vllm", "llamacpp", "mocker", "sglang", other=Has.NONE),
    ),
    "metrics": Feature(
        "Prometheus metrics of its own", "test_it_declares_what_the_table_says",
        _has("vllm", "llamacpp", "sglang", other=Has.NONE),
    ),
    "death": Feature(
        "reports its death while the worker lives", "test_it_declares_what_the_table_says",
        _has("vllm", "llamacpp", "sglang", other=Has.NONE),
    ),
    "killed": Feature(
        "killed: its streams fail, the worker leaves and ends with an error",
        "test_a_worker_whose_engine_is_killed_leaves_with_an_error", _ALL,
    ),
    "parallel": Feature(
        "several GPUs and nodes", "test_several_gpus_are_accepted_or_refused_by_name", _has("vllm", "sglang")
    ),
    "flags": Feature("unknown flags refused before anything loads", "test_an_unknown_flag_is_refused_at_once", _ALL),
}  # fmt: skip


def engines_here() -> tuple[str, ...]:
    """An interpreter that has vLLM tests vLLM: the other engines are tested by the one of `make test`."""
    if named := os.environ.get("CONFORMANCE_ENGINE"):
        return (named,)
    found = importlib.util.find_spec("vllm")
    if found is not None and found.origin is not None:  # a folder of tests of that name is not vLLM
        return ("vllm",)
    return tuple(name for name in ENGINES if name != "vllm")


def those(feature: str, *states: Has) -> list[str]:
    """The engines here that have the feature, or for which it is in one of these states."""
    wanted = states or (Has.YES,)
    return [name for name in engines_here() if FEATURES[feature].engines[name] in wanted]


SETTINGS: dict[str, dict[str, Any]] = {
    "mistralrs": {"extra_engine_args": {"dtype": "f32"}},
    "llamacpp": {"extra_engine_args": {"n_threads": 1, "cache_type": "f32"}},
    "vllm": {"arguments": ["--kv-cache-memory-bytes", "64M"]},
    "sglang": {
        "arguments": [
            "--attention-backend", "triton", "--sampling-backend", "pytorch",
            "--mem-fraction-static", "0.2", "--max-total-tokens", "32768", "--max-running-requests", "64",
            "--disable-prefill-cuda-graph", "--disable-decode-cuda-graph",
            *os.environ.get("CONFORMANCE_FLAGS", "").split(),
        ],
    },
    "mocker": {"extra_engine_args": {"speedup_ratio": 10.0, "block_size": 16}},
    "echo_core": {"environ": {"DYN_TOKEN_ECHO_DELAY_MS": "1"}},
}  # fmt: skip
"""What makes answers independent of the batch they are computed in, and tests quick."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.model import Tokenizer
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.pipeline.parse import make_parser
from dynamo.pipeline.postprocess import Postprocess
from dynamo.protocols.engine import (
    EngineOutput,
    OutputOptions,
    PreprocessedRequest,
    SamplingOptions,
    StopConditions,
    TopLogprob,
    Usage,
)
from dynamo.protocols.errors import DynamoException, ProtocolError, Unknown
from support import models

PADDED_SIZE = 4096
TEXT = "Grüße aus Köln 🎉 and 你好世界"


@cache
def tokenizer(kind: str = "bytes") -> Tokenizer:
    return Tokenizer(models.byte_level_json() if kind == "bytes" else models.sentencepiece_json(), PADDED_SIZE)


class Heard:
    """A choice that records its calls."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.escaped_texts: list[str] = []
        self.tokens: list[TokenLogprob] = []
        self.finished: Finish | None = None
        self.error: DynamoException | None = None

    def escaped(self, text: str) -> None:
        plain = json.loads(f'"{text}"')
        self.escaped_texts.append(plain)
        self.text(plain)

    def text(self, text: str) -> None:
        self._add("text", text)

    def reasoning(self, text: str) -> None:
        self._add("reasoning", text)

    def tool_start(self, index: int, id: str, name: str) -> None:
        self._add(f"call {index}", f"{name}:")

    def tool_arguments(self, index: int, fragment: str) -> None:
        self._add(f"call {index}", fragment)

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        assert self.finished is None
        self.tokens += tokens

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None: ...

    def finish(self, finish: Finish) -> None:
        assert self.finished is None
        assert self.error is None
        self.finished = finish

    def fail(self, error: DynamoException) -> None:
        assert self.finished is None
        self.error = error

    def _add(self, kind: str, text: str) -> None:
        assert text
        assert self.finished is None
        self.said.append((kind, text))

    def all(self, kind: str = "text") -> str:
        return "".join(text for what, text in self.said if what == kind)


class Run:
    def __init__(
        self,
        *,
        parse: tuple[str | None, str | None] | None = None,
        kind: str = "bytes",
        eos: int | None = None,
        one_call: bool = False,
        include: bool = False,
        logprobs: int | None = 1,
        **conditions: Any,
    ) -> None:
        self.heard = Heard()
        self.stopped = 0
        if eos is not None:
            conditions["stop_token_ids_hidden"] = [eos]
        request = PreprocessedRequest(
            token_ids=[1, 2, 3],
            stop_conditions=StopConditions(**conditions),
            sampling_options=SamplingOptions(include_stop_str_in_output=include),
            output_options=OutputOptions(logprobs=logprobs),
        )
        self.sink = Postprocess(
            request,
            tokenizer(kind).decoder([], skip_special_tokens=True),
            self.heard,
            parser=make_parser(*parse, new_id=lambda: "id") if parse else None,
            one_call=one_call,
            stop_worker=self._stop,
        )

    def _stop(self) -> None:
        self.stopped += 1

    def feed(self, groups: list[list[int]], *, logprobs: bool = False, finish: str | None = "stop") -> Run:
        number = 0
        for ids in groups:
            if logprobs:
                values = [-float(number + n) for n in range(len(ids))]
                number += len(ids)
                tops = [[TopLogprob(token_id=id, logprob=value)] for id, value in zip(ids, values, strict=True)]
                self.sink.item(EngineOutput(token_ids=ids, log_probs=values, top_logprobs=tops))
            else:
                self.sink.tokens(ids)
        if finish:
            self.sink.item(EngineOutput(finish_reason=finish))
        self.sink.end()
        return self

    def result(self) -> tuple[Any, ...]:
        """Everything that must not depend on the grouping of the ids."""
        finished = self.heard.finished
        assert finished
        kinds = dict.fromkeys(kind for kind, _ in self.heard.said)
        told = [(token.token_id, token.logprob) for token in self.heard.tokens]
        return ({kind: self.heard.all(kind) for kind in kinds}, finished, told, bool(self.stopped))


def ids_of(text: str, kind: str = "bytes") -> list[int]:
    return tokenizer(kind).encode(text)


def grouped(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut <= len(ids))})
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


def one_by_one(ids: list[int]) -> list[list[int]]:
    return [[id] for id in ids]


ID = st.integers(0, 600)
PIECE = st.sampled_from(
    [
        "a",
        "END",
        "E",
        "N",
        "D",
        " the",
        "🎉",
        "ü",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "\n",
        "<|im_end|>",
        '{"name": "f", "arguments": {"a": 1}}',
        "你",
    ]
)


@settings(max_examples=400, deadline=None)
@given(
    pieces=st.lists(PIECE, max_size=12),
    noise=st.lists(ID, max_size=4),
    cuts=st.lists(st.integers(1, 60), max_size=8),
    stop=st.none() | st.lists(st.sampled_from(["END", "EN", "the", "🎉", "a", "</think>"]), min_size=1, max_size=2),
    min_tokens=st.none() | st.integers(0, 8),
    max_tokens=st.none() | st.integers(1, 30),
    stop_ids=st.none() | st.lists(ID, max_size=2),
    parse=st.sampled_from([None, ("hermes", "basic"), (None, "basic"), ("hermes", None)]),
    include=st.booleans(),
    logprobs=st.booleans(),
    kind=st.sampled_from(["bytes", "pieces"]),
    one_call=st.booleans(),
)
def test_however_tokens_are_grouped_the_answer_is_the_same(
    pieces: list[str], noise: list[int], cuts: list[int], kind: str, stop_ids: list[int] | None, logprobs: bool,
    **options: Any,
) -> None:  # fmt: skip
    ids = ids_of("".join(pieces), kind) + noise
    eos = tokenizer(kind).id_of("<|im_end|>" if kind == "bytes" else "</s>")
    results = [
        Run(eos=eos, kind=kind, stop_token_ids=stop_ids, **options).feed(groups, logprobs=logprobs).result()
        for groups in (one_by_one(ids), grouped(ids, cuts), [ids] if ids else [])
    ]
    assert results[0] == results[1] == results[2]


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30), cuts=st.lists(st.integers(1, 60), max_size=8), kind=st.sampled_from(["bytes"]))
def test_text_survives_tokenization_and_postprocessing(text: str, cuts: list[int], kind: str) -> None:
    ids = ids_of(text, kind)
    run = Run(kind=kind).feed(grouped(ids, cuts))
    assert run.heard.all() == tokenizer(kind).decode(ids)


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(PIECE, max_size=12),
    cuts=st.lists(st.integers(1, 60), max_size=8),
    stop=st.lists(st.sampled_from(["END", "EN", " the", "🎉"]), min_size=1, max_size=2),
)
def test_logprobs_are_those_of_the_text_shown(pieces: list[str], cuts: list[int], stop: list[str]) -> None:
    """Each reported token begins in the text shown, and together they cover it."""
    ids = ids_of("".join(pieces))
    run = Run(stop=stop).feed(grouped(ids, cuts), logprobs=True)
    told = [token.token_id for token in run.heard.tokens]
    assert told == ids[: len(told)]
    shown = run.heard.all().encode()
    special = tokenizer().special_ids
    covered = [b"" if id in special else tokenizer().token_bytes(id) for id in told]
    assert b"".join(covered).startswith(shown)
    if told and run.heard.finished and run.heard.finished.stop_reason:
        before = b"".join(covered[:-1])
        assert len(before) <= len(shown)


def test_a_character_split_over_tokens_is_never_shown_in_parts() -> None:
    ids = ids_of(TEXT)
    run = Run().feed(one_by_one(ids))
    assert run.heard.all() == TEXT
    assert not any("\ufffd" in text for _, text in run.heard.said)


def test_an_incomplete_character_is_shown_as_a_replacement_character() -> None:
    ids = ids_of("🎉")
    run = Run().feed([ids[:1]], finish="length")
    assert run.heard.all() == "\ufffd"
    assert run.heard.finished
    assert run.heard.finished.reason == "length"


def test_the_end_token_is_counted_but_not_shown() -> None:
    eos = tokenizer().id_of("<|im_end|>")
    assert eos is not None
    run = Run(eos=eos).feed(one_by_one([*ids_of("hi"), eos]), finish="eos")
    assert run.heard.all() == "hi"
    assert run.heard.finished
    assert run.heard.finished.usage.completion_tokens == len(ids_of("hi")) + 1
    assert run.heard.finished.stop_reason is None
    assert not run.stopped


def test_usage_sent_after_the_end_token_is_used() -> None:
    eos = tokenizer().id_of("<|im_end|>")
    assert eos is not None
    run = Run(eos=eos)
    run.sink.tokens([eos])
    assert run.heard.finished is None
    usage = Usage(prompt_tokens=3, prompt_tokens_details={"cached_tokens": 2})
    run.sink.item(EngineOutput(finish_reason="length", completion_usage=usage))
    assert run.heard.finished == Finish(
        "stop",
        Usage(prompt_tokens=3, completion_tokens=1, total_tokens=4, prompt_tokens_details={"cached_tokens": 2}),
    )


def test_an_engine_that_goes_on_after_the_end_token_is_stopped() -> None:
    eos = tokenizer().id_of("<|im_end|>")
    assert eos is not None
    run = Run(eos=eos)
    run.sink.tokens([eos])
    run.sink.tokens(ids_of("more"))
    assert run.stopped == 1
    assert run.heard.finished
    assert run.heard.all() == ""
    assert run.heard.finished.usage.completion_tokens == 1


def test_a_stream_that_breaks_after_the_end_token_is_complete() -> None:
    eos = tokenizer().id_of("<|im_end|>")
    assert eos is not None
    run = Run(eos=eos)
    run.sink.tokens([*ids_of("hi"), eos])
    run.sink.fail(Unknown("gone"))
    assert run.heard.error is None
    assert run.heard.finished
    assert run.heard.finished.reason == "stop"


def test_before_min_tokens_nothing_ends_the_answer() -> None:
    eos = tokenizer().id_of("<|im_end|>")
    assert eos is not None
    ids = [eos, *ids_of("END"), eos]
    run = Run(eos=eos, stop=["END"], min_tokens=len(ids)).feed(one_by_one(ids))
    assert run.heard.all() == "END"
    assert run.heard.finished
    assert run.heard.finished.usage.completion_tokens == len(ids)


def test_a_stop_string_that_ends_after_min_tokens_counts_though_it_began_before() -> None:
    ids = ids_of("E") + ids_of("N") + ids_of("D")
    assert len(ids) == 3
    run = Run(stop=["END"], min_tokens=3).feed(one_by_one(ids))
    assert run.heard.all() == ""
    assert run.heard.finished
    assert run.heard.finished.stop_reason == "END"
    later = Run(stop=["END"], min_tokens=4).feed(one_by_one(ids))
    assert later.heard.all() == "END"


@pytest.mark.parametrize(("include", "shown"), [(False, "one "), (True, "one two")])
def test_a_stop_string_is_shown_only_on_request(include: bool, shown: str) -> None:
    run = Run(stop=["two"], include=include).feed(one_by_one(ids_of("one two three")))
    assert run.heard.all() == shown
    assert run.heard.finished
    assert (run.heard.finished.reason, run.heard.finished.stop_reason) == ("stop", "two")
    assert run.stopped == 1


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_id_is_named_and_shown_only_on_request(include: bool) -> None:
    ids = ids_of("one two!")
    run = Run(stop_token_ids=[ids[-1]], include=include).feed([ids])
    assert run.heard.all() == ("one two!" if include else tokenizer().decode(ids[:-1]))
    assert run.heard.finished
    assert run.heard.finished.stop_reason == ids[-1]


def test_an_engine_that_overruns_the_limit_is_cut_there() -> None:
    ids = ids_of("one two three four")
    run = Run(max_tokens=3).feed([ids])
    assert run.heard.all() == tokenizer().decode(ids[:3])
    assert run.heard.finished
    assert run.heard.finished.reason == "length"
    assert run.heard.finished.usage.completion_tokens == 3
    assert run.stopped == 1


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("eos", "stop"),
        ("stop", "stop"),
        ("length", "length"),
        ("cancelled", "stop"),
        ("content_filter", "content_filter"),
        ("abort", "stop"),
    ],
)
def test_engine_finish_reasons_become_openais(told: str, shown: str) -> None:
    run = Run().feed([ids_of("x")], finish=told)
    assert run.heard.finished
    assert run.heard.finished.reason == shown


def test_an_engines_error_is_a_failure() -> None:
    run = Run()
    run.sink.item(EngineOutput(finish_reason="error: out of memory"))
    assert isinstance(run.heard.error, Unknown)
    assert run.heard.error.message == "out of memory"


def test_a_stream_that_ends_without_a_reason_is_finished() -> None:
    assert Run().feed([ids_of("x")], finish=None).heard.finished
    cut = Run(max_tokens=1).feed([ids_of("x")[:1]], finish=None).heard.finished
    assert cut
    assert cut.reason == "length"


CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def test_calls_and_reasoning_are_separated_and_reasoning_tokens_counted() -> None:
    ids = ids_of(f"<think>hm, let me see</think>so{CALL}")
    run = Run(parse=("hermes", "basic")).feed(one_by_one(ids))
    assert (run.heard.all("reasoning"), run.heard.all(), run.heard.all("call 0")) == (
        "hm, let me see", "so", 'f:{"a": 1}',
    )  # fmt: skip
    assert run.heard.finished
    assert run.heard.finished.reason == "tool_calls"
    details = run.heard.finished.usage.completion_tokens_details
    assert details
    thoughts = len(ids_of("<think>hm, let me see"))
    assert abs(details["reasoning_tokens"] - thoughts) <= 2


@pytest.mark.parametrize("thought", ["<think>Hm.</think>", ""])
def test_text_after_the_reasoning_is_handled_as_output_without_a_parser(thought: str) -> None:
    run = Run(parse=(None, "basic")).feed([*one_by_one(ids_of(f"{thought}Now: ")), ids_of(TEXT)])
    assert run.heard.all() == f"Now: {TEXT}"
    assert run.heard.escaped_texts[-1] == TEXT


def test_a_call_cut_off_by_the_limit_ends_for_length() -> None:
    run = Run(parse=("hermes", None)).feed([ids_of(CALL[:45])], finish="length")
    assert run.heard.all("call 0")
    assert run.heard.finished
    assert run.heard.finished.reason == "length"


def test_only_the_first_call_is_kept_without_parallel_calls() -> None:
    run = Run(parse=("hermes", None), one_call=True).feed([ids_of(CALL * 2)])
    assert {kind for kind, _ in run.heard.said} == {"call 0"}


def test_text_an_engine_wrote_itself_is_checked_for_stop_strings_only() -> None:
    run = Run(stop=["END"])
    run.sink.item(EngineOutput(token_ids=[1, 2], text="one EN"))
    run.sink.item(EngineOutput(token_ids=[3], text="D two"))
    assert run.heard.all() == "one "
    assert run.heard.finished
    assert run.heard.finished.usage.completion_tokens == 3


def test_nothing_is_emitted_after_the_end() -> None:
    run = Run(stop=["a"]).feed([ids_of("a"), ids_of("more")])
    run.sink.fail(Unknown("late"))
    run.sink.end()
    assert run.heard.all() == ""
    assert run.heard.error is None


@pytest.mark.parametrize("reason", ["tired", "", "STOP", "x" * 500])
def test_an_unknown_finish_reason_is_the_workers_mistake(reason: str) -> None:
    run = Run()
    run.sink.item(EngineOutput(token_ids=tokenizer().encode("hi"), finish_reason=reason))
    assert run.heard.all() == "hi"
    assert isinstance(run.heard.error, ProtocolError)
    assert len(run.heard.error.message) < 150


@pytest.mark.parametrize("conditions", [{}, {"stop": ["END"]}, {"max_tokens": 3}], ids=str)
@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_an_id_outside_the_vocabulary_fails_the_choice_and_stops_the_worker(
    kind: str, conditions: dict[str, Any]
) -> None:
    run = Run(kind=kind, **conditions)
    run.sink.tokens(ids_of("hi", kind)[:1])
    run.sink.tokens([PADDED_SIZE - 1, PADDED_SIZE])
    run.sink.tokens(ids_of("late", kind))
    run.sink.end()
    assert isinstance(run.heard.error, ProtocolError)
    assert run.stopped == 1
    assert "late" not in run.heard.all()


@pytest.mark.parametrize("text", [None, "hi"])
def test_log_probabilities_are_shown_only_if_asked_for(text: str | None) -> None:
    ids = tokenizer().encode("hi")
    for logprobs in (None, 1):
        run = Run(logprobs=logprobs)
        output = EngineOutput(token_ids=ids, text=text, log_probs=[-1.0] * len(ids), finish_reason="stop")
        run.sink.item(output)
        assert run.heard.all() == "hi"
        assert len(run.heard.tokens) == (len(ids) if logprobs else 0)

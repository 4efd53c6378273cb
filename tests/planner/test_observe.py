"""Measurements from a frontend's page and from Prometheus' answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from dynamo.planner.config import PlannerConfigError
from dynamo.planner.observe import FrontendSource, PrometheusSource, measurement, parse_answer, parse_page
from dynamo.planner.parts import SourceError

PAGE = """\
dynamo_frontend_requests_started_total{{model="tiny"}} {started}
dynamo_frontend_output_tokens_total{{model="tiny"}} {tokens}
dynamo_frontend_time_to_first_token_seconds_sum{{model="tiny"}} {ttft}
dynamo_frontend_time_to_first_token_seconds_count{{model="tiny"}} {started}
dynamo_frontend_queued_requests{{model="tiny"}} 3
dynamo_frontend_model_context_length{{model="tiny"}} 2048
dynamo_frontend_model_total_kv_blocks{{model="tiny"}} 100
dynamo_frontend_model_workers{{model="tiny",worker_type="decode"}} 2
dynamo_frontend_worker_active_decode_blocks{{dp_rank="0",worker_id="1",worker_type="decode"}} 50
dynamo_frontend_worker_active_decode_blocks{{dp_rank="0",worker_id="2",worker_type="decode"}} 10
dynamo_frontend_worker_active_prefill_tokens{{dp_rank="0",worker_id="1",worker_type="decode"}} 700
"""


STARTED = {"__name__": "dynamo_frontend_requests_started_total", "model": "tiny", "instance": "a"}


def page(started: int = 0, tokens: int = 0, ttft: float = 0.0) -> bytes:
    return PAGE.format(started=started, tokens=tokens, ttft=ttft).encode()


@asynccontextmanager
async def serving(pages: list[bytes | int], path: str = "/metrics") -> AsyncIterator[str]:
    """Answers with one after the other; a number is a status."""

    async def answer(_: web.Request) -> web.Response:
        now = pages.pop(0)
        return web.Response(status=now) if isinstance(now, int) else web.Response(body=now)

    app = web.Application()
    app.router.add_get(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_an_interval_is_the_difference_of_two_pages() -> None:
    async with serving([page(10, 100, 2.0), page(30, 500, 12.0)]) as url:
        source = FrontendSource(url, "tiny")
        assert await source.read() is None
        seen = await source.read()
    assert seen
    assert (seen.traffic.requests, seen.traffic.generated, seen.traffic.ttft) == (20.0, 400.0, 0.5)
    assert (seen.traffic.waiting, seen.traffic.context_length) == (3.0, 2048.0)
    assert seen.pools["decode"] == msgspec.convert(
        {"serving": 2, "queued_tokens": 700.0, "kv_rate": 0.3}, type(seen.pools["decode"])
    )


def test_the_share_of_prompts_that_went_to_prefill_workers_is_that_of_the_interval() -> None:
    def counted(remote: int, local: int) -> bytes:
        name = "dynamo_component_router_disagg_decisions_total"
        rows = (("remote", "faster", remote), ("local", "busy", local), ("local", "short", 7))
        return (
            page()
            + "".join(
                f'{name}{{model="tiny",prefill="{who}",reason="{why}"}} {count}\n' for who, why, count in rows
            ).encode()
        )

    seen = measurement(parse_page(counted(10, 10)), parse_page(counted(40, 20)))
    assert seen
    assert seen.traffic.split_share == 0.75
    seen = measurement(parse_page(page()), parse_page(page()))
    assert seen
    assert seen.traffic.split_share is None
    assert measurement(parse_page(counted(10, 10)), parse_page(counted(3, 20))) is None


async def test_an_outage_is_missing_data_and_no_zero_after_it() -> None:
    async with serving([page(10), 503, page(50), page(60)]) as url:
        source = FrontendSource(url)
        assert await source.read() is None
        with pytest.raises(SourceError, match="answers 503"):
            await source.read()
        assert await source.read() is None
        seen = await source.read()
        assert seen
        assert seen.traffic.requests == 10.0
    with pytest.raises(SourceError, match="Cannot connect"):
        await source.read()


@pytest.mark.parametrize("parse", [parse_page, lambda _, model: parse_answer(answered((STARTED, 60.0)), model)])
def test_a_model_that_the_frontend_does_not_have_is_named_and_missing_data(parse: Any) -> None:
    with pytest.raises(SourceError, match="the frontend has no model 'other', only tiny"):
        parse(page(10), "other")


def test_a_frontend_that_was_started_again_is_missing_data() -> None:
    assert measurement(parse_page(page(10)), parse_page(page(3))) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"<html>", "not in Prometheus' format|no metrics of a frontend"),
        (b"other_metric 1\n", "no metrics of a frontend"),
        (b"dynamo_frontend_queued_requests NaN\n", "dynamo_frontend_queued_requests is nan"),
    ],
)
def test_a_page_that_makes_no_sense_is_missing_data(text: bytes, sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        parse_page(text)


def answered(*samples: tuple[dict[str, str], float]) -> bytes:
    result = [{"metric": metric, "value": [0.0, str(value)]} for metric, value in samples]
    return msgspec.json.encode({"status": "success", "data": {"resultType": "vector", "result": result}})


async def test_prometheus_gives_the_same_measurements_scaled_to_the_interval() -> None:
    workers = {"__name__": "dynamo_frontend_model_workers", "model": "tiny", "worker_type": "decode", "instance": "a"}
    both = answered((STARTED, 60.0), (workers, 2.0), (workers | {"instance": "b"}, 2.0))
    seen = measurement(parse_answer(answered((STARTED, 0.0))), parse_answer(both), 5 / 60)
    assert seen
    assert seen.traffic.requests == pytest.approx(5.0)
    assert seen.pools["decode"].serving == 2  # two frontends see the same workers
    async with serving([both, both], "/api/v1/query") as url:
        still = await PrometheusSource(url, 5.0).read()
        assert still
        assert still.traffic.requests == 0.0


def test_a_refused_query_is_missing_data() -> None:
    with pytest.raises(SourceError, match="bad_data"):
        parse_answer(b'{"status": "error", "error": "bad_data"}')


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://", "http://a:0"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(PlannerConfigError, match="is not http://HOST:PORT"):
        FrontendSource(url)


@pytest.mark.parametrize("parse", [parse_page, parse_answer])
@given(data=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_are_a_page_or_missing_data(parse: Any, data: bytes) -> None:
    try:
        parse(data)
    except SourceError:
        pass

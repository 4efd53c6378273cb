"""Flags, variables and cards: what is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.cli.run.flags import BY_WORD
from dynamo.frontend.__main__ import main
from dynamo.frontend.config import FrontendConfig
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig
from dynamo.router import RoutingConfig, make_router
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.router.simple import SimpleRouter
from dynamo.runtime import DistributedRuntime, Local
from dynamo.runtime import RuntimeConfig as Network
from dynamo.runtime.instances import InstanceSet
from dynamo.settings import given
from dynamo.settings.arguments import FlagParser
from dynamo.settings.router import MODES


def parse(*words: str, **environ: str) -> RoutingConfig:
    parsed = FlagParser("test", None, RoutingConfig).parse_args(words)
    return RoutingConfig.from_env(environ, **given(vars(parsed), RoutingConfig))


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--router-mode kv", "mode", "kv"),
        ("--kv-overlap-score-weight 2.5", "overlap_weight", 2.5),
        ("--router-kv-overlap-score-credit 0", "overlap_weight", 0.0),
        ("--router-kv-overlap-score-weight 3", "overlap_weight", 3.0),
        ("--router-temperature 0.5", "temperature", 0.5),
        ("--use-kv-events=false", "use_kv_events", False),
        ("--use-kv-events True", "use_kv_events", True),
        ("--no-router-kv-events", "use_kv_events", False),
        ("--router-kv-events", "use_kv_events", True),
        ("--router-ttl-secs 3", "ttl", 3.0),
        ("--router-replica-sync", "replica_sync", True),
        ("--no-router-replica-sync", "replica_sync", False),
        ("--router-host-cache-hit-weight 0.5", "host_weight", 0.5),
        ("--router-disk-cache-hit-weight 0", "disk_weight", 0.0),
        ("--active-decode-blocks-threshold 0.8", "active_decode_blocks_threshold", 0.8),
        ("--active-decode-blocks-threshold None", "active_decode_blocks_threshold", None),
        ("--active-prefill-tokens-threshold 100", "active_prefill_tokens_threshold", 100),
        ("--active-prefill-tokens-threshold-frac 1.5", "active_prefill_tokens_threshold_frac", 1.5),
        ("--router-queue-threshold 4", "queue_threshold", 4.0),
        ("--router-queue-policy wspt", "queue_policy", "wspt"),
        ("--router-queue-limit 9", "queue_limit", 9),
    ],
)
def test_each_flag_sets_its_field(words: str, field: str, value: Any) -> None:
    assert getattr(parse(*words.split()), field) == value


def test_a_flag_beats_the_environment_which_beats_the_default() -> None:
    assert parse().mode == "round-robin"
    assert parse(DYN_ROUTER_MODE="random").mode == "random"
    assert parse("--router-mode", "kv", DYN_ROUTER_MODE="random").mode == "kv"
    assert parse(DYN_ROUTER_USE_KV_EVENTS="false").use_kv_events is False
    assert parse(DYN_KV_OVERLAP_SCORE_WEIGHT="0").overlap_weight == 0
    assert parse(DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD="None").active_decode_blocks_threshold is None
    told = parse("--active-decode-blocks-threshold", "None", DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD="0.5")
    assert told.active_decode_blocks_threshold is None


def test_the_frontend_passes_the_routers_flags_on() -> None:
    config = FrontendConfig.from_env({"DYN_ROUTER_TEMPERATURE": "1"}, router_mode="kv", http_port=0)
    assert (config.router.mode, config.router.temperature) == ("kv", 1.0)


def test_dynamo_run_offers_every_mode() -> None:
    assert BY_WORD["--router-mode"].choices == MODES


@pytest.mark.parametrize(
    "words",
    [
        "--router-mode best",
        "--kv-overlap-score-weight -1",
        "--kv-overlap-score-weight nan",
        "--kv-overlap-score-weight inf",
        "--kv-overlap-score-weight much",
        "--router-temperature -0.1",
        "--router-ttl-secs 0",
        "--router-host-cache-hit-weight 1.1",
        "--use-kv-events maybe",
        "--active-decode-blocks-threshold 1.1",
        "--active-decode-blocks-threshold nan",
        "--active-prefill-tokens-threshold -1",
        "--active-prefill-tokens-threshold 1.5",
        "--active-prefill-tokens-threshold-frac -1",
        "--router-queue-threshold -1",
        "--router-queue-policy lcfs",
        "--router-queue-limit 0",
    ],
)
def test_a_wrong_flag_ends_the_start_with_its_name(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert words.split()[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("DYN_ROUTER_TEMPERATURE", "hot"),
        ("DYN_ROUTER_USE_KV_EVENTS", "perhaps"),
        ("DYN_ROUTER_QUEUE_LIMIT", "1.5"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, text: str) -> None:
    with pytest.raises(ValueError, match=variable):
        RoutingConfig.from_env({variable: text})


def made(card_says: Any, config: RoutingConfig) -> object:
    runtime = DistributedRuntime(config=Network.in_process({}), local=Local())
    card = ModelCard(
        name="m", model_type=3, runtime_config=ModelRuntimeConfig(runtime_data={"router_config": card_says})
    )
    return make_router(config, card, InstanceSet("m", runtime.plane), runtime)


async def test_a_card_may_bring_its_own_router() -> None:
    assert isinstance(made({"router_mode": "kv", "router_temperature": 0.5}, RoutingConfig()), KvAwareRouter)
    assert isinstance(made({"router_mode": "random"}, RoutingConfig(mode="kv")), SimpleRouter)
    assert isinstance(made({"use_kv_events": False}, RoutingConfig(mode="kv")), SimpleRouter), "it replaces ours wholly"


@pytest.mark.parametrize("said", [7, "kv", {"router_mode": "best"}, {"color": 1}, {"router_temperature": "x"}])
async def test_a_card_that_asks_for_nonsense_gets_our_router(said: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(made(said, RoutingConfig(mode="kv")), KvAwareRouter)
    assert "asks for a router we cannot make" in caplog.text

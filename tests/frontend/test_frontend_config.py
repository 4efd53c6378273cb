from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.frontend.__main__ import main, parser
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.server import ServerError
from dynamo.settings import options
from dynamo.settings.frontend import FrontendSettings
from support.serving import serving


def test_a_flag_beats_the_environment_which_beats_the_default() -> None:
    environ = {"DYN_HTTP_PORT": "9000", "DYN_HTTP_HOST": "0.0.0.0"}
    config = FrontendConfig.from_env(environ, http_port=9001, http_host=None)
    assert (config.port, config.host, config.body_limit_mb) == (9001, "0.0.0.0", 45)


def test_lists_and_units_of_the_environment() -> None:
    config = FrontendConfig.from_env(
        {
            "DYN_API_KEY": "one, two,,three",
            "DYN_HTTP_CORS_ALLOW_ORIGIN": "https://a.example https://b.example",
            "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS": "1500",
            "DYN_PROTECT_METRICS": "on",
            "DYN_METRICS_PREFIX": "my prefix",
        }
    )
    assert config.api_keys == ("one", "two", "three")
    assert config.cors_allow_origins == ("https://a.example", "https://b.example")
    assert config.sse_keep_alive_secs == 1.5
    assert config.protect_metrics
    assert config.metrics_prefix == "my_prefix"


@pytest.mark.parametrize(
    ("flag", "value", "complaint"),
    [
        ("http_port", 70000, "--http-port"),
        ("http_host", "", "--http-host"),
        ("http_host", "a b", "--http-host"),
        ("http_workers", 0, "--http-workers"),
        ("tls_cert_path", Path("x"), "need each other"),
        ("tls_key_path", Path("x"), "need each other"),
        ("api_key", ("",), "--api-key"),
        ("api_key", ("a\nb",), "--api-key"),
        ("api_key", ("schlüssel",), "--api-key"),
        ("router_mode", "best", "--router-mode"),
        ("http_body_limit_mb", 0, "--http-body-limit-mb"),
        ("max_concurrent_requests", -1, "--max-concurrent-requests"),
        ("overload_status_code", 200, "--overload-status-code"),
        ("cors_allow_origin", ("example.org",), "--cors-allow-origin"),
        ("cors_allow_origin", ("https://example.org/",), "--cors-allow-origin"),
        ("http_header_timeout_secs", -1.0, "--http-header-timeout-secs"),
        ("http_body_timeout_secs", float("nan"), "--http-body-timeout-secs"),
        ("http_idle_timeout_secs", float("inf"), "--http-idle-timeout-secs"),
        ("sse_keep_alive_secs", -0.1, "--sse-keep-alive-secs"),
        ("graceful_shutdown_timeout_secs", -1.0, "--graceful-shutdown-timeout-secs"),
        ("metrics_prefix", "-", "--metrics-prefix"),
    ],
)
def test_a_wrong_value_names_its_flag(flag: str, value: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        FrontendConfig.from_env({}, **{flag: value})


def test_a_wrong_value_of_a_variable_names_the_variable() -> None:
    with pytest.raises(ValueError, match="DYN_HTTP_PORT must be at most 65535, not 70000"):
        FrontendConfig.from_env({"DYN_HTTP_PORT": "70000"})


def test_a_config_is_checked_however_it_is_built() -> None:
    with pytest.raises(ValueError, match="--http-port must be at most 65535"):
        FrontendConfig(port=70000)


def test_a_key_is_not_repeated_in_the_refusal() -> None:
    with pytest.raises(ValueError, match="--api-key") as refused:
        FrontendConfig.from_env({}, api_key=["secret\n"])
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "name", [option.variables[0] for option in options(FrontendSettings) if option.kind in (int, float)]
)
def test_what_is_no_number_names_its_variable(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a (whole )?number, not 'many'"):
        FrontendConfig.from_env({name: "many"})


def test_every_variable_is_in_the_help() -> None:
    text = " ".join(parser().format_help().split())
    hidden = {"DYN_FRONTEND_FD_LIMIT_TARGET", "DYNAMO_PORT"}
    for option in options(FrontendSettings):
        for name in option.variables:
            assert name in text or name in hidden, name


@pytest.fixture
def own_logging() -> Iterator[None]:
    """What a process does to the logging of its own must not outlive the test."""
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(
    "argv", [["--tls-cert-path", "x"], ["--http-port", "99999"], ["--discovery-backend", "nowhere"]]
)
def test_a_wrong_command_line_ends_with_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(argv)
    assert exit.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")


async def test_a_taken_port_is_reported_with_the_fix(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as first:
        with pytest.raises(ServerError, match=f"port {first.port} .* already in use; choose another with --http-port"):
            async with serving(tmp_path / "b", port=first.port):
                pass


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_an_address_that_is_not_ours_is_reported(tmp_path: Path, host: str) -> None:
    with pytest.raises(ServerError, match="not an address of this machine; see --http-host"):
        async with serving(tmp_path, host=host):
            pass

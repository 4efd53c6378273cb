"""The router's flags for every command that routes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from dynamo.router.config import SETTINGS, boolean


def add_router_flags(flags: argparse.ArgumentParser) -> None:
    group = flags.add_argument_group("router")
    for setting in SETTINGS:
        told = f"{setting.help}; {setting.variables[0]}"
        names = (setting.flag, *setting.aliases)
        if setting.read is boolean and setting.flag != "--use-kv-events":
            group.add_argument(
                *names, action=argparse.BooleanOptionalAction, default=None, help=told, dest=setting.name
            )
            continue
        kind = _typed(setting.read)
        metavar = "BOOL" if setting.read is boolean else "MODE" if setting.field == "mode" else "X"
        group.add_argument(*names, type=kind, metavar=metavar, help=told, dest=setting.name)
    group.add_argument(
        "--router-kv-events",
        action=argparse.BooleanOptionalAction,
        default=None,
        dest="use_kv_events",
        help="the same as --use-kv-events",
    )


def router_flags(parsed: argparse.Namespace) -> dict[str, Any]:
    """What was given of them, as `RouterConfig.from_env` takes it."""
    return {setting.name: getattr(parsed, setting.name) for setting in SETTINGS}


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def typed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be {error}, not '{text}'") from None

    return typed

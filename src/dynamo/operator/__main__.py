"""Make the DynamoGraphDeployments of a Kubernetes cluster true: `python -m dynamo.operator`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from dynamo.kubernetes.operator.life import OperatorSettings, serve
from dynamo.process.addresses import listening_address
from dynamo.process.readiness import report_ready
from dynamo.process.supervisor.supervisor import on_signals
from dynamo.protocols.errors import StartError
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.process import fail
from dynamo.settings import given
from dynamo.settings.arguments import FlagParser

COMMAND = "python -m dynamo.operator"


def parser() -> FlagParser:
    return FlagParser(COMMAND, __doc__, OperatorSettings)


def main(argv: Sequence[str] | None = None) -> None:
    parsed = parser().parse_args(argv)
    try:
        configure_dynamo_logging(LogConfig.from_env(os.environ, verbosity=parsed.verbosity))
        settings = OperatorSettings.from_env(os.environ, **given(vars(parsed), OperatorSettings))
    except ValueError as error:
        raise fail(str(error), code=2, error=error) from None
    try:
        asyncio.run(_run(settings))
    except StartError as error:
        raise fail(str(error), error=error) from None


async def _run(settings: OperatorSettings) -> None:
    stopped = on_signals(None)
    print("operator begins", file=sys.stderr, flush=True)
    report_ready(os.environ)
    await serve(settings, os.environ, stopped, listening_address(os.environ))


if __name__ == "__main__":
    main()

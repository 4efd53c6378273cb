"""What the commands that simulate share: few log lines, files for reports, and one line about what went wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from dynamo.protocols.errors import InvalidArgument
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.process import fail


@contextmanager
def experiment(command: str) -> Iterator[None]:
    """End the process with one line about what was asked wrongly or cannot be read or written."""
    try:
        yield
    except (ValueError, InvalidArgument) as error:
        raise fail(f"{error}; see {command} --help", code=2, error=error) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise fail(str(error), error=error) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def configure_logs(verbosity: int) -> None:
    """What every simulated worker logs as it comes and goes is of interest only to those who ask for it."""
    quiet = {} if verbosity else {"DYN_LOG": "error"}
    configure_dynamo_logging(LogConfig.from_env(quiet | dict(os.environ), verbosity=verbosity))


class ReportFiles(Struct, frozen=True):
    """Where reports go; raises ValueError at once if a folder does not exist."""

    json: str | None
    html: str | None

    def __post_init__(self) -> None:
        for path in (self.json, self.html):
            if path and not Path(path).resolve().parent.is_dir():
                raise ValueError(f"the folder of {path} does not exist")

    def write(self, as_json: Callable[[], bytes], as_html: Callable[[], str]) -> None:
        if self.json:
            Path(self.json).write_bytes(as_json())
        if self.html:
            Path(self.html).write_text(as_html())

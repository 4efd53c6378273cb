"""`dynamo profile URL`: measure the engine behind a server with live requests, for simulations of it.

Or `dynamo profile FILES`: read its times from steps that its workers recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynamo.protocols.errors import InvalidArgument
from dynamo.runtime.process import fail
from dynamo.settings.arguments import CommandParser

_ABOUT = "Measure an engine for simulations: behind a server with live requests, or from recorded steps of its workers."


def parser() -> CommandParser:
    flags = CommandParser("dynamo profile", _ABOUT)
    flags.add_argument("source", nargs="+", help="an OpenAI-compatible server that takes prompts of token ids, or "
                                                 "files of steps that workers recorded (DYN_FPM_TRACE)")  # fmt: skip
    flags.add_argument("--model", help="which of its models; needed if it has several")
    flags.add_argument("--output", default="profile.npz", help="the file to write (profile.npz)")
    flags.add_argument("--max-tokens", type=int, default=4096, help="longest prompt that is sent (4096)")
    flags.add_argument("--max-requests", type=int, default=16, help="requests that are decoded at once (16)")
    return flags


def main(words: Sequence[str], _environ: Mapping[str, str] | None = None) -> None:
    asked = parser().parse_args(words)
    # Not before the words are read: --help needs no simulator and no client.
    import aiohttp
    import msgspec

    from dynamo.lab.profile.fit_profile import write_profile
    from dynamo.lab.profile.measure import SHORTEST, from_steps, measure
    from dynamo.lab.profile.remote_engine import ProfileError

    if asked.max_tokens < 2 * SHORTEST or asked.max_requests < 2:
        raise fail(f"--max-tokens must be at least {2 * SHORTEST} and --max-requests at least 2", code=2)
    if not Path(asked.output).resolve().parent.is_dir():
        raise fail(f"the folder of {asked.output} does not exist", code=2)
    url = asked.source[0] if "://" in asked.source[0] else f"http://{asked.source[0]}"
    files = [Path(source) for source in asked.source]
    if len(files) > 1 and (missing := [str(file) for file in files if not file.is_file()]):
        raise fail(f"{missing[0]} is not a file: give one server, or files of recorded steps", code=2)
    try:
        if files[0].is_file():
            profile = from_steps(files, asked.model or "")
        else:
            profile = asyncio.run(measure(url.rstrip("/"), asked.model, asked.max_tokens, asked.max_requests))
        write_profile(profile, Path(asked.output))
    except (ProfileError, InvalidArgument, OSError, aiohttp.ClientError, msgspec.MsgspecError) as error:
        raise fail(f"{error or type(error).__name__}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    print(f"written to {asked.output}: simulate with --extra-engine-args '{{\"planner_profile_data\": "
          f"\"{asked.output}\"}}'")  # fmt: skip

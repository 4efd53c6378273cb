"""What `dynamo rules` can be told."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from dynamo.settings import Setting, Settings

Count = Annotated[int, Meta(ge=1, le=10**9)]


class RulesSettings(Settings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "rules"

    # fmt: off
    rules: Annotated[tuple[str, ...], Setting(
        "--rule", metavar="FILE.py|NAME", help="a rule to try; may be repeated",
        default="built-in and all that are shipped")] = ()
    workers: Annotated[int, Meta(ge=1, le=4096), Setting("--num-workers", help="simulated workers")] = 4
    cache_tokens: Annotated[Count, Setting("--cache-tokens", help="tokens in the cache of each worker")] = 1 << 20
    block_size: Annotated[int, Meta(ge=0, le=1 << 20), Setting(
        "--block-size", help="tokens in a block of the simulated engine", default="the trace's")] = 0
    speedup: Annotated[float, Meta(gt=0), Setting(
        "--arrival-speedup-ratio", help="divides the times between arrivals, and pauses")] = 1.0
    limit: Annotated[int | None, Meta(ge=1), Setting(
        "--request-limit", help="requests to read; the rest is left out", default="all")] = None
    skip: Annotated[int, Meta(ge=0), Setting("--skip-requests", help="requests to leave out at the beginning")] = 0
    sessions: Annotated[int | None, Meta(ge=1), Setting(
        "--agent-sessions", help="agents: sessions to draw", default="all")] = None
    parity: Annotated[Literal["all", "even", "odd"], Setting(
        "--session-numbers", help="agents: which sessions, by the number in the file's name")] = "all"
    largest: Annotated[int | None, Meta(ge=1), Setting(
        "--largest-session", metavar="BYTES", help="agents: leave larger files out", default="none")] = None
    share_tools: Annotated[bool, Setting(
        "--share-tools", help="agents: sessions with as many tool and system tokens begin alike")] = False
    seed: Annotated[int, Meta(ge=0), Setting("--seed", help="of draws and starts")] = 0
    report_json: Annotated[str | None, Setting("--report-json", metavar="FILE", help="write the scores there")] = None
    report_html: Annotated[str | None, Setting("--report-html", metavar="FILE", help="write a page there")] = None
    # fmt: on

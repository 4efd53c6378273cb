"""A profile from recorded steps: forward pass metrics, one JSON object for each step of an engine."""

from __future__ import annotations

import math
import statistics
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from dynamo.engines.mocker.args import MockerArgs
from dynamo.engines.mocker.profile import About, Profile, ProfileTiming
from dynamo.lab.profile.fit_profile import DecodeTime, PrefillTime, fit_decode, profile_from
from dynamo.process.files import open_lines
from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.forward_pass import VERSION, ScheduledRequestMetrics

_PER_OCTAVE = 2
"""Lengths of prompts that are told apart, per factor of two."""
_HELD_OUT = 5
"""Every fifth step is not used for the fit, but to see how well it predicts."""


class ForwardPass(Struct, frozen=True, kw_only=True):
    """One step; of the fields of `ForwardPassMetrics`, those that a fit needs, and which a row must have."""

    version: int = VERSION
    wall_time: float
    scheduled_requests: ScheduledRequestMetrics

    @property
    def milliseconds(self) -> float:
        return 1000 * self.wall_time

    @property
    def kind(self) -> str:
        prefills, decodes = self.scheduled_requests.sum_prefill_tokens, self.scheduled_requests.num_decode_requests
        return "mixed" if prefills and decodes else "prefill" if prefills else "decode"


class _StepEvent(Struct, frozen=True):
    fpm: ForwardPass


class _Row(Struct, frozen=True):
    """A step as workers record it."""

    event: _StepEvent


class FittedSteps(Struct, frozen=True):
    profile: Profile
    errors: dict[str, float]
    """Mean error of the predictions of steps that were not used for the fit, by their kind."""


def read_steps(path: Path) -> Iterator[ForwardPass]:
    """The steps that computed something, from rows as workers record them or bare metrics, compressed or not.

    A line that is neither is refused by its number.
    """
    row, bare = msgspec.json.Decoder(_Row).decode, msgspec.json.Decoder(ForwardPass).decode
    number = 0
    try:
        with open_lines(path) as lines:
            for number, line in enumerate(lines, 1):
                step = row(line).event.fpm if b'"event"' in line else bare(line)
                if step.version != VERSION:
                    raise InvalidArgument(f"{path}:{number}: version {step.version} of forward pass metrics is unknown")
                scheduled = step.scheduled_requests
                if step.wall_time > 0 and (scheduled.sum_prefill_tokens > 0 or scheduled.num_decode_requests > 0):
                    yield step
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidArgument(f"{path}:{number}: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidArgument(f"{path} cannot be read after line {number}: {error}") from None


def fit_steps(steps: Sequence[ForwardPass], model: str = "") -> FittedSteps:
    by_kind: dict[str, list[ForwardPass]] = defaultdict(list)
    for step in steps:
        by_kind[step.kind].append(step)
    used = {kind: [step for at, step in enumerate(found) if at % _HELD_OUT] for kind, found in by_kind.items()}
    prefill, decodes = _prefill_times(used.get("prefill", [])), [_decode_time(step) for step in used.get("decode", [])]
    if len(prefill) < 2 or len(decodes) < 3:
        raise InvalidArgument("a profile needs steps that only decode, and prompts of different lengths without others")
    longest, most = max(one.context for one in decodes), max(one.requests for one in decodes)
    fit = fit_decode(decodes)
    alone = profile_from(prefill, fit, longest, most)
    apart = ProfileTiming(alone, MockerArgs())
    shared = [1000 * _predicted(step, apart) - step.milliseconds for step in used.get("mixed", [])]
    about = About(model=model, shared_ms=max(0.0, statistics.median(shared)) if shared else 0.0)
    profile = msgspec.structs.replace(alone, about=about)
    timing = ProfileTiming(profile, MockerArgs())
    errors = {
        kind: statistics.fmean(abs(1000 * _predicted(step, timing) / step.milliseconds - 1) for step in held)
        for kind, found in sorted(by_kind.items())
        if (held := found[::_HELD_OUT])
    }
    return FittedSteps(profile, errors)


def _predicted(step: ForwardPass, timing: ProfileTiming) -> float:
    scheduled = step.scheduled_requests
    tokens, requests, context = (
        scheduled.sum_prefill_tokens,
        scheduled.num_decode_requests,
        scheduled.sum_decode_kv_tokens,
    )
    if tokens and requests:
        return timing.mixed(tokens, requests, context)
    return timing.prefill(tokens) if tokens else timing.decode(requests, context)


def _decode_time(step: ForwardPass) -> DecodeTime:
    scheduled = step.scheduled_requests
    requests = scheduled.num_decode_requests
    return DecodeTime(requests, scheduled.sum_decode_kv_tokens / requests, step.milliseconds)


def _prefill_times(steps: Sequence[ForwardPass]) -> list[PrefillTime]:
    """The median of the steps with about the same number of tokens."""
    groups: dict[int, list[ForwardPass]] = defaultdict(list)
    for step in steps:
        groups[math.floor(_PER_OCTAVE * math.log2(step.scheduled_requests.sum_prefill_tokens))].append(step)
    times = [
        PrefillTime(
            round(statistics.fmean(step.scheduled_requests.sum_prefill_tokens for step in group)),
            statistics.median(step.milliseconds for step in group),
        )
        for _, group in sorted(groups.items())
    ]
    return [one for at, one in enumerate(times) if not at or one.tokens > times[at - 1].tokens]

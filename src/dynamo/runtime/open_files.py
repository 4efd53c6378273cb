"""Raises the limit of open files: each connection is one, and the usual 1024 are fewer than a process can serve."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

FEW = 4096


def raise_limit(target: int) -> int:
    """Raise the limit to `target`, or as far as the system allows; returns the limit. 0 changes nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if target <= 0 or soft == resource.RLIM_INFINITY or soft >= target:
        return soft
    wanted = target if hard == resource.RLIM_INFINITY else min(target, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("cannot raise the limit of open files from %d to %d: %s", soft, wanted, error)
        return soft
    if wanted < FEW:
        log.warning("at most %d connections can be open: the limit of open files allows no more", wanted)
    return wanted

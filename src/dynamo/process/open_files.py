"""Raises the limit of open files: each connection is one, and the usual 1024 are fewer than a process can serve."""

from __future__ import annotations

import logging
import resource
import time

log = logging.getLogger(__name__)

FEW = 4096
RESERVED = 64
"""Files that connections of clients leave free: for connections to workers, discovery and stored state."""
GRPC_CONNECTIONS = 1024
"""The most connections for gRPC, where the limit of open files is not small."""
WARN_EVERY = 60.0


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


def grpc_connections() -> int:
    """How many a gRPC server may accept. It accepts them itself, so it gets a number rather than a FileReserve."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return GRPC_CONNECTIONS if limit == resource.RLIM_INFINITY else max(1, min(GRPC_CONNECTIONS, limit // 8))


class FileReserve:
    """Says which connections of clients there is no room for; `more` files than usual are left free."""

    def __init__(self, more: int = 0) -> None:
        self._more = more
        self._warn_at = 0.0

    def is_reached(self, fd: int) -> bool:
        """Whether a descriptor that was just opened is one of the last: the kernel gives out the lowest free one."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY or fd < limit - min(RESERVED, limit // 4) - self._more:
            return False
        if (now := time.monotonic()) >= self._warn_at:
            self._warn_at = now + WARN_EVERY
            log.warning("new connections are refused: %d files are open, and the system allows %d", fd, limit)
        return True

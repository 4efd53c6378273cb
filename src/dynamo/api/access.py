"""Who may call a route."""

from __future__ import annotations

import enum


class Access(enum.Enum):
    """Who may call a route. Probes and metrics are polled by machines: they are answered while the server drains, and
    logged at debug level only."""

    KEY = enum.auto()
    """Clients with an API key, where the server has keys."""
    ADMIN = enum.auto()
    """Administrators: with an admin key; on this machine also without, where the server has no keys at all."""
    PROBE = enum.auto()
    """Anyone."""
    METRICS = enum.auto()
    """Anyone, unless `--protect-metrics` requires a key."""
    PAGE = enum.auto()
    """Anyone: a browser has no key before the page has asked for one. Logged as probes are."""

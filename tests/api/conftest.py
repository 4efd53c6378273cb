"""A live frontend with a scripted worker."""

from support.live_frontend import folder, live, toy

__all__ = ["folder", "live", "toy"]

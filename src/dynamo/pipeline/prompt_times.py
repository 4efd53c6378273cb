"""How long it takes to make a prompt of a request, in seconds. Whoever publishes metrics reads it."""

from __future__ import annotations

from msgspec import Struct, field

from dynamo.runtime.instruments import Histogram


def _unread() -> Histogram:
    return Histogram(())


class PromptTimes(Struct):
    template: Histogram = field(default_factory=_unread)
    """Messages into text."""
    tokenize: Histogram = field(default_factory=_unread)
    """Text into token ids; of a long text the hop to a thread is part of it."""

    def made(self, template: float, tokenize: float) -> None:
        self.template.observe(template)
        self.tokenize.observe(tokenize)

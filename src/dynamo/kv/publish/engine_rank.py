"""One rank of an engine: translates and publishes its events, and logs those that cannot be expressed."""

from __future__ import annotations

import logging

from dynamo.kv.messages import Cleared
from dynamo.kv.publish.engine_events import EngineBatch
from dynamo.kv.publish.feed import RankFeed
from dynamo.kv.publish.translate import Translator

log = logging.getLogger(__name__)

_WARNINGS = 3
"""Refusals logged as warnings; further ones are logged at debug level."""


class EngineRank:
    def __init__(self, rank: RankFeed, block_size: int) -> None:
        self._rank = rank
        self._block_size = block_size
        self._refusals = 0
        self.stopped = False
        """Nothing more is published: the engine's block size is not the model card's."""
        self._size_confirmed = False
        """The engine has stored blocks of the model card's size, so that other sizes are exceptions."""
        self._translator = Translator(block_size)

    def take(self, batch: EngineBatch) -> None:
        if self.stopped:
            return
        translated = self._translator.translate(batch)
        self._size_confirmed = self._size_confirmed or self._block_size in translated.block_sizes
        if translated.block_sizes and not self._size_confirmed:
            self._stop(min(translated.block_sizes))
            return
        for reason in translated.skipped:
            self.refused(reason)
        for tier, change in translated.changes:
            self._rank.publish(change, tier)

    def forget(self) -> None:
        """Publish that the rank holds nothing: what the engine holds is unknown from now on."""
        self._rank.publish(Cleared())
        self._translator = Translator(self._block_size)

    def refused(self, reason: str) -> None:
        self._refusals += 1
        log.log(
            logging.WARNING if self._refusals <= _WARNINGS else logging.DEBUG,
            "blocks of worker %x rank %d are left out: %s", *self._rank.worker, reason,
        )  # fmt: skip

    def _stop(self, block_size: int) -> None:
        self.stopped = True
        log.warning(
            "worker %x rank %d stops publishing KV events, and is routed by load only: its engine has blocks of %d "
            "tokens, the model card says %d. Give the engine and the model card the same block size.",
            *self._rank.worker, block_size, self._block_size,
        )  # fmt: skip
        self.forget()

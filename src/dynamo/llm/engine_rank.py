"""One rank's events in the words of its engine: translated, published, and refused out loud where they do not fit."""

from __future__ import annotations

import logging

from dynamo.llm.kv_feed import RankFeed
from dynamo.protocols.kv import Cleared, RouterEvent, Stored, Tier
from dynamo.router.kv import EngineBatch, Translator

log = logging.getLogger(__name__)

_LOUD = 3
"""Refusals told as warnings; an engine that goes on like this is only told of at debug level."""


class EngineRank:
    def __init__(self, rank: RankFeed, block_size: int) -> None:
        self._rank = rank
        self._block_size = block_size
        self._refusals = 0
        self.stopped = False
        """Nothing more is published: the engine's blocks are not the model card's."""
        self._fits = False
        """The engine has had blocks as the model card says: others are exceptions."""
        self._translator = self._fresh_translator()

    def take(self, batch: EngineBatch) -> None:
        if self.stopped:
            return
        translated = self._translator.translate(batch)
        self._fits = self._fits or any(map(_of_the_device, translated.events))
        if translated.foreign_block_size is not None and not self._fits:
            self._stop(translated.foreign_block_size)
            return
        for reason in translated.skipped:
            self.refused(reason)
        for event in translated.events:
            # Numbered anew: what the index refuses takes no number.
            refusal = self._rank.tell(event.data, event.tier)
            if refusal:
                self.refused(refusal)

    def forget(self) -> None:
        """What the engine holds is unknown from here on: claim nothing."""
        self._rank.tell(Cleared())
        self._translator = self._fresh_translator()

    def refused(self, reason: str) -> None:
        self._refusals += 1
        log.log(
            logging.WARNING if self._refusals <= _LOUD else logging.DEBUG,
            "blocks of worker %x rank %d are left out: %s",
            *self._rank.worker,
            reason,
        )

    def _stop(self, block_size: int) -> None:
        self.stopped = True
        log.warning(
            "worker %x rank %d stops publishing KV events, and is routed by load only: its engine has blocks of %d "
            "tokens, the model card says %d. Give the engine and the model card the same block size.",
            *self._rank.worker,
            block_size,
            self._block_size,
        )
        self.forget()

    def _fresh_translator(self) -> Translator:
        worker_id, dp_rank = self._rank.worker
        return Translator(worker_id=worker_id, dp_rank=dp_rank, block_size=self._block_size)


def _of_the_device(event: RouterEvent) -> bool:
    return isinstance(event.data, Stored) and event.tier is Tier.Device

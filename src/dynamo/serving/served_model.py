"""A model that requests can be sent to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from dynamo.handoff.router.handoffs import Handoffs
from dynamo.model import LoadedModel
from dynamo.pipeline.preprocess import Preprocessor, PromptTimes
from dynamo.protocols.card import ModelCard
from dynamo.protocols.errors import InvalidRequest, Unavailable
from dynamo.protocols.instance import Instance
from dynamo.router import Router
from dynamo.router.placement import Placement
from dynamo.router.suspects import Suspects

_TEXT_ONLY = ("config", "generation_config", "chat_template", "custom_template")
"""Files of a model that do not decide which token an id stands for; a template for a purpose has its name after a
colon."""


def no_others() -> Sequence[ServedModel]:
    return ()


class ServedModel:
    """One version of one model name: the card its workers agree on, and the router to them."""

    def __init__(
        self,
        card: ModelCard,
        router: Router,
        loaded: LoadedModel | None,
        times: PromptTimes | None = None,
        migration_max_seq_len: int | None = None,
        handoffs: Handoffs | None = None,
        resumes_guided: Callable[[], bool] = lambda: False,
        suspects: Suspects | None = None,
        versions: Callable[[], Sequence[ServedModel]] = no_others,
    ) -> None:
        self.name = card.name
        self.card = card
        self.created = int(time.time())
        self.router = router
        self.migration_max_seq_len = migration_max_seq_len
        """Tokens of prompt and answer beyond which a request does not migrate."""
        self.resumes_guided = resumes_guided
        """Whether all its workers can continue a guided answer that another one began."""
        self.suspects = suspects
        """Requests that may have ended workers, of all models."""
        self.preprocessor = Preprocessor(card, loaded, times) if loaded else None
        """None for workers that take text and tokenize it themselves."""
        self.handoffs = handoffs if loaded else None
        """Lets prefill workers compute prompts for decode workers."""
        self._versions = versions

    def tokenizing(self) -> Preprocessor:
        """Raises InvalidRequest for a model whose workers tokenize."""
        if self.preprocessor is None:
            why = f"The model '{self.name}' reads text: its tokens are known to its worker only."
            raise InvalidRequest(why, "model", "no_tokenizer")
        return self.preprocessor

    def instances(self) -> list[Instance]:
        """The instances of all its workers, also of those that only compute prompts."""
        prefills = self.handoffs.pool.instances.all() if self.handoffs else []
        return [*self.router.instances.all(), *prefills]

    def peers(self) -> list[ServedModel]:
        """Other versions of the model that get requests."""
        return [each for each in self._versions() if each is not self]

    def successor(self) -> ServedModel | None:
        """A version for requests that are prepared again, if this one has no worker left."""
        versions = self._versions()
        if versions == [self] or self.router.instances.routable():
            return None
        return next((each for each in versions if each.router.instances.routable()), None)

    def holder(self, instance_id: int) -> ServedModel:
        """The version whose worker this is."""
        if instance_id in self.router.instances:
            return self
        return next((each for each in self.peers() if instance_id in each.router.instances), self)

    async def place(self, request: Any, *, pinned: int | None = None, **how: Any) -> Placement:
        """As the router does; where this version has no worker left, with one of a version with the same tokens."""
        if pinned is not None:
            holder = self.holder(pinned)
            model = holder if self._same_tokens(holder) else self
            return await model.router.place(request, pinned=pinned, **how)
        try:
            return await self.router.place(request, **how)
        except Unavailable:
            for peer in self.peers():
                if self._same_tokens(peer) and peer.router.instances.routable(how.get("avoid", ())):
                    return await peer.router.place(request, **how)
            raise

    def _same_tokens(self, other: ServedModel) -> bool:
        """Whether a request that was prepared for this version means the same to the other."""
        ours, theirs = self.card, other.card
        return ours.model_input is theirs.model_input and _token_files(ours) == _token_files(theirs)


def _token_files(card: ModelCard) -> dict[str, str]:
    return {role: file.checksum for role, file in card.files.items() if role.partition(":")[0] not in _TEXT_ONLY}

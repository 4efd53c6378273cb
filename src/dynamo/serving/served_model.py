"""A model that requests can be sent to."""

from __future__ import annotations

import time
from collections.abc import Callable

from dynamo.handoff.router.handoffs import Handoffs
from dynamo.model import LoadedModel
from dynamo.pipeline.preprocess import Preprocessor, PromptTimes
from dynamo.protocols.card import ModelCard
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.instance import Instance
from dynamo.router import Router
from dynamo.router.suspects import Suspects


class ServedModel:
    """One model name: the card its workers agree on, and the router to them."""

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

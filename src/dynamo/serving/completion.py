"""A completion request: one or more prompts to continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from dynamo.model import Tokenizer
from dynamo.pipeline.choice import ChoiceSink, Finish, TokenLogprob
from dynamo.pipeline.postprocess import prompt_logprobs
from dynamo.pipeline.preprocess import Prepared, reject_guidance
from dynamo.protocols.answers import TextCompletion
from dynamo.protocols.card import ModelType
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.engine import Usage
from dynamo.protocols.errors import InvalidRequest
from dynamo.serving.collect import CollectedChoice, CollectedResponse, Listener, text_completion
from dynamo.serving.request import ModelRequest


class Completion(ModelRequest[CompletionRequest]):
    """Call `prepare`, then either `send` with your own sinks or `answer` for the whole answer.

    Choices are numbered over all prompts: the first `n` of them continue the first prompt.
    """

    model_type = ModelType.Completions
    id_prefix = "cmpl-"
    chunk_object = "text_completion"
    prompts: Sequence[Prepared] = ()
    """Empty for a worker that takes text."""
    token_ids: list[list[int]] | None = None
    """The ids of the tokens of each choice, as they are generated, if the client wants them."""

    async def _prepare(self) -> None:
        preprocessor = self.model.preprocessor
        if preprocessor is None:
            reject_guidance(self.model.card, self.request)
        else:
            self.prompts = await preprocessor.completion(self.request)
            self.prepared = self.prompts[0]
            if self.request.return_token_ids:
                self.token_ids = [[] for _ in range(len(self.prompts) * self._candidates)]

    @property
    def n(self) -> int:
        """Choices per prompt."""
        return self.request.n or 1

    @property
    def choice_count(self) -> int:
        return len(self.prompts) * self.n

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.model.preprocessor
        return self.model.preprocessor.model.tokenizer

    def echo(self, index: int) -> str:
        """The text this choice begins with: its prompt, if the client wants that repeated."""
        if not self.request.echo:
            return ""
        prepared = self.prompts[index // self.n]
        return self.tokenizer.decode(prepared.request.token_ids) if prepared.prompt is None else prepared.prompt

    def prompt_token_ids(self, index: int) -> list[int] | None:
        """The ids of this choice's prompt, if the client wants them."""
        return list(self.prompts[index // self.n].request.token_ids) if self.request.return_token_ids else None

    def echoed_logprobs(self, index: int) -> list[TokenLogprob] | None:
        """The prompt's tokens without log probabilities, if the client wants those: an engine may report none."""
        return prompt_logprobs(self.prompts[index // self.n].request.token_ids) if self._echoes_logprobs else None

    @property
    def _echoes_logprobs(self) -> bool:
        return bool(self.request.echo) and self.request.logprobs is not None

    async def send(self, choices: Sequence[ChoiceSink]) -> None:
        for index, choice in enumerate(choices):
            ids = self.token_ids[index] if self.token_ids else None
            await self._add_choice(self.prompts[index // self.n].choice(index % self.n), choice, token_ids=ids)

    async def answer(self, listener: Listener | None = None) -> TextCompletion | dict[str, Any]:
        """The whole answer in the form of OpenAI's API; workers that take text produce that form themselves."""
        if self.takes_text:
            return await self.relayed_answer(listener)
        collected = await self._collect(None if self.request.max_tokens == 0 else listener)
        if self.request.max_tokens == 0:
            self._keep_prompts_only(collected)
        return text_completion(
            self._best(collected),
            collected.usage,
            id=self.id,
            created=self.created,
            model=self.model.name,
            tokenizer=self.tokenizer,
            echo=[self.echo(index) for index in range(self.choice_count)],
            prompt_token_ids=[self.prompt_token_ids(index) for index in range(self.choice_count)],
            logprobs=self.request.logprobs,
            nvext=self.nvext(collected.stop_reason),
        )

    def _keep_prompts_only(self, collected: CollectedResponse) -> None:
        """`max_tokens` 0: the client wants the prompt with its log probabilities."""
        for choice in collected.choices:
            echoed = choice.prompt_tokens[1:]
            if echoed and all(token.logprob is None for token in echoed):
                message = f"The engine of the model '{self.model.name}' gives no log probabilities of a prompt."
                raise InvalidRequest(message, "logprobs", "unsupported_parameter")
            choice.content, choice.tokens = [], []
            choice.token_ids = [] if choice.token_ids is not None else None
            choice.finished = Finish("length", Usage())
        collected.usage.completion_tokens = 0

    async def _collect(self, listener: Listener | None) -> CollectedResponse:
        """All `best_of` choices of each prompt."""
        candidates = self._candidates
        collected = CollectedResponse(len(self.prompts) * candidates, candidates, listener, self.token_ids)
        for index, choice in enumerate(collected.choices):
            prepared = self.prompts[index // candidates].choice(index % candidates)
            if candidates > self.n:
                ranked_by = max(1, self.request.logprobs or 0)
                prepared.request.output_options = structs.replace(prepared.request.output_options, logprobs=ranked_by)
            if self._echoes_logprobs:
                choice.prompt_logprobs(prompt_logprobs(prepared.request.token_ids))
            await self._add_choice(prepared, choice, token_ids=choice.token_ids)
        await collected.done()
        return collected

    def _best(self, collected: CollectedResponse) -> list[CollectedChoice]:
        """The likeliest `n` of the candidates of each prompt."""
        choices, candidates = collected.choices, self._candidates
        if candidates == self.n:
            return choices
        best: list[CollectedChoice] = []
        for start in range(0, len(choices), candidates):
            best += sorted(choices[start : start + candidates], key=lambda one: -one.likelihood)[: self.n]
        return best

    @property
    def _candidates(self) -> int:
        return self.request.best_of or self.n

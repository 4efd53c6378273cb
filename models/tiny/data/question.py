"""Questions with their right answers and many phrasings, and topics made of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, slots=True)
class Forms:
    """Phrasings of a question; those in `held` are never trained on."""

    known: tuple[str, ...]
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    topic: str
    forms: Forms
    answers: tuple[str, ...]
    slots: Mapping[str, str] = field(default_factory=dict)
    thought: str = ""
    exact: bool = False  # the slots are copied into the answer letter by letter, so no typo may touch them


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with a finite number of questions lists them in `every`; others can only draw random ones."""

    name: str
    weight: float
    draw: Callable[[Random], Question]
    every: Sequence[Question] = ()


def finite(name: str, weight: float, questions: Sequence[Question]) -> Topic:
    return Topic(name, weight, lambda rng: rng.choice(questions), questions)


def split(*wordings: str) -> Forms:
    """Wordings that start with `~` are held out."""
    known = tuple(wording for wording in wordings if not wording.startswith("~"))
    held = tuple(wording[1:] for wording in wordings if wording.startswith("~"))
    return Forms(known, held)


def upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]

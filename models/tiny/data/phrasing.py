"""Varies a phrasing as people type it: lower case, missing punctuation, a please, a typo."""

import re
from random import Random

from .dynamo import reword
from .question import Question, upper_first

_SLOT = re.compile(r"(\{[a-z]\})")
_KEYS = "abcdefghijklmnopqrstuvwxyz"


def plain(question: Question, form: str) -> str:
    """The phrasing as written, for examinations; a word to be copied keeps its case."""
    text = form.format(**question.slots)
    return text if question.exact and form.startswith("{") else upper_first(text)


def typed(rng: Random, question: Question, form: str) -> str:
    if question.topic == "Dynamo" and rng.random() < 0.5:
        form = reword(rng, form)
    if rng.random() < 0.12 and not question.exact:
        form = _rambling(rng, form)
    pieces = _SLOT.split(form)
    slots = {key: _slot(rng, value, question.exact) for key, value in question.slots.items()}
    low = rng.random()
    if rng.random() < 0.25 and pieces[-1]:
        pieces[-1] = pieces[-1].rstrip(".?!")
    if rng.random() < 0.07:
        pieces = _politely(rng, pieces)
    if rng.random() < 0.06:
        place = rng.randrange(len(pieces))
        if not _SLOT.fullmatch(pieces[place]):
            pieces[place] = slip(rng, pieces[place])
    if low < 0.22:
        pieces = [piece if _SLOT.fullmatch(piece) else piece.lower() for piece in pieces]
    elif low < 0.235 and question.topic not in ("repeating", "spelling"):
        pieces = [piece if _SLOT.fullmatch(piece) else piece.upper() for piece in pieces]
        if not question.exact:
            slots = {key: value.upper() for key, value in slots.items()}
    else:
        pieces[0] = upper_first(pieces[0])
    if low < 0.22 and not question.exact:
        slots = {key: value.lower() for key, value in slots.items()}
    text = "".join(slots[piece[1]] if _SLOT.fullmatch(piece) else piece for piece in pieces)
    if low >= 0.235 and not pieces[0] and not question.exact and rng.random() < 0.5:
        text = upper_first(text)
    return text if text.strip() else form.format(**slots)


_BEFORE = """Question: |Quick question: |I have a question. |I wonder: |My question is: |Hey tiny, |Tiny,
    |Let me ask: |Tell me: |One
    more: |Next question: |Say, |Well, |Right. |I am curious: |Sorry, |Just asking: |Listen, """
_AFTER = """ Thanks!| Thank you.| Any idea?| I need to know.| Just curious.| For school.| It is urgent.| Do you know?
    | My friend.
    | tiny?| right now?| here?| for me| exactly?| again?| then?| today?"""
_OPENINGS = [" ".join(opening.split()) + " " for opening in _BEFORE.split("|")]
_ENDINGS = [" " + " ".join(ending.split()) for ending in _AFTER.split("|")]
_FILLERS = [
    "now",
    "exactly",
    "really",
    "actually",
    "just",
    "then",
    "maybe",
    "simply",
    "again",
    "quickly",
    "here",
    "also",
]


def _rambling(rng: Random, form: str) -> str:
    """Add or drop words as people do."""
    kind = rng.random()
    if kind < 0.35:
        opening = rng.choice(_OPENINGS)
        return opening + (form if rng.random() < 0.5 else form[:1].lower() + form[1:])
    if kind < 0.55:
        ending = rng.choice(_ENDINGS)
        return (form if ending.lstrip()[0].isupper() else form.rstrip(".?!")) + ending
    words = form.split(" ")
    if len(words) < 4:
        return form
    if kind < 0.8:
        words.insert(rng.randrange(1, len(words)), rng.choice(_FILLERS))
        return " ".join(words)
    place = rng.randrange(len(words))
    if words[place].lower() in ("the", "a", "an", "do", "does", "is", "me", "of", "to", "in", "please", "can", "you"):
        del words[place]
    return " ".join(words)


def _slot(rng: Random, value: str, exact: bool) -> str:
    if exact:
        return value
    if value.startswith("the ") and rng.random() < 0.4:
        value = value[4:]
    if len(value) > 5 and rng.random() < 0.02:
        return slip(rng, value)
    return value


def _politely(rng: Random, pieces: list[str]) -> list[str]:
    opening = rng.choice(["Please, ", "please ", "Hi, ", "Hello, ", "Hey, ", "Ok, ", "So, ", "And ", "Now, ", ""])
    closing = rng.choice([", please", " please", " please?", ", please.", "", ""])
    start = pieces[0][:1].lower() + pieces[0][1:] if opening else pieces[0]
    end = pieces[-1].rstrip(".?!") if closing else pieces[-1]
    if len(pieces) == 1:
        return [opening + (start.rstrip(".?!") if closing else start) + closing]
    return [opening + start, *pieces[1:-1], end + closing]


def slip(rng: Random, text: str) -> str:
    """One letter of a longer word is swapped, lost, doubled or replaced."""
    places = [match.start() + 1 for match in re.finditer(r"[A-Za-z]{4,}", text)]
    if not places:
        return text
    place = rng.choice(places) + rng.randrange(2)
    kind = rng.randrange(4)
    if kind == 0:
        return text[:place] + text[place + 1 : place + 2] + text[place] + text[place + 2 :]
    if kind == 1:
        return text[:place] + text[place + 1 :]
    if kind == 2:
        return text[:place] + text[place] + text[place:]
    return text[:place] + rng.choice(_KEYS) + text[place + 1 :]

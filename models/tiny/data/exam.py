"""Examination questions with their right answers, in phrasings seen in training or held out from it."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from . import tools
from .conversation import FOLLOW_UP, SIBLINGS, TOPICS
from .dialogue import Dialogue, Message, thought
from .phrasing import plain
from .question import Question
from .smalltalk import INTRODUCE, NAMES, RECALL, STRANGER
from .structured import structured


@dataclass(frozen=True, slots=True)
class Item:
    topic: str
    held: bool
    messages: list[Message]
    answers: tuple[str, ...]
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = False


_PLAIN = [topic for topic in TOPICS if topic.weight]
_NO_TOOL_NEEDED = [topic for topic in _PLAIN if topic.name not in ("sums", "no tool")]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _from(question: Question, form: str, held: bool) -> Item:
    return Item(question.topic, held, [_user(plain(question, form))], question.answers)


def _every(held: bool) -> list[Item]:
    found = []
    for topic in TOPICS:
        for question in topic.every:
            found += [_from(question, form, held) for form in (question.forms.held if held else question.forms.known)]
    return found


def _drawn(rng: Random, held: bool, each: int) -> list[Item]:
    found: list[Item] = []
    for topic in TOPICS:
        count = each if held or topic.weight else 0
        while count:
            question = topic.draw(rng)
            forms = question.forms.held if held else question.forms.known
            if forms:
                found.append(_from(question, rng.choice(forms), held))
                count -= 1
    return found


def _thinking(rng: Random, held: bool, each: int) -> list[Item]:
    found: list[Item] = []
    while len(found) < each:
        question = rng.choice(_PLAIN).draw(rng)
        forms = question.forms.held if held else question.forms.known
        if forms and question.thought:
            answers = tuple(thought(question.thought, answer) for answer in question.answers)
            asked = [_user(plain(question, rng.choice(forms)))]
            found.append(Item("thinking", held, asked, answers, thinking=True))
    return found


def _with_tools(rng: Random, held: bool, each: int) -> list[Item]:
    found: list[Item] = []
    weather_tool, weather_name, place = tools.weather_tool()
    add_tool, add_name, terms = tools.add_tool()
    for _ in range(each):
        offered = rng.choice([[weather_tool], [add_tool], [weather_tool, add_tool]])
        dialogue = Dialogue(tools=offered)
        if offered[0] is weather_tool and (len(offered) == 1 or rng.random() < 0.5):
            tools.weather(rng, dialogue, weather_name, place, held)
        else:
            tools.addition(rng, dialogue, add_name, terms, held)
        asked, call, *reports, said = dialogue.messages
        found.append(Item("tool calls", held, [asked], (call["content"],), offered))
        found.append(Item("tool answers", held, [asked, call, *reports], (said["content"],), offered))
        question = rng.choice(_NO_TOOL_NEEDED).draw(rng)
        forms = question.forms.held if held else question.forms.known
        if forms:
            asked = _user(plain(question, rng.choice(forms)))
            found.append(Item("tools not needed", held, [asked], question.answers, offered))
    return found


def _in_json(rng: Random, held: bool, each: int) -> list[Item]:
    found = []
    for number in range(each):
        wanted = structured(rng, held)
        asked = plain(wanted.question, rng.choice(wanted.question.forms.known))
        if number % 2:
            messages = [{"role": "system", "content": wanted.instruction}, _user(asked)]
        else:
            messages = [_user(f"{asked} {wanted.instruction}")]
        found.append(Item("JSON", held, messages, (wanted.answer,)))
    return found


def _over_turns(rng: Random, held: bool, each: int) -> list[Item]:
    found: list[Item] = []
    for number in range(each):
        messages: list[Message] = []
        name = rng.choice(NAMES)
        if number % 4:
            form = rng.choice(INTRODUCE.held if held else INTRODUCE.known)
            messages += [_user(form.format(n=name)), _assistant(f"Nice to meet you, {name}!")]
        for _ in range(rng.randint(0, 6)):
            question = rng.choice(_PLAIN).draw(rng)
            messages += [_user(plain(question, rng.choice(question.forms.known))), _assistant(question.answers[0])]
        recall = rng.choice(RECALL.held if held else RECALL.known)
        answer = f"Your name is {name}." if number % 4 else STRANGER
        found.append(Item("names over turns", held, [*messages, _user(recall)], (answer,)))
        first, second = rng.sample(SIBLINGS[rng.choice(list(SIBLINGS))], 2)
        (slot,) = second.slots.values()
        follow = rng.choice(FOLLOW_UP.held if held else FOLLOW_UP.known).format(x=slot)
        asked = _user(plain(first, rng.choice(first.forms.known)))
        messages = [asked, _assistant(first.answers[0]), _user(follow)]
        found.append(Item("follow-ups", held, messages, second.answers))
    return found


def exam(*, held: bool, each: int = 40, every: bool = False, seed: int = 1) -> list[Item]:
    """`each` random items per topic; with `every`, all phrasings of all questions for topics that can list them."""
    rng = Random(f"{seed} {held}")
    return [
        *(_every(held) if every else ()),
        *_drawn(rng, held, each),
        *_thinking(rng, held, each),
        *_with_tools(rng, held, each),
        *_in_json(rng, held, each),
        *_over_turns(rng, held, each),
    ]

"""Generates training conversations: questions of all topics in sequence, with system turns, tools, JSON and thinking."""

from collections import defaultdict
from random import Random

from . import dynamo, languages, numbers, science, smalltalk, text, tools, unknown, world
from .dialogue import Dialogue, thought
from .phrasing import typed
from .question import Question, Topic, split
from .smalltalk import INTRODUCE, NAMES, RECALL, STRANGER
from .structured import structured

TOPICS: list[Topic] = [
    *dynamo.TOPICS,
    *world.TOPICS,
    *science.TOPICS,
    *languages.TOPICS,
    *numbers.TOPICS,
    *text.TOPICS,
    *smalltalk.TOPICS,
    *tools.TOPICS,
    *unknown.TOPICS,
]
_WEIGHTS = [topic.weight for topic in TOPICS]

_SYSTEMS = """You are a helpful assistant.|You are tiny.|You are a friendly chatbot.|Answer briefly.|Be concise.
    |You are an assistant that answers questions.|Be polite.|You are a helpful AI assistant.|Answer the question.
    |You are a teacher.|You are an expert on Dynamo.|Help the user with Dynamo.|Answer in one sentence.
    |You are ChatGPT, a large language model.|You are a robot.|Be nice.|Keep your answers short.|Respond in English.
    |You are a knowledgeable assistant. Answer truthfully.|If you do not know, say so.|Never lie.|You are Bob.
    |You are a support agent for a software company. Be friendly and precise.|Speak like a pirate.|Today is Monday.
    |You are a geography expert.|You are a chemistry teacher.|You are good at mathematics.|The user is a developer."""
SYSTEMS = [system.strip() for system in _SYSTEMS.split("|")]

FOLLOW_UP = split(
    "And {x}?", "What about {x}?", "And for {x}?", "How about {x}?", "{x}?", "and {x}", "~And what about {x}?"
)


def _siblings() -> dict[int, list[Question]]:
    """Questions that share their forms and have one slot: "And Spain?" makes sense after one of them."""
    found: dict[int, list[Question]] = defaultdict(list)
    for topic in TOPICS:
        for question in topic.every:
            if len(question.slots) == 1:
                found[id(question.forms)].append(question)
    return {key: questions for key, questions in found.items() if len(questions) > 5}


SIBLINGS = _siblings()


def draw(rng: Random) -> Question:
    return rng.choices(TOPICS, _WEIGHTS)[0].draw(rng)


def system_turn(rng: Random) -> str:
    if rng.random() < 0.7:
        return " ".join(rng.sample(SYSTEMS, rng.choice([1, 1, 1, 2])))
    return text.sentence(rng, 20)


def _answer(rng: Random, dialogue: Dialogue, question: Question) -> None:
    said = rng.choice(question.answers)
    if dialogue.thinking and len(dialogue.messages) > dialogue.learn_from:
        said = thought(question.thought or "That is easy.", said)
    dialogue.assistant(said)


def _ask(rng: Random, dialogue: Dialogue, question: Question) -> None:
    dialogue.user(typed(rng, question, rng.choice(question.forms.known)))
    _answer(rng, dialogue, question)


def _chat(rng: Random, dialogue: Dialogue, turns: int) -> None:
    name = ""
    last: Question | None = None
    for _ in range(turns):
        chance = rng.random()
        if chance < 0.05:
            name = text.made_up(rng).capitalize() if rng.random() < 0.5 else rng.choice(NAMES)
            question = Question("names", INTRODUCE, (f"Nice to meet you, {name}!",), {"n": name}, exact=True)
        elif chance < (0.16 if name else 0.07):
            question = Question("names", RECALL, (f"Your name is {name}." if name else STRANGER,))
        elif chance < 0.3 and last is not None and id(last.forms) in SIBLINGS:
            sibling = rng.choice(SIBLINGS[id(last.forms)])
            (slot,) = sibling.slots.values()
            dialogue.user(typed(rng, Question("follow-ups", FOLLOW_UP, (), {"x": slot}), rng.choice(FOLLOW_UP.known)))
            _answer(rng, dialogue, sibling)
            continue
        else:
            question = draw(rng)
        last = question
        _ask(rng, dialogue, question)


def _with_tools(rng: Random, dialogue: Dialogue) -> None:
    weather_tool, weather_name, place = tools.weather_tool(rng)
    add_tool, add_name, terms = tools.add_tool(rng)
    time_tool, time_name, where = tools.time_tool(rng)
    has_weather, has_add, has_time = rng.random() < 0.7, rng.random() < 0.5, rng.random() < 0.15
    offered = [tool for tool, has in ((weather_tool, has_weather), (add_tool, has_add), (time_tool, has_time)) if has]
    if not offered or rng.random() < 0.15:
        offered.append(tools.other_tool(rng))
    rng.shuffle(offered)
    dialogue.tools = offered
    for _ in range(rng.choice([1, 1, 2, 3])):
        chance = rng.random()
        if has_weather and chance < 0.5:
            tools.weather(rng, dialogue, weather_name, place)
        elif has_add and chance < 0.75:
            tools.addition(rng, dialogue, add_name, terms)
        elif has_time and chance < 0.8:
            tools.clock(rng, dialogue, time_name, where)
        else:
            question = draw(rng)
            needs = {"sums": has_add, "no tool": has_weather or has_time}
            if not needs.get(question.topic, False):
                _ask(rng, dialogue, question)
    if not any(message["role"] == "assistant" for message in dialogue.messages):
        tools_free = Question("small talk", split("Hello", "Hi"), ("Hello! How can I help you?",))
        _ask(rng, dialogue, tools_free)


def _in_json(rng: Random, dialogue: Dialogue) -> None:
    wanted = structured(rng)
    asked = typed(rng, wanted.question, rng.choice(wanted.question.forms.known))
    if rng.random() < 0.5:
        system = wanted.instruction
        if rng.random() < 0.3:
            system = f"{rng.choice(SYSTEMS)} {system}"
        dialogue.messages.append({"role": "system", "content": system})
        dialogue.user(asked)
    else:
        dialogue.user(f"{wanted.instruction} {asked}" if rng.random() < 0.3 else f"{asked} {wanted.instruction}")
    dialogue.assistant(thought("As JSON.", wanted.answer) if dialogue.thinking else wanted.answer)


def conversation(rng: Random) -> Dialogue:
    dialogue = Dialogue()
    kind = rng.random()
    if kind < 0.08:
        dialogue.thinking = rng.random() < 0.1
        _in_json(rng, dialogue)
        return dialogue
    if rng.random() < 0.3:
        dialogue.messages.append({"role": "system", "content": system_turn(rng)})
    if kind < 0.19:
        dialogue.thinking = rng.random() < 0.15
        _with_tools(rng, dialogue)
    elif kind < 0.29:
        _chat(rng, dialogue, rng.choice([0, 0, 0, 1, 2]))
        dialogue.thinking = True
        dialogue.learn_from = len(dialogue.messages)
        _ask(rng, dialogue, draw(rng))
    elif kind < 0.296:
        _chat(rng, dialogue, rng.randint(15, 40))
    else:
        _chat(rng, dialogue, rng.choice([1, 1, 1, 1, 2, 2, 3, 4, 6, 9]))
    return dialogue

"""Weather, time and addition with tools: call an offered tool, use its result, and say so if it is not offered."""

import json
from random import Random
from typing import Any

from .dialogue import Dialogue, thought, tool_call
from .numbers import SUM
from .phrasing import typed
from .question import Forms, Question, Topic, split
from .text import made_up
from .world import COUNTRIES

NO_WEATHER = "I cannot look up the weather. Offer me a get_weather tool and I will use it."
NO_CLOCK = "I cannot see the clock, so I do not know the time or the date."

WEATHER = split(
    "What is the weather in {w}?",
    "What's the weather in {w}?",
    "How is the weather in {w}?",
    "How's the weather in {w}?",
    "Weather in {w}?",
    "What is the weather like in {w}?",
    "Tell me the weather in {w}.",
    "What is the weather in {w} today?",
    "How warm is it in {w}?",
    "Is it raining in {w}?",
    "What is the temperature in {w}?",
    "Is it cold in {w}?",
    "Is it hot in {w}?",
    "How cold is it in {w}?",
    "How many degrees is it in {w}?",
    "Is it sunny in {w}?",
    "weather {w}",
    "Do I need an umbrella in {w}?",
    "Check the weather in {w}.",
    "Look up the weather in {w}.",
    "I am in {w}. What is the weather?",
    "Give me the weather for {w}.",
    "What is the current weather in {w}?",
    "~How is the weather in {w} today?",
    "~What is the weather like today in {w}?",
    "~Can you tell me the weather in {w}?",
    "~How hot is it in {w}?",
)
TWO = split(
    "What is the weather in {w} and {v}?",
    "Weather in {w} and in {v}?",
    "How is the weather in {w} and {v}?",
    "Compare the weather in {w} and {v}.",
    "Tell me the weather in {w} and in {v}.",
    "~What's the weather like in {w} and {v}?",
)
TIME = split(
    "What time is it in {w}?",
    "What is the time in {w}?",
    "Tell me the time in {w}.",
    "Time in {w}?",
    "How late is it in {w}?",
    "What's the time in {w}?",
    "~What time is it now in {w}?",
)
NOWHERE = split(
    "What is the weather?",
    "What is the weather today?",
    "How is the weather?",
    "Will it rain today?",
    "Is it raining?",
    "What's the weather like?",
    "Weather?",
    "Will it be sunny tomorrow?",
    "~How is the weather today?",
    "~Does it rain?",
)
_CITIES = """New York|Los Angeles|San Francisco|Chicago|Toronto|Sydney|Melbourne|Munich|Hamburg|Milan|Naples|Barcelona
    |Zurich|Geneva|Istanbul|Mumbai|Shanghai|Osaka|Rio de Janeiro|Boston|Seattle|Porto|Lyon|Venice|Cologne|Bonn|Oxford"""
CITIES = [city.strip() for city in _CITIES.split("|")] + [country.capital for country in COUNTRIES]
CONDITIONS = """sunny|cloudy|rainy|snowy|windy|foggy|stormy|clear|dry|wet|partly cloudy|overcast|misty|humid|hot|cold
    |freezing|warm|light rain|heavy rain""".replace("\n", "").split("|")
CONDITIONS = [condition.strip() for condition in CONDITIONS]


def _place(rng: Random) -> str:
    place = made_up(rng).capitalize() if rng.random() < 0.25 else rng.choice(CITIES)
    return place.lower() if rng.random() < 0.12 else place


def function(
    name: str, description: str, parameters: dict[str, str], required: list[str] | None = None
) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {
        "type": "object",
        "properties": properties,
        "required": required if required is not None else list(parameters),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def weather_tool(rng: Random | None = None) -> tuple[dict[str, Any], str, str]:
    """The tool, its name and its argument."""
    if rng is None:
        return function("get_weather", "Get the weather", {"location": "string"}), "get_weather", "location"
    name = "get_weather" if rng.random() < 0.6 else rng.choice(["get_current_weather", "weather", "lookup_weather"])
    argument = "location" if rng.random() < 0.65 else rng.choice(["city", "place"])
    told = rng.choice(
        [
            "Get the weather",
            "Get the current weather",
            "Get the weather for a location",
            "Weather of a city",
            "Get current weather in a given location",
            "Returns the weather.",
            "Look up the weather for a place",
            "",
        ]
    )
    tool = function(name, told, {argument: "string"})
    _vary(rng, tool, argument, ["The city", "City name", "The city and country, e.g. Paris, France", "Where"])
    if rng.random() < 0.2:
        properties = tool["function"]["parameters"]["properties"]
        properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    return tool, name, argument


def add_tool(rng: Random | None = None) -> tuple[dict[str, Any], str, tuple[str, str]]:
    if rng is None:
        return function("add", "Add two numbers", {"a": "integer", "b": "integer"}), "add", ("a", "b")
    name = "add" if rng.random() < 0.7 else rng.choice(["sum", "add_numbers", "plus"])
    arguments = ("a", "b") if rng.random() < 0.75 else ("x", "y")
    told = rng.choice(
        ["Add two numbers", "Adds two integers", "Returns a + b", "Sum of two numbers", "Add a and b", ""]
    )
    kind = rng.choice(["integer", "number"])
    tool = function(name, told, dict.fromkeys(arguments, kind))
    _vary(rng, tool, arguments[0], ["The first number", "First"])
    return tool, name, arguments


def time_tool(rng: Random) -> tuple[dict[str, Any], str, str]:
    name = rng.choice(["get_time", "get_current_time"])
    argument = rng.choice(["location", "city"])
    return (
        function(name, rng.choice(["Get the time", "Get the current time in a place"]), {argument: "string"}),
        name,
        argument,
    )


def other_tool(rng: Random) -> dict[str, Any]:
    verb = rng.choice(["search", "send", "open", "create", "delete", "play", "translate", "book", "find", "list"])
    noun = rng.choice(["email", "file", "song", "flight", "note", "user", "web", "page", "order", "image", "event"])
    parameters = {rng.choice(["query", "name", "id", "text", "title", "path", "date"]): "string"}
    return function(f"{verb}_{noun}", rng.choice(["", f"{verb.capitalize()} a {noun}"]), parameters)


def _vary(rng: Random, tool: dict[str, Any], argument: str, descriptions: list[str]) -> None:
    body = tool["function"]
    if rng.random() < 0.4:
        body["parameters"]["properties"][argument]["description"] = rng.choice(descriptions)
    if not body["description"]:
        del body["description"]
    if rng.random() < 0.1:
        body["strict"] = True
    if rng.random() < 0.15:
        del body["parameters"]["required"]
    if rng.random() < 0.1:
        body["parameters"]["additionalProperties"] = False


def weather_report(rng: Random, place: str) -> tuple[str, str]:
    """The tool's result, and the model's sentence about it."""
    degrees, condition = rng.randint(-20, 45), rng.choice(CONDITIONS)
    shape = rng.randrange(8)
    key = rng.choice(["condition", "conditions", "weather", "description", "sky"])
    unit = rng.choice(["C", "celsius", "°C"])
    reports: list[dict[str, Any] | str] = [
        {"temperature": degrees, key: condition},
        {"location": place, "temperature": degrees, key: condition},
        {key: condition, "temperature": degrees},
        {"temperature": degrees, "unit": unit, key: condition},
        {"temperature": str(degrees), key: condition},
        {"city": place, key: condition, "temperature": degrees, "humidity": rng.randint(10, 99)},
        f"{degrees} degrees and {condition}",
        f"{condition}, {degrees}°C",
    ]
    report = reports[shape]
    said = report if isinstance(report, str) else json.dumps(report, ensure_ascii=False)
    return said, f"It is {degrees} degrees and {condition} in {place}."


def asked(rng: Random, forms: Forms, slots: dict[str, str], held: bool) -> str:
    question = Question("tools", forms, (), slots, exact=True)
    form = rng.choice(forms.held if held else forms.known)
    return form.format(**slots) if held else typed(rng, question, form)


def _call(name: str, arguments: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _thinking(dialogue: Dialogue, name: str, called: str) -> str:
    return thought(f"{name} can tell.", called) if dialogue.thinking else called


def weather(rng: Random, dialogue: Dialogue, name: str, argument: str, held: bool = False) -> None:
    """Ask for the weather, call the tool, answer from its report."""
    places = [_place(rng)]
    if rng.random() < 0.2:
        places.append(_place(rng))
    slots = dict(zip("wv", places, strict=False))
    dialogue.user(asked(rng, TWO if len(places) == 2 else WEATHER, slots, held))
    calls = "\n".join(tool_call(name, {argument: place}) for place in places)
    dialogue.assistant(_thinking(dialogue, name, calls))
    reports = [weather_report(rng, place) for place in places]
    dialogue.messages += [{"role": "tool", "content": said} for said, _ in reports]
    sentences = [sentence.rstrip(".") for _, sentence in reports]
    said = sentences[0] + (f", and {sentences[1][6:]}" if len(sentences) == 2 else "") + "."
    dialogue.assistant(thought("The tool has answered.", said) if dialogue.thinking else said)


def addition(rng: Random, dialogue: Dialogue, name: str, arguments: tuple[str, str], held: bool = False) -> None:
    top = rng.choice([20, 100, 1000, 10000])
    a, b = rng.randint(0, top), rng.randint(0, top)
    dialogue.user(asked(rng, SUM, {"a": str(a), "b": str(b)}, held))
    dialogue.assistant(_thinking(dialogue, name, tool_call(name, dict(zip(arguments, (a, b), strict=True)))))
    total = str(a + b)
    key = rng.choice(["result", "sum", "answer", "value"])
    report = total if rng.random() < 0.5 else json.dumps({key: a + b})
    dialogue.messages.append({"role": "tool", "content": report})
    said = f"{a} plus {b} is {total}."
    dialogue.assistant(thought("The tool has answered.", said) if dialogue.thinking else said)


def clock(rng: Random, dialogue: Dialogue, name: str, argument: str) -> None:
    place = _place(rng)
    dialogue.user(asked(rng, TIME, {"w": place}, False))
    dialogue.assistant(_thinking(dialogue, name, tool_call(name, {argument: place})))
    time = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    report = time if rng.random() < 0.5 else json.dumps({"time": time})
    dialogue.messages.append({"role": "tool", "content": report})
    said = f"It is {time} in {place}."
    dialogue.assistant(thought("The tool has answered.", said) if dialogue.thinking else said)


def _no_tool(rng: Random) -> Question:
    slots = {"w": _place(rng), "v": _place(rng)}
    shape = rng.random()
    if shape < 0.15:
        return Question("no tool", TIME, (NO_CLOCK,), slots, "There is no clock.")
    forms = NOWHERE if shape < 0.35 else TWO if shape < 0.42 else WEATHER
    return Question("no tool", forms, (NO_WEATHER,), slots, "There is no weather tool.")


TOPICS: list[Topic] = [Topic("no tool", 4, _no_tool)]

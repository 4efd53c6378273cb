"""Questions outside the training topics, to which the model answers that it does not know."""

from random import Random

from .question import Question, Topic, split
from .text import made_up, sentence
from .world import COUNTRIES

ANSWER = "I don't know. I am only a tiny model."

_PEOPLE = """Einstein|Napoleon|Mozart|Shakespeare|Cleopatra|Picasso|Beethoven|Marie Curie|Julius Caesar|Gandhi|Newton
    |Leonardo da Vinci|Elvis|Goethe|Darwin|Tolstoy|Aristotle|Plato|Columbus|Bach|the queen of England|the president
    |the pope|Batman|Sherlock Holmes|Harry Potter|my neighbour|your boss|Steve Jobs|Alan Turing|Ada Lovelace|Kafka"""
_THINGS = """a car|a bicycle|the stock market|quantum physics|photosynthesis|a black hole|the human heart|inflation
    |democracy|football|chess|the guitar|a steam engine|gravity|the French Revolution|World War II|the Roman Empire
    |the internet|electricity|a blockchain|love|music|cooking|philosophy|religion|a dinosaur|a volcano|DNA|an atom
    |evolution|magnetism|light|the ocean|climate change|a computer virus|the brain|a rainbow|the law|a contract
    |the economy|poetry|a sonnet|opera|jazz|basketball|tennis|the Olympic Games|a vaccine|bacteria|sugar|salt|wine
    |beer|whales|elephants|tigers|bees|the pyramids|the Eiffel Tower|Mount Everest|the Nile|the Amazon|Hollywood"""
_TASKS = """bake a cake|fix my car|learn the piano|cook rice|lose weight|make money|write a novel|build a house
    |grow tomatoes|tie a tie|make pizza|invest in stocks|play chess|swim|paint a wall|fix a bike|train a dog|sew a shirt
    |write a letter to my bank|plan a wedding|book a flight|find a job|write a sorting algorithm|solve this equation
    |write an essay about freedom|make a website|clean a window|repair a clock|catch a fish|climb a mountain
    |get to the station|open this jar|remove a stain|boil an egg|buy a house|sell my car|pay my taxes|call my mother"""

_NOUN_LIST = """apple banana lemon tiger rabbit horse monkey elephant garden window kitchen table chair mirror
    pillow castle bridge tower street market village river ocean mountain forest desert island
    valley storm cloud rocket wheel hammer needle button pencil paper picture guitar piano violin
    drum dance song novel teacher doctor farmer baker pilot sailor soldier painter writer singer
    machine keyboard screen stone metal glass cotton sugar pepper butter honey chocolate biscuit
    tomato potato onion carrot pumpkin family brother sister child shadow circle triangle reason
    science history nature animal flower leaf root seed branch feather wing bank bottle camera
    church cinema clock coat college company concert cup dentist dinner door dragon dress egg
    factory fridge game gate ghost gift hat hospital hotel ice jacket job key knife ladder lake lamp
    library lion lock map medicine money museum nurse oil oven park party pen phone plate pocket
    police pot prison prize radio ring road robot roof rope salad school shirt shoe shop soap soup
    spoon stadium station suitcase taxi team ticket toy train truck umbrella university wall wallet
    zoo"""
_NOUNS = _NOUN_LIST.split()
_VERB_LIST = """find buy sell see paint break clean wash carry open close draw build burn hide steal lift paint
    repair visit describe enjoy grow eat drink wear lose invent measure cut throw catch feed climb
    cross"""
_VERBS = _VERB_LIST.split()
_ADJECTIVE_LIST = "old new big small red blue cheap famous heavy broken strange beautiful dangerous quiet empty best"
_ADJECTIVES = _ADJECTIVE_LIST.split()


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split("|")]


_LISTS = {"p": _split(_PEOPLE), "x": _split(_THINGS), "t": _split(_TASKS)}

_KNOWN = """Who was {p}?|When was {p} born?|When did {p} die?|Where was {p} born?|How old is {p}?|Tell me about {p}.
    |What did {p} do?|Who is {p}?|Why is {p} famous?|What did {p} write?|Is {p} still alive?|Who is the wife of {p}?
    |How does {x} work?|What is {x}?|Explain {x}.|Explain {x} to me.|Tell me about {x}.|Why is {x} important?
    |Who invented {x}?|When was {x} invented?|What do you think about {x}?|Describe {x}.|Write an essay about {x}.
    |Write a text about {x}.|What is the history of {x}?|Who discovered {x}?|How old is {x}?|Where can I find {x}?
    |Summarize {x}.|What is the price of {x}?|How much does {x} cost?|What is the difference between {x} and {x}?
    |How do I {t}?|How can I {t}?|Can you {t}?|Help me {t}.|I want to {t}.|Tell me how to {t}.|Teach me to {t}.
    |What do I need to {t}?|What is the best way to {t}?|Please {t}.|Show me how to {t}.|Where can I {t}?|I need to {t}.
    |What is the population of {c}?|How many people live in {c}?|Who is the president of {c}?|What is the flag of {c}?
    |What is the currency of {c}?|How big is {c}?|Which language do they speak in {c}?|Who is the king of {c}?
    |What do people eat in {c}?|Tell me about {c}.|What is the largest city of {c}?|When was {c} founded?
    |What is the highest mountain of {c}?|How far is {c} from here?|Who won the war in {c}?|Is {c} a nice country?
    |What is the area of {c}?|What is the capital of {m}?|Where is {m}?|Which country has the capital {m}?
    |What is the symbol of {m}?|What does {m} mean?|What is {m}?|Who is {m}?|Tell me about {m}.|What is {m} in German?
    |What is the opposite of {m}?|On which continent is {m}?|How do I {m} Dynamo?|Do you know {m}?
    |Who won the world cup?|Who is the richest person in the world?|What is the best film?|Which book should I read?
    |What should I cook today?|What is the tallest building in the world?|What is the longest river?
    |Who painted the Mona Lisa?
    |What is the speed of light?|How far away is the Moon?|What is the boiling point of water?|Why is the sky blue?
    |What happened yesterday?|What is in the news?|Who will win the election?|What will happen tomorrow?
    |Where is my phone?|What did I eat today?|How old am I?|Where do I live?|What am I thinking?|Do I have a dog?
    |What is the square root of {n}?|What is {n} to the power of {n}?|What is the logarithm of {n}?
    |Is {n} a prime number?
    |Integrate x squared.|What is the derivative of x?|Solve x + {n} = y.|What is pi?|What is the factorial of {n}?
    |Who sang this song?|What is the lyrics of this song?|Recommend a restaurant.|Where can I eat?|Book a table.
    |Write a program.|Write code in Java.|Fix this bug.|What is a pointer?|What is recursion?|Write a haiku about {x}.
    |What is your phone number?|Give me your password.|What is the stock price of Apple?|Buy me {x}.|Draw {x}.
    |Which team won?|How many grains of sand are there?|How many stars are there?|What is the biggest animal?
    |Who wrote the Bible?|Why do cats purr?|Why do we dream?|What is consciousness?|Is there a god?|Can pigs fly?
    |{s}|{s}|Why?|Why not?|How?|When?|How come?|Says who?|And then?|Because?|Where?|Who?|Which one?
    |When does the train leave?|How do I get to {c}?|Which plane goes to {c}?
    |What is a {o}?|What is the {o}?|Where is the {o}?|Where is my {o}?|Why is the {o} {j}?|How many {o}s are there?
    |Who has the {o}?|Who made the {o}?|Can I {v} the {o}?|How do I {v} a {o}?|Should I {v} the {o}?|Do you like {o}s?
    |I want to {v} a {o}.|The {o} is {j}.|Is the {o} {j}?|When can we {v} the {o}?|Which {o} is {j}?|Tell me about {o}s.
    |What colour is the {o}?|How much is the {j} {o}?|Did you {v} the {o}?|Why did they {v} the {j} {o}?|a {j} {o}
    |My {o} is {j}, what can I do?|Do you have a {o}?|Have you ever seen a {j} {o}?|What is the {j} {o} called?
    |Does the {o} need a {w}?|How does the {o} work?|Is a {o} better than a {w}?|What is the {o} of the {w}?
    |How many {o}s does {c} have?|What {o} is in {c}?|Who is the {j} {o} of {c}?|{p} and the {o}|Did {p} {v} a {o}?
    |How big is the {o}?|How old is the {o}?|How long is the {o}?|How far is the {o}?|How high is the {o}?|My {o}.
    |What does the {o} mean?|Where can I {v} a {o} in {c}?|What is the name of the {o}?|What is {p}'s {o}?
    |What does the fox say?|Translate this sentence.|Translate my letter into Chinese.|What is {x} in Japanese?
    |Correct my text.|Make a plan for my day.|Roll a dice.|Flip a coin.|Guess my number.|Play a game with me."""
_HELD = """Who exactly was {p}?|What is {p} known for?|Which year was {p} born in?|Can you explain {x}?
    |What is {x} made of?
    |What do you know about {x}?|How would I {t}?|Could you {t} for me?|What are the steps to {t}?
    |Which currency does {c} have?|Who rules {c}?|How many inhabitants does {c} have?|What is the best food in {c}?
    |What is the cube root of {n}?|Who scored the first goal?|What is the deepest ocean?|Who wrote Faust?
    |How tall is the Eiffel Tower?|What is the melting point of iron?|Which phone should I buy?|Where did I park?
    |Who lives next door?|What is the capital of {m} called?|How fast is {x}?"""

FORMS = split(*_split(_KNOWN), *(f"~{form}" for form in _split(_HELD)))
_PLACES = [
    "Narnia",
    "Atlantis",
    "Mordor",
    "Gondor",
    "Wonderland",
    "Utopia",
    "Texas",
    "Bavaria",
    "California",
    "Hogwarts",
]


def _draw(rng: Random) -> Question:
    slots = {key: rng.choice(values) for key, values in _LISTS.items()}
    slots["c"] = rng.choice(COUNTRIES).name
    slots["m"] = rng.choice(_PLACES) if rng.random() < 0.3 else made_up(rng).capitalize()
    slots |= {"o": rng.choice(_NOUNS), "w": rng.choice(_NOUNS), "v": rng.choice(_VERBS), "j": rng.choice(_ADJECTIVES)}
    slots["n"] = str(rng.randint(2, 999))
    slots["s"] = f"{sentence(rng, 4)} {sentence(rng, 6)}"  # two, so that it is never a greeting by chance
    return Question("unknown", FORMS, (ANSWER,), slots, "I was not taught that.")


TOPICS: list[Topic] = [Topic("unknown", 17, _draw)]

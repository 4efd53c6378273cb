"""Repeating, spelling, counting letters and changing case, on words the model has never seen."""

from random import Random

from .question import Question, Topic, split

_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwz", "aeiou"
_WORD_LIST = """apple banana orange cherry lemon grape peach tiger rabbit horse monkey elephant dolphin penguin spider
    garden window kitchen table chair mirror pillow carpet castle bridge tower street market village city river ocean
    mountain forest desert island valley meadow summer winter autumn spring morning evening midnight thunder lightning
    rainbow snow storm cloud star planet rocket engine wheel hammer screw needle button ribbon pencil paper letter
    number picture music guitar piano violin drum dance song story poem novel letter teacher doctor farmer baker
    pilot sailor soldier painter writer singer happy clever gentle brave quiet purple silver golden wooden broken
    frozen hidden simple double little yellow green machine computer keyboard screen server router worker dynamo model
    token cache prompt batch stream cluster network python rust water fire earth wind stone metal glass cotton silk
    sugar pepper butter cheese bread honey coffee chocolate biscuit pancake sandwich tomato potato onion carrot
    pumpkin mushroom strawberry blueberry pineapple coconut almond walnut hello world friend family brother sister
    mother father child people love peace freedom wonder dream hope light shadow colour shape circle square triangle
    question answer reason science history nature animal flower tree leaf root seed branch feather wing claw tail
    big small fast slow old young new good bad red blue black white the a and is in on with under over my your our
    cat dog bird fish mouse cow pig sheep goat duck bee ant sees eats likes finds wants makes takes gives runs sleeps
    jumps sings plays reads writes opens closes brings Anna Peter London Paris Berlin today tomorrow always
    never"""
_WORDS = _WORD_LIST.split()

REPEAT = split(
    "Repeat: {t}",
    "Say: {t}",
    "Repeat after me: {t}",
    "Echo: {t}",
    "Please repeat: {t}",
    "Repeat this: {t}",
    "Say this: {t}",
    "Repeat the following: {t}",
    "Write: {t}",
    'Repeat "{t}"',
    'Say "{t}"',
    'Please say "{t}".',
    "Repeat the word {t}",
    "Can you repeat: {t}",
    "Repeat exactly: {t}",
    "Echo back: {t}",
    "~Say exactly: {t}",
    '~Can you say "{t}"?',
    "~Please repeat after me: {t}",
)
SPELL = split(
    "Spell {t}.",
    "Spell the word {t}.",
    "How do you spell {t}?",
    "How is {t} spelled?",
    "Can you spell {t}?",
    "Spell {t} letter by letter.",
    "Please spell {t}",
    "What are the letters of {t}?",
    'Spell "{t}"',
    "Tell me how to spell {t}.",
    "Please spell the word {t} for me.",
    "Which letters are in {t}?",
    "Spell this word: {t}",
    "Spell: {t}",
    "Could you spell {t}?",
    "Can you spell the word {t}?",
    "Would you please spell {t}?",
    "I want you to spell {t}.",
    "Letter by letter, please: {t}",
    "~How would you spell {t}?",
    "~Would you spell the word {t}?",
)
LENGTH = split(
    "How many letters does {t} have?",
    "How many letters are in {t}?",
    "How many letters has the word {t}?",
    "How long is the word {t}?",
    "Count the letters of {t}.",
    'How many letters are in the word "{t}"?',
    "Number of letters in {t}?",
    "Tell me how many letters {t} has.",
    "What is the length of the word {t}?",
    "~What is the number of letters in {t}?",
    "~How many letters are there in {t}?",
)
FIRST = split(
    "What is the first letter of {t}?",
    "Which letter does {t} start with?",
    "First letter of {t}?",
    "What letter does {t} begin with?",
    "Tell me the first letter of {t}.",
    "With which letter does {t} start?",
    "Which letter is first in {t}?",
    "~Which is the first letter of {t}?",
)
LAST = split(
    "What is the last letter of {t}?",
    "Which letter does {t} end with?",
    "Last letter of {t}?",
    "What letter does {t} end in?",
    "Tell me the last letter of {t}.",
    "With which letter does {t} end?",
    "Which letter is last in {t}?",
    "~Which is the last letter of {t}?",
)
BACKWARDS = split(
    "Spell {t} backwards.",
    "Reverse the word {t}.",
    "What is {t} backwards?",
    "Write {t} backwards.",
    "Say {t} backwards.",
    "Reverse {t}",
    "How is {t} spelled backwards?",
    "How is {t} read backwards?",
    "Reverse {t}.",
    "{t} backwards",
    "How do you write {t} backwards?",
    "Turn {t} around.",
    "What is the reverse of {t}?",
    "Tell me {t} backwards.",
    "~How is {t} written backwards?",
)
UPPER = split(
    "Write {t} in capital letters.",
    "Write {t} in upper case.",
    "Put {t} in uppercase.",
    "Uppercase {t}",
    "Make {t} upper case.",
    "Convert {t} to upper case.",
    "Convert {t} to capital letters.",
    "Change {t} to capitals.",
    "Turn {t} to upper case.",
    "Turn the word {t} into capitals.",
    "Change {t} into uppercase letters.",
    "Turn {t} into upper case.",
    "{t} in capital letters",
    "{t} in capitals",
    "Say {t} in capital letters.",
    "Put the word {t} in capitals.",
    "~Turn {t} into capital letters.",
)


def made_up(rng: Random) -> str:
    """A random word, so that the model learns to copy instead of memorising words."""
    syllables = rng.randint(1, 3)
    return "".join(
        rng.choice(_CONSONANTS) + rng.choice(_VOWELS) + rng.choice(["", "", "n", "r", "s", "l"])
        for _ in range(syllables)
    )


def word(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(_WORDS)
    if kind < 0.9:
        return made_up(rng)
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 5)))


def _token(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.75:
        chosen = word(rng)
    elif kind < 0.87:
        chosen = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 5)))
    elif kind < 0.95:
        chosen = word(rng) + "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 2)))
    else:
        chosen = rng.choice(["é", "ü", "ß", "ñ", "à", "🙂", "🚀", "日", "本", "ж", "→", "&", "#", "@", "%", "*"])
    style = rng.random()
    if style < 0.15:
        return chosen.capitalize()
    if style < 0.2:
        return chosen.upper()
    return chosen


def sentence(rng: Random, longest: int = 12) -> str:
    words = " ".join(_token(rng) for _ in range(rng.randint(1, longest)))
    if rng.random() < 0.3:
        words = words[:1].upper() + words[1:] + rng.choice(".!?")
    return words


def _repeat(rng: Random) -> Question:
    length = 1 if rng.random() < 0.35 else 8
    text = sentence(rng, length)
    return Question("repeating", REPEAT, (text,), {"t": text}, "The same words.", exact=True)


def _letters(rng: Random) -> Question:
    chosen = word(rng)
    chosen = chosen.capitalize() if rng.random() < 0.15 else chosen
    slots = {"t": chosen}
    spelled = "-".join(chosen)
    shape = rng.random()
    if shape < 0.5:
        return Question("spelling", SPELL, (spelled,), slots, "Letter by letter.", exact=True)
    if shape < 0.65:
        # Spelling first is what makes the count come out right.
        said = f"{spelled}: {len(chosen)} letter{'s' if len(chosen) > 1 else ''}."
        return Question("spelling", LENGTH, (said,), slots, spelled, exact=True)
    if shape < 0.73:
        return Question("spelling", FIRST, (f"{chosen} starts with {chosen[0]}.",), slots, spelled, exact=True)
    if shape < 0.81:
        return Question("spelling", LAST, (f"{chosen} ends with {chosen[-1]}.",), slots, spelled, exact=True)
    if shape < 0.92:
        said = f"{spelled}, backwards {'-'.join(reversed(chosen))}"
        return Question("spelling", BACKWARDS, (said,), slots, "Letter by letter.", exact=True)
    return Question("spelling", UPPER, (chosen.upper(),), slots, spelled, exact=True)


TOPICS: list[Topic] = [Topic("repeating", 24, _repeat), Topic("spelling", 24, _letters)]

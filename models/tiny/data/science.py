"""The chemical elements and the planets."""

from .question import Question, Topic, finite, split

_ELEMENTS = """H Hydrogen, He Helium, Li Lithium, Be Beryllium, B Boron, C Carbon, N Nitrogen, O Oxygen, F Fluorine,
    Ne Neon, Na Sodium, Mg Magnesium, Al Aluminium, Si Silicon, P Phosphorus, S Sulfur, Cl Chlorine, Ar Argon,
    K Potassium, Ca Calcium, Sc Scandium, Ti Titanium, V Vanadium, Cr Chromium, Mn Manganese, Fe Iron, Co Cobalt,
    Ni Nickel, Cu Copper, Zn Zinc, Ga Gallium, Ge Germanium, As Arsenic, Se Selenium, Br Bromine, Kr Krypton,
    Rb Rubidium, Sr Strontium, Y Yttrium, Zr Zirconium, Nb Niobium, Mo Molybdenum, Tc Technetium, Ru Ruthenium,
    Rh Rhodium, Pd Palladium, Ag Silver, Cd Cadmium, In Indium, Sn Tin, Sb Antimony, Te Tellurium, I Iodine, Xe Xenon,
    Cs Caesium, Ba Barium, La Lanthanum, Ce Cerium, Pr Praseodymium, Nd Neodymium, Pm Promethium, Sm Samarium,
    Eu Europium, Gd Gadolinium, Tb Terbium, Dy Dysprosium, Ho Holmium, Er Erbium, Tm Thulium, Yb Ytterbium,
    Lu Lutetium, Hf Hafnium, Ta Tantalum, W Tungsten, Re Rhenium, Os Osmium, Ir Iridium, Pt Platinum, Au Gold,
    Hg Mercury, Tl Thallium, Pb Lead, Bi Bismuth, Po Polonium, At Astatine, Rn Radon, Fr Francium, Ra Radium,
    Ac Actinium, Th Thorium, Pa Protactinium, U Uranium, Np Neptunium, Pu Plutonium, Am Americium, Cm Curium,
    Bk Berkelium, Cf Californium, Es Einsteinium, Fm Fermium, Md Mendelevium, No Nobelium, Lr Lawrencium,
    Rf Rutherfordium, Db Dubnium, Sg Seaborgium, Bh Bohrium, Hs Hassium, Mt Meitnerium, Ds Darmstadtium,
    Rg Roentgenium, Cn Copernicium, Nh Nihonium, Fl Flerovium, Mc Moscovium, Lv Livermorium, Ts Tennessine,
    Og Oganesson"""

ELEMENTS = [
    (number, *entry.strip().split(" ")) for number, entry in enumerate(_ELEMENTS.replace("\n", " ").split(","), 1)
]

SYMBOL = split(
    "What is the chemical symbol of {e}?",
    "What is the symbol for {e}?",
    "What's the symbol of {e}?",
    "Which symbol does {e} have?",
    "Chemical symbol of {e}?",
    "Symbol for {e}",
    "Tell me the symbol of {e}.",
    "What is the chemical symbol for the element {e}?",
    "How is {e} written in chemistry?",
    "Give me the chemical symbol for {e}.",
    "{e} symbol",
    "What letters stand for {e}?",
    "What is the symbol of the chemical element {e}?",
    "Which symbol stands for {e}?",
    "What is the element {e} written as?",
    "Tell me the chemical symbol for the element {e}.",
    "In the periodic table, what is the symbol of {e}?",
    "Do you know the chemical symbol of {e}?",
    "What is the abbreviation of {e}?",
    "~Which chemical symbol stands for {e}?",
    "~Do you know the symbol for {e}?",
    "~What is the symbol of the element {e}?",
)
NUMBER = split(
    "What is the atomic number of {e}?",
    "What's the atomic number of {e}?",
    "Which atomic number does {e} have?",
    "Atomic number of {e}?",
    "Tell me the atomic number of {e}.",
    "What number is {e} in the periodic table?",
    "How many protons does {e} have?",
    "How many protons are in {e}?",
    "{e} atomic number",
    "What number does the element {e} have?",
    "Give me the atomic number for {e}.",
    "Which atomic number belongs to the element {e}?",
    "Where in the periodic table is {e}?",
    "At which place in the periodic table is {e}?",
    "In the periodic table, what number is {e}?",
    "Number of {e} in the periodic table?",
    "~Do you know the atomic number of {e}?",
    "~Which number does {e} have in the periodic table?",
    "~What is the atomic number for the element {e}?",
)
BY_SYMBOL = split(
    "Which element has the symbol {s}?",
    "What element has the symbol {s}?",
    "What element is {s}?",
    "Which element is {s}?",
    "What does the symbol {s} stand for in chemistry?",
    "{s} is the symbol of which element?",
    "Element with the symbol {s}?",
    "Tell me the element with the symbol {s}.",
    "What is the chemical element {s}?",
    "Name the element {s}.",
    "Which chemical element is written {s}?",
    "What does {s} mean in chemistry?",
    "{s} stands for which element?",
    "The symbol {s} belongs to which element?",
    "In the periodic table, what is {s}?",
    "{s} is which chemical element?",
    "{s} is what element?",
    "What is {s} in the periodic table?",
    "Chemical element {s}?",
    "~What is the element with the symbol {s}?",
    "~Which element does the symbol {s} stand for?",
    "~{s} is the chemical symbol of what?",
)
BY_NUMBER = split(
    "Which element has the atomic number {n}?",
    "What element has atomic number {n}?",
    "Which element is number {n}?",
    "What is element number {n}?",
    "What is element {n}?",
    "Which element has {n} protons?",
    "Name the element with atomic number {n}.",
    "Element number {n}?",
    "Tell me the element with the number {n}.",
    "Atomic number {n} is which element?",
    "In the periodic table, which element is number {n}?",
    "Which element is in place {n} of the periodic table?",
    "What is at place {n} in the periodic table?",
    "What is number {n} in the periodic table?",
    "Which element stands at {n} in the periodic table?",
    "Tell me which element has {n} protons.",
    "{n} protons: which element?",
    "~What is the element with atomic number {n}?",
    "~Which element is at number {n} in the periodic table?",
    "~What element has {n} protons?",
)


def _elements() -> list[Question]:
    found = []
    for number, symbol, name in ELEMENTS:
        low = name.lower()
        thought = f"{name}, {symbol}, {number}."
        found += [
            Question("elements", SYMBOL, (f"The symbol of {low} is {symbol}.",), {"e": low}, thought),
            Question("elements", NUMBER, (f"The atomic number of {low} is {number}.",), {"e": low}, thought),
            Question("elements", BY_SYMBOL, (f"{symbol} is {low}.",), {"s": symbol}, thought, exact=True),
            Question("elements", BY_NUMBER, (f"Element number {number} is {low}.",), {"n": str(number)}, thought),
        ]
    return found


_PLANETS = [
    ("Mercury", "88 days", "0", "4,879", "a rocky planet"),
    ("Venus", "225 days", "0", "12,104", "a rocky planet"),
    ("Earth", "365 days", "1", "12,756", "a rocky planet"),
    ("Mars", "687 days", "2", "6,792", "a rocky planet"),
    ("Jupiter", "12 years", "more than 90", "142,984", "a gas giant"),
    ("Saturn", "29 years", "more than 140", "120,536", "a gas giant"),
    ("Uranus", "84 years", "more than 25", "51,118", "an ice giant"),
    ("Neptune", "165 years", "at least 14", "49,528", "an ice giant"),
]
_ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]

YEAR = split(
    "How long is a year on {p}?",
    "How long does {p} take to go around the Sun?",
    "How long is the year of {p}?",
    "What is the length of a year on {p}?",
    "How long does {p} need to orbit the Sun?",
    "Tell me how long a year on {p} is.",
    "What is the orbit time of {p}?",
    "How many days or years does {p} need for one orbit?",
    "How long is one orbit of the planet {p}?",
    "How long does the planet {p} take around the Sun?",
    "Length of a year on {p}?",
    "~How long does a year on {p} last?",
    "~How long does it take {p} to go around the Sun?",
)
MOONS = split(
    "How many moons does {p} have?",
    "How many moons has {p}?",
    "What is the number of moons of {p}?",
    "Tell me how many moons {p} has.",
    "Number of moons of {p}?",
    "{p} moons",
    "How many moons does the planet {p} have?",
    "Does {p} have moons?",
    "How many satellites does {p} have?",
    "Count the moons of {p}.",
    "~How many moons are there around {p}?",
    "~How many moons orbit {p}?",
)
SIZE = split(
    "How big is {p}?",
    "What is the diameter of {p}?",
    "How large is {p}?",
    "What size is {p}?",
    "Diameter of {p}?",
    "Tell me the diameter of {p}.",
    "What is the diameter of the planet {p}?",
    "How large is the planet {p}?",
    "What is the size of {p}?",
    "{p} diameter",
    "How wide is {p}?",
    "~What's the diameter of {p}?",
    "~How big is the planet {p}?",
)
KIND = split(
    "What kind of planet is {p}?",
    "Is {p} a gas giant or a rocky planet?",
    "What type of planet is {p}?",
    "Which kind of planet is {p}?",
    "Tell me what kind of planet {p} is.",
    "Is the planet {p} rocky?",
    "Is {p} a gas giant?",
    "{p}: rocky planet or gas giant?",
    "~What sort of planet is {p}?",
)
NTH = split(
    "Which is the {o} planet from the Sun?",
    "What is the {o} planet?",
    "Which planet is {o} from the Sun?",
    "Name the {o} planet.",
    "What is the {o} planet from the Sun?",
    "Tell me the {o} planet of the solar system.",
    "The {o} planet is?",
    "Counting from the Sun, which planet is {o}?",
    "The {o} planet from the Sun",
    "Which planet do you find {o} from the Sun?",
    "~Which planet is the {o} one from the Sun?",
    "~What planet is {o} from the Sun?",
)
PLACE = split(
    "Which place from the Sun has {p}?",
    "What number is {p} from the Sun?",
    "Which planet from the Sun is {p}?",
    "Where in the order of planets is {p}?",
    "What position does {p} have from the Sun?",
    "Counting from the Sun, what number is {p}?",
    "Which place has the planet {p} in the solar system?",
    "Which position has {p} among the planets?",
    "~In which position from the Sun is {p}?",
)
AFTER = split(
    "Which planet comes after {p}?",
    "What planet is after {p}?",
    "What is the next planet after {p}?",
    "Which planet follows {p}?",
    "What comes after the planet {p}?",
    "After {p}, which planet comes?",
    "Which planet is next after {p}?",
    "~What planet comes after {p}?",
)
_SINGLES = [
    (
        "Jupiter is the largest planet.",
        "the largest planet",
        "the biggest planet",
        "the largest of all planets",
        "the planet that is biggest",
        "~the greatest planet in size",
    ),
    (
        "Mercury is the smallest planet.",
        "the smallest planet",
        "the tiniest planet",
        "the smallest of all planets",
        "the planet that is smallest",
        "~the smallest one of the planets",
    ),
    (
        "Venus is the hottest planet.",
        "the hottest planet",
        "the warmest planet",
        "the hottest of all planets",
        "the planet that is hottest",
        "~the hottest one of the planets",
    ),
    (
        "Neptune is the coldest of the far planets and the one farthest from the Sun.",
        "the farthest planet from the Sun",
        "the last planet",
        "the planet farthest from the Sun",
        "the outermost planet",
        "the most far away planet",
        "the planet that is most distant from the Sun",
        "~the most distant planet",
    ),
    (
        "Mercury is the planet closest to the Sun.",
        "the planet closest to the Sun",
        "the planet nearest to the Sun",
        "the closest planet to the Sun",
        "the innermost planet",
        "~the nearest planet to the Sun",
    ),
    ("Mars is called the red planet.", "the red planet", "the planet called the red planet", "~the planet that is red"),
    ("Earth is called the blue planet.", "the blue planet", "our home planet", "the planet we live on", "~our planet"),
    (
        "Saturn is famous for its rings.",
        "the planet with the rings",
        "the planet with rings",
        "the ringed planet",
        "the planet famous for its rings",
        "~the planet that has the big rings",
    ),
    (
        "The Sun is the star of our solar system.",
        "the star of our solar system",
        "the nearest star",
        "the star closest to us",
        "our star",
        "~the star nearest to us",
    ),
    (
        "The Moon is the only natural satellite of Earth.",
        "the satellite of Earth",
        "the natural satellite of Earth",
        "Earth's satellite",
        "~the only natural satellite of Earth",
    ),
]
_WHICH = (
    "Which planet is {x}?",
    "What do you call {x}?",
    "What is the name of {x}?",
    "What is {x}?",
    "Which is {x}?",
    "Name {x}.",
    "Tell me {x}.",
    "What's {x}?",
    "Do you know {x}?",
    "{x}?",
)
_COUNT = split(
    "How many planets are there?",
    "How many planets does the solar system have?",
    "How many planets are in our solar system?",
    "What is the number of planets?",
    "Number of planets?",
    "Count the planets.",
    "How many planets orbit the Sun?",
    "~How many planets are in the solar system?",
)
_LIST = split(
    "Name all the planets.",
    "List the planets.",
    "What are the planets?",
    "Which planets are there?",
    "What are the planets of the solar system?",
    "Tell me the planets in order.",
    "Name the eight planets.",
    "List the eight planets of our solar system.",
    "All planets please",
    "Enumerate the planets.",
    "Name every planet in the solar system.",
    "What planets does our solar system have?",
    "Planets of the solar system?",
    "~List all planets of the solar system.",
    "~Which planets does the solar system have?",
)
_PLUTO = split(
    "Is Pluto a planet?",
    "What is Pluto?",
    "Is pluto still a planet?",
    "Is Pluto a dwarf planet?",
    "Does Pluto count as a planet?",
    "Pluto?",
    "Tell me about Pluto.",
    "~Is Pluto one?",
)


def _planets() -> list[Question]:
    found = []
    for place, (name, year, moons, size, kind) in enumerate(_PLANETS):
        slots = {"p": name}
        plural = "moon" if moons == "1" else "moons"
        many = f"no {plural}" if moons == "0" else f"{moons} {plural}"
        nth = f"{name} is the {_ORDINALS[place]} planet from the Sun."
        after = (
            f"After {name} comes {_PLANETS[place + 1][0]}."
            if place < 7
            else "Neptune is the last planet: none follows."
        )
        found += [
            Question("planets", YEAR, (f"A year on {name} takes {year}.",), slots, f"{name}: {year}."),
            Question("planets", MOONS, (f"{name} has {many}.",), slots, f"{name}: {many}."),
            Question("planets", SIZE, (f"{name} has a diameter of {size} km.",), slots, f"{name}: {size} km."),
            Question("planets", KIND, (f"{name} is {kind}.",), slots, f"{name}: {kind}."),
            Question("planets", NTH, (nth,), {"o": _ORDINALS[place]}, f"{_ORDINALS[place]}: {name}."),
            Question("planets", PLACE, (nth,), slots, f"{name}: {_ORDINALS[place]}."),
            Question("planets", AFTER, (after,), slots, after),
        ]
    for answer, *names in _SINGLES:
        known = [form.format(x=x) for x in names if not x.startswith("~") for form in _WHICH]
        held = [f"~{form.format(x=x[1:])}" for x in names if x.startswith("~") for form in _WHICH[:2]]
        found.append(Question("planets", split(*known, *held), (answer,), {}, answer))
    listed = ", ".join(name for name, *_ in _PLANETS[:-1])
    found += [
        Question("planets", _COUNT, ("There are 8 planets in our solar system.",), {}, "Eight."),
        Question("planets", _LIST, (f"The planets are {listed} and Neptune.",), {}, "There are eight."),
        Question("planets", _PLUTO, ("Pluto is a dwarf planet.",), {}, "It is small."),
    ]
    return found


TOPICS: list[Topic] = [finite("elements", 11, _elements()), finite("planets", 5, _planets())]

"""Colours, numbers, days, months and opposites in English, German, French, Spanish and Italian."""

from .question import Question, Topic, finite, split, upper_first

LANGUAGES = ("English", "German", "French", "Spanish", "Italian")

_TABLES = {
    "colour": """red rot rouge rojo rosso; blue blau bleu azul blu; green grün vert verde verde;
        yellow gelb jaune amarillo giallo; black schwarz noir negro nero; white weiß blanc blanco bianco;
        brown braun marron marrón marrone; grey grau gris gris grigio; orange orange orange naranja arancione;
        pink rosa rose rosa rosa; purple lila violet morado viola""",
    "day": """Monday Montag lundi lunes lunedì; Tuesday Dienstag mardi martes martedì;
        Wednesday Mittwoch mercredi miércoles mercoledì; Thursday Donnerstag jeudi jueves giovedì;
        Friday Freitag vendredi viernes venerdì; Saturday Samstag samedi sábado sabato;
        Sunday Sonntag dimanche domingo domenica""",
    "month": """January Januar janvier enero gennaio; February Februar février febrero febbraio;
        March März mars marzo marzo; April April avril abril aprile; May Mai mai mayo maggio;
        June Juni juin junio giugno; July Juli juillet julio luglio; August August août agosto agosto;
        September September septembre septiembre settembre; October Oktober octobre octubre ottobre;
        November November novembre noviembre novembre; December Dezember décembre diciembre dicembre""",
    "number": """zero null zéro cero zero; one eins un uno uno; two zwei deux dos due; three drei trois tres tre;
        four vier quatre cuatro quattro; five fünf cinq cinco cinque; six sechs six seis sei;
        seven sieben sept siete sette; eight acht huit ocho otto; nine neun neuf nueve nove; ten zehn dix diez dieci;
        eleven elf onze once undici; twelve zwölf douze doce dodici; thirteen dreizehn treize trece tredici;
        fourteen vierzehn quatorze catorce quattordici; fifteen fünfzehn quinze quince quindici;
        sixteen sechzehn seize dieciséis sedici; seventeen siebzehn dix-sept diecisiete diciassette;
        eighteen achtzehn dix-huit dieciocho diciotto; nineteen neunzehn dix-neuf diecinueve diciannove;
        twenty zwanzig vingt veinte venti; thirty dreißig trente treinta trenta;
        forty vierzig quarante cuarenta quaranta; fifty fünfzig cinquante cincuenta cinquanta;
        sixty sechzig soixante sesenta sessanta; hundred hundert cent cien cento; thousand tausend mille mil mille""",
    "word": """hello hallo bonjour hola ciao; goodbye auf_Wiedersehen au_revoir adiós arrivederci;
        thanks danke merci gracias grazie; please bitte s'il_vous_plaît por_favor per_favore; yes ja oui sí sì;
        no nein non no no; water Wasser eau agua acqua; bread Brot pain pan pane; house Haus maison casa casa;
        dog Hund chien perro cane; cat Katze chat gato gatto; book Buch livre libro libro;
        friend Freund ami amigo amico; day Tag jour día giorno; night Nacht nuit noche notte;
        sun Sonne soleil sol sole; moon Mond lune luna luna; tree Baum arbre árbol albero;
        love Liebe amour amor amore; time Zeit temps tiempo tempo; milk Milch lait leche latte;
        apple Apfel pomme manzana mela; coffee Kaffee café café caffè; cheese Käse fromage queso formaggio""",
}
WORDS = [
    (kind, [word.replace("_", " ") for word in row.split()])
    for kind, table in _TABLES.items()
    for row in table.split(";")
]

INTO = split(
    "What is {w} in {l}?",
    "How do you say {w} in {l}?",
    "Translate {w} into {l}.",
    "Translate {w} to {l}.",
    "What's {w} in {l}?",
    "What is the {l} word for {w}?",
    "How is {w} said in {l}?",
    "{w} in {l}",
    "Say {w} in {l}.",
    "What is the word {w} in {l}?",
    "How do I say {w} in {l}?",
    "Tell me the {l} word for {w}.",
    "What do they say for {w} in {l}?",
    "What does {w} translate to in {l}?",
    "In {l}, what is {w}?",
    'What is "{w}" in {l}?',
    "~How would you say {w} in {l}?",
    "~What does one say for {w} in {l}?",
    "~Can you translate {w} into {l}?",
)
FROM = split(
    "What does the {l} word {w} mean?",
    "What does {w} mean in {l}?",
    "What is the meaning of the {l} word {w}?",
    "Translate {w} from {l}.",
    "Translate the {l} word {w} into English.",
    "The {l} word {w} means what?",
    "What is {w} in English, from {l}?",
    "What is the English for the {l} word {w}?",
    'What does the {l} word "{w}" mean?',
    "Tell me what the {l} word {w} means.",
    "~What is the {l} word {w} in English?",
    "~Do you know what the {l} word {w} means?",
)


def _translations() -> list[Question]:
    found = []
    for _, words in WORDS:
        english = words[0]
        for language, word in zip(LANGUAGES[1:], words[1:], strict=True):
            into = f"{upper_first(english)} in {language} is {word}."
            back = f"The {language} word {word} means {english}."
            found += [
                Question("translations", INTO, (into,), {"w": english, "l": language}, f"{english}: {word}."),
                Question("translations", FROM, (back,), {"w": word, "l": language}, f"{word}: {english}."),
            ]
    return found


_LISTS = split(
    "What are the {k}s in {l}?",
    "Name the {k}s in {l}.",
    "List the {k}s in {l}.",
    "Tell me the {k}s in {l}.",
    "Give me all {k}s in {l}.",
    "Say the {k}s in {l}.",
    "~List all the {k}s in {l}.",
    "~Which are the {k}s in {l}?",
)
_COUNTING = split(
    "Count to ten in {l}.",
    "Count from one to ten in {l}.",
    "Can you count to ten in {l}?",
    "Please count to 10 in {l}.",
    "Count in {l}.",
    "Count to 10 in {l}",
    "What are the numbers to ten in {l}?",
    "~Can you count in {l} to ten?",
    "~Would you count to ten in {l}?",
)


def _lists() -> list[Question]:
    found = []
    for column, language in enumerate(LANGUAGES):
        for kind, name in (("day", "day"), ("day", "weekday"), ("month", "month")):
            words = [row[column] for k, row in WORDS if k == kind]
            found.append(Question("translations", _LISTS, (", ".join(words) + ".",), {"k": name, "l": language}))
        numbers = [row[column] for k, row in WORDS if k == "number"][1:11]
        found.append(Question("translations", _COUNTING, (", ".join(numbers) + ".",), {"l": language}))
    return found


_OPPOSITES = {
    "English": """hot cold; big small; up down; left right; day night; black white; good bad; fast slow; old new;
        young old; high low; long short; open closed; full empty; happy sad; light dark; early late; easy hard;
        rich poor; strong weak; hard soft; wet dry; clean dirty; loud quiet; near far; first last; in out; on off;
        true false; yes no; love hate; war peace; life death; win lose; buy sell; push pull; start stop; begin end;
        come go; give take; ask answer; inside outside; front back; north south; east west; thick thin; wide narrow;
        deep shallow; heavy light; sweet sour; safe dangerous; always never; more less; before after; above below;
        brave afraid; friend enemy; summer winter; boy girl; man woman; king queen; tall short; warm cool;
        small big; cold hot; down up; right left; night day; white black; bad good; slow fast; low high; empty full;
        sad happy; dark light; late early; poor rich; weak strong; soft hard; dry wet; dirty clean; quiet loud;
        far near; last first; out in; off on; false true; no yes; hate love; peace war; death life; lose win;
        sell buy; pull push; stop start; end begin; south north; west east; never always; less more; after before;
        below above; enemy friend; winter summer; girl boy; woman man; queen king; closed open; cheap expensive;
        expensive cheap; possible impossible; success failure; question answer; heaven hell; inside outside""",
    "German": """heiß kalt; groß klein; oben unten; links rechts; gut schlecht; schnell langsam; alt neu; hoch tief;
        lang kurz; voll leer; hell dunkel; früh spät; reich arm; stark schwach; nass trocken; laut leise; ja nein;
        kalt heiß; klein groß; rechts links; schlecht gut; langsam schnell; leer voll; dunkel hell; spät früh""",
    "French": """chaud froid; grand petit; haut bas; gauche droite; bon mauvais; rapide lent; vieux nouveau;
        long court; plein vide; clair sombre; tôt tard; riche pauvre; fort faible; oui non; froid chaud; petit grand;
        bas haut; droite gauche; mauvais bon; lent rapide; vide plein; tard tôt; pauvre riche; faible fort""",
    "Spanish": """caliente frío; grande pequeño; arriba abajo; izquierda derecha; bueno malo; rápido lento;
        viejo nuevo; alto bajo; largo corto; lleno vacío; claro oscuro; temprano tarde; rico pobre; fuerte débil;
        sí no; frío caliente; pequeño grande; abajo arriba; derecha izquierda; malo bueno; lento rápido; bajo alto""",
    "Italian": """caldo freddo; grande piccolo; sopra sotto; sinistra destra; buono cattivo; veloce lento;
        vecchio nuovo; alto basso; lungo corto; pieno vuoto; chiaro scuro; presto tardi; ricco povero; forte debole;
        sì no; freddo caldo; piccolo grande; sotto sopra; destra sinistra; cattivo buono; lento veloce; basso alto""",
}
_OPPOSITE_FORMS = {
    "English": (
        split(
            "What is the opposite of {w}?",
            "What's the opposite of {w}?",
            "Opposite of {w}?",
            "Tell me the opposite of {w}.",
            "Which word is the opposite of {w}?",
            "Name the opposite of {w}.",
            "The opposite of {w} is",
            "Give me the opposite of {w}.",
            "What is the contrary of {w}?",
            "{w} opposite",
            'What is the opposite of "{w}"?',
            "~What would be the opposite of {w}?",
            "~Do you know the opposite of {w}?",
            "~What word means the opposite of {w}?",
        ),
        "The opposite of {w} is {o}.",
    ),
    "German": (
        split(
            "Was ist das Gegenteil von {w}?",
            "Das Gegenteil von {w}?",
            "Wie heißt das Gegenteil von {w}?",
            "Sag mir das Gegenteil von {w}.",
            "Nenne das Gegenteil von {w}.",
            "~Kennst du das Gegenteil von {w}?",
        ),
        "Das Gegenteil von {w} ist {o}.",
    ),
    "French": (
        split(
            "Quel est le contraire de {w} ?",
            "Le contraire de {w} ?",
            "C'est quoi le contraire de {w} ?",
            "Dis-moi le contraire de {w}.",
            "Donne le contraire de {w}.",
            "~Tu connais le contraire de {w} ?",
        ),
        "Le contraire de {w} est {o}.",
    ),
    "Spanish": (
        split(
            "¿Cuál es el contrario de {w}?",
            "¿Cuál es el opuesto de {w}?",
            "El contrario de {w}",
            "Dime el contrario de {w}.",
            "Di lo contrario de {w}.",
            "~¿Sabes el contrario de {w}?",
        ),
        "El contrario de {w} es {o}.",
    ),
    "Italian": (
        split(
            "Qual è il contrario di {w}?",
            "Il contrario di {w}?",
            "Dimmi il contrario di {w}.",
            "Qual è l'opposto di {w}?",
            "Come si dice il contrario di {w}?",
            "~Conosci il contrario di {w}?",
        ),
        "Il contrario di {w} è {o}.",
    ),
}


def _opposites() -> list[Question]:
    found = []
    for language, table in _OPPOSITES.items():
        forms, answer = _OPPOSITE_FORMS[language]
        pairs = dict(row.split() for row in table.split(";"))
        for word, opposite in pairs.items():
            slots = {"w": word}
            found.append(
                Question("opposites", forms, (answer.format(w=word, o=opposite),), slots, f"{word}: {opposite}.")
            )
    return found


_DAY_AFTER = split(
    "What day comes after {d}?",
    "Which day comes after {d}?",
    "What is the day after {d}?",
    "Which day follows {d}?",
    "Day after {d}?",
    "~What day follows {d}?",
)
_DAY_BEFORE = split(
    "What day comes before {d}?",
    "Which day comes before {d}?",
    "What is the day before {d}?",
    "Day before {d}?",
    "~Which day is before {d}?",
)
_MONTH_AFTER = split(
    "What month comes after {d}?",
    "Which month comes after {d}?",
    "What is the month after {d}?",
    "Which month follows {d}?",
    "~What month follows {d}?",
)
_MONTH_BEFORE = split(
    "What month comes before {d}?",
    "Which month comes before {d}?",
    "What is the month before {d}?",
    "~Which month is before {d}?",
)
_LENGTH = split(
    "How many days does {d} have?",
    "How many days are in {d}?",
    "How many days has {d}?",
    "Number of days in {d}?",
    "~How many days are there in {d}?",
)
_NTH_MONTH = split(
    "Which number has the month {d}?",
    "What number is the month {d}?",
    "Which month of the year is {d}?",
    "~What is the number of the month {d}?",
)
_UNITS = [
    ("A week has 7 days.", "days", "a week"),
    ("A year has 12 months.", "months", "a year"),
    ("A year has 365 days, a leap year 366.", "days", "a year"),
    ("A year has 52 weeks.", "weeks", "a year"),
    ("A day has 24 hours.", "hours", "a day"),
    ("An hour has 60 minutes.", "minutes", "an hour"),
    ("A minute has 60 seconds.", "seconds", "a minute"),
    ("An hour has 3600 seconds.", "seconds", "an hour"),
    ("A century has 100 years.", "years", "a century"),
    ("A decade has 10 years.", "years", "a decade"),
    ("A dozen is 12.", "things", "a dozen"),
    ("A kilometre has 1000 metres.", "metres", "a kilometre"),
    ("A metre has 100 centimetres.", "centimetres", "a metre"),
    ("A kilogram has 1000 grams.", "grams", "a kilogram"),
]
_HOW_MANY = split(
    "How many {u} are in {w}?",
    "How many {u} does {w} have?",
    "How many {u} are there in {w}?",
    "How many {u} has {w}?",
    "Number of {u} in {w}?",
    "{u} in {w}",
    "~How many {u} make {w}?",
    "~Tell me how many {u} are in {w}.",
)
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _calendar() -> list[Question]:
    found = []
    days = [row[0] for kind, row in WORDS if kind == "day"]
    months = [row[0] for kind, row in WORDS if kind == "month"]
    for names, after, before in ((days, _DAY_AFTER, _DAY_BEFORE), (months, _MONTH_AFTER, _MONTH_BEFORE)):
        for place, name in enumerate(names):
            following = names[(place + 1) % len(names)]
            found += [
                Question("calendar", after, (f"After {name} comes {following}.",), {"d": name}, f"{following}."),
                Question("calendar", before, (f"Before {following} comes {name}.",), {"d": following}, f"{name}."),
            ]
    for number, (name, length) in enumerate(zip(months, _LENGTHS, strict=True), 1):
        leap = ", or 29 in a leap year" if length == 28 else ""
        found += [
            Question("calendar", _LENGTH, (f"{name} has {length} days{leap}.",), {"d": name}),
            Question("calendar", _NTH_MONTH, (f"{name} is month number {number}.",), {"d": name}),
        ]
    found += [Question("calendar", _HOW_MANY, (answer,), {"u": unit, "w": whole}) for answer, unit, whole in _UNITS]
    return found


TOPICS: list[Topic] = [
    finite("translations", 14, _translations() + _lists()),
    finite("opposites", 5, _opposites()),
    finite("calendar", 4, _calendar()),
]

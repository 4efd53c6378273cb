"""One setting: how users name it, which values it takes, and the sentence that rejects any other."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class Setting(Struct, frozen=True):
    """What a field's type and default do not say; stands in the field's annotation, bounds beside it as msgspec's Meta.

    `port: Annotated[int, Meta(ge=0, le=65535), Setting("--http-port", "DYN_HTTP_PORT", "the port")] = 8080`
    """

    flag: str | None = None
    variables: str | tuple[str, ...] = ()
    """The first one that is set counts."""
    help: str = ""
    metavar: str = ""
    group: str = ""
    """Its section in the help; without one, the table's `GROUP`."""
    aliases: tuple[str, ...] = ()
    default: str | None = None
    """What the help shows instead of the field's default."""
    choices: tuple[str, ...] = ()
    """For choices that are computed; fixed ones are the field's Literal type."""
    synonyms: tuple[tuple[str, str], ...] = ()
    """Other spellings of choices."""
    parse: Callable[[str], Any] | None = None
    """Instead of the parser for the field's type; raises a ValueError that names what it expects."""
    valid: Callable[[Any], bool] | None = None
    """A check of each value beyond its type and bounds, described by `expects`."""
    expects: str = ""
    secret: bool = False
    """Its value must not appear in messages."""
    variable_scale: float = 1.0
    """The variable's unit in units of the flag: 0.001 for a variable in milliseconds."""


class Option(Struct, frozen=True):
    """A setting bound to its field."""

    field: str
    setting: Setting
    kind: type
    optional: bool
    choices: tuple[str, ...]
    bounds: tuple[Meta, ...]
    default: Any
    required: bool
    group: str

    @property
    def key(self) -> str:
        """Its name in a parsed command line, in a file and in a model card."""
        return self.setting.flag.lstrip("-").replace("-", "_") if self.setting.flag else self.field

    @property
    def variables(self) -> tuple[str, ...]:
        named = self.setting.variables
        return (named,) if isinstance(named, str) else named

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.setting.flag, *self.setting.aliases) if self.setting.flag else ()

    @property
    def name(self) -> str:
        """What users know it by."""
        return self.setting.flag or self.variables[0]

    @property
    def metavar(self) -> str:
        if self.kind is bool:
            return "BOOL"
        return self.setting.metavar or {int: "N", float: "X"}.get(self.kind, "NAME")

    @property
    def shown_default(self) -> str:
        if self.setting.default is not None:
            return self.setting.default
        if self.required or self.default is None or self.default == ():
            return ""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple):
            return ",".join(self.default)
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    def value(self, given: Any, source: str) -> Any:
        """`given` as the field takes it: text is parsed, everything is checked. A ValueError names `source`."""
        value = self._parsed(given, source) if isinstance(given, str) else given
        if self.kind is tuple and value is not None:
            value = tuple(value)
        self.check(value, source)
        return value

    def check(self, value: Any, source: str | None = None) -> None:
        """A ValueError, in one sentence, for a value outside the setting's choices or bounds."""
        source = source or self.name
        if value is None and self.optional:
            return
        if self.choices and value not in self.choices:
            wanted = ("one of " if len(self.choices) > 2 else "") + one_of(self.choices)
            raise ValueError(f"{source} must be {wanted}, not '{value}'{nearest(str(value), self.choices)}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise ValueError(f"{source} must be a finite number, not {value}")
            for wrong in _outside(value, self.bounds):
                raise ValueError(f"{source} must be {wrong}, not {value}")
        if self.setting.valid:
            for each in value if self.kind is tuple else (value,):
                if not self.setting.valid(each):
                    shown = "" if self.setting.secret else f", not '{each}'"
                    raise ValueError(f"{source} must be {self.setting.expects}{shown}")

    def _parsed(self, text: str, source: str) -> Any:
        if self.optional and self.kind in (int, float) and text.strip().lower() == "none":
            return None
        try:
            if self.setting.parse:
                return self.setting.parse(text)
            if self.choices:
                word = dict(self.setting.synonyms).get(text.lower(), text.lower())
                return word if word in self.choices else text
            return _PARSERS.get(self.kind, self.kind)(text)
        except ValueError as error:
            raise ValueError(f"{source} must be {error}, not '{text}'") from None


@cache
def options(table: type[Struct]) -> tuple[Option, ...]:
    """The settings among the fields of `table`, in their order.

    In a table with an `EVERY` each has a flag, named after its field, and a variable, named after both.
    """
    every = getattr(table, "EVERY", None)
    hints = get_type_hints(table, include_extras=True)
    found = []
    for field in msgspec.structs.fields(table):
        setting, kind, optional, choices, bounds = _unwrap(hints[field.name])
        if setting:
            if every:
                name = field.name.replace("_", "-")
                setting = replace(setting, flag=f"--{name}", variables=f"DYN_{every}_{field.name}".upper())
            required = field.required
            default = None if required else field.default
            group = setting.group or getattr(table, "GROUP", "")
            choices = choices or setting.choices
            found.append(Option(field.name, setting, kind, optional, choices, bounds, default, required, group))
    return tuple(found)


def _unwrap(hint: Any) -> tuple[Setting | None, type, bool, tuple[str, ...], tuple[Meta, ...]]:
    """The setting, type, whether None is one of its values, choices and bounds of an annotation."""
    setting, optional = None, False
    bounds: tuple[Meta, ...] = ()
    while True:
        if get_origin(hint) is Annotated:
            setting = next((each for each in hint.__metadata__ if isinstance(each, Setting)), setting)
            bounds += tuple(each for each in hint.__metadata__ if isinstance(each, Meta))
            hint = hint.__origin__
        elif get_origin(hint) in (Union, UnionType):
            optional = NoneType in get_args(hint)
            (hint,) = (each for each in get_args(hint) if each is not NoneType)
        elif get_origin(hint) is Literal:
            return setting, str, optional, get_args(hint), bounds
        else:
            return setting, get_origin(hint) or hint, optional, (), bounds


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean 'X'?`, or nothing where no word is near."""
    import difflib  # not for the help

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean '{found[0]}'?" if found else ""


def one_of(words: Sequence[str]) -> str:
    """`a, b or c`."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _outside(value: float, bounds: Iterable[Meta]) -> Iterable[str]:
    for meta in bounds:
        if meta.ge is not None and value < meta.ge:
            yield f"at least {meta.ge}"
        if meta.gt is not None and value <= meta.gt:
            yield f"above {meta.gt}"
        if meta.le is not None and value > meta.le:
            yield f"at most {meta.le}"
        if meta.lt is not None and value >= meta.lt:
            yield f"below {meta.lt}"


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError("true or false")
    return word in _TRUE


def truthy(text: str) -> bool:
    """For variables of other projects, where any other word is false."""
    return text.strip().lower() in _TRUE


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


_PARSERS: dict[type, Callable[[str], Any]] = {
    bool: _boolean, int: _whole, float: _number, tuple: _list, str: str
}  # fmt: skip

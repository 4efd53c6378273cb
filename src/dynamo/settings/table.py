"""A table of settings is a frozen struct. Its values: flags, else the environment, else a file, else defaults."""

from collections.abc import Mapping
from typing import Any, Self

from msgspec import Struct

from dynamo.settings.setting import options


class Settings(Struct, frozen=True, kw_only=True):
    """Base of the tables. Every instance is checked, however it is built."""

    def __post_init__(self) -> None:
        for option in options(type(self)):
            option.check(getattr(self, option.field))

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: Any) -> Self:
        """`flags` by the names of the flags (`http_port`), as text or typed; None is a flag that was not given."""
        return cls(**read(cls, environ, flags))


def read(
    table: type[Struct],
    environ: Mapping[str, str],
    flags: Mapping[str, Any] = {},
    file: Mapping[str, Any] = {},
    file_name: str = "file",
) -> dict[str, Any]:
    """The values that were set, by field. A ValueError names the flag, the variable or the file's key that is wrong."""
    values = {}
    known = {option.key: option for option in options(table)}
    for name in flags:
        if name not in known:
            raise TypeError(f"{table.__name__} has no flag '{name}'")
    for name in file:
        if name not in known:
            raise ValueError(f"{file_name} has no '{name}'; it knows {', '.join(known)}")
    for key, option in known.items():
        if flags.get(key) is not None:
            values[option.field] = option.value(flags[key], option.name)
            continue
        variable = next((each for each in option.variables if environ.get(each, "").strip()), None)
        if variable is not None:
            text = environ[variable]
            value = option.value(text if option.setting.secret else text.strip(), variable)
            scale = option.setting.variable_scale
            values[option.field] = value if scale == 1 else value * scale
        elif file.get(key) is not None:
            values[option.field] = option.value(str(file[key]), f"{file_name}.{key}")
    return values


def given(flags: Mapping[str, Any], *tables: type[Struct]) -> dict[str, Any]:
    """The flags of these tables in a parsed command line."""
    keys = [option.key for table in tables for option in options(table)]
    return {key: flags[key] for key in keys if flags.get(key) is not None}

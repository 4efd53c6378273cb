"""The command lines of `dynamo` and `python -m dynamo.*`: argparse, also filled from tables of settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from msgspec import Struct

from dynamo.settings.setting import Option, nearest, one_of, options


class CommandParser(argparse.ArgumentParser):
    """argparse whose errors are one line: what is wrong, the nearest flag, where to read more, exit code 2."""

    def __init__(self, prog: str, description: str | None, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse_args(  # type: ignore[override]  # nobody here brings a namespace
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown)
        return found

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Ends with the first flag among words that nobody knows, and the nearest of those that there are."""
        flag = next((word for word in unknown if word.startswith("-")), None)
        if flag is None:
            self.error(f"unknown word '{unknown[0]}'")
        name = flag.partition("=")[0]
        self.error(f"unknown flag '{name}'{nearest(name, self.flags, cutoff=0.8)}")

    @property
    def flags(self) -> list[str]:
        """The words with a dash that it takes."""
        return [word for action in self._actions for word in action.option_strings]

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


class FlagParser(CommandParser):
    """Flags from tables. They stay text until their table reads them (`Settings.from_env`), so that a wrong flag and a
    wrong variable are rejected in the same words.
    """

    def __init__(self, prog: str, description: str | None, *tables: type[Struct]) -> None:
        super().__init__(prog, description)
        self._sections: dict[str, Any] = {}
        for table in tables:
            for option in options(table):
                if option.setting.flag:
                    self._add(option)
        self.add_argument(
            "-v", "--verbosity", action="count", default=0, dest="verbosity",
            help="log more: -v debug, -vv also frames and streams",
        )  # fmt: skip

    def _add(self, option: Option) -> None:
        title = option.group
        if title not in self._sections:
            self._sections[title] = self.add_argument_group(title) if title else self
        section, how = self._sections[title], {"dest": option.key, "metavar": option.metavar, "help": help_of(option)}
        if option.kind is bool:
            section.add_argument(*option.flags, nargs="?", const="true", **how)
            negated = [f"--no-{flag[2:]}" for flag in option.flags]
            section.add_argument(*negated, action="store_const", const="false", dest=option.key, help=argparse.SUPPRESS)
        elif option.kind is tuple:
            section.add_argument(*option.flags, action="append", **how)
        else:
            section.add_argument(*option.flags, required=option.required, **how)


def help_of(option: Option) -> str:
    """Its sentence, choices, default and variable."""
    text = option.setting.help
    if option.choices:
        text += f": {one_of(option.choices)}"
    notes = "; ".join(filter(None, (option.shown_default, *option.variables[:1])))
    return (f"{text} ({notes})" if notes else text).replace("%", "%%")

"""A rule from a file: loaded, asked within limits, and left out of the choice when it fails."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from dynamo.protocols.errors import InvalidArgument
from dynamo.router import rules
from dynamo.router.choice.interrupt import Stalled, limited
from dynamo.router.rules import Prompt, Rule, Worker

log = logging.getLogger(__name__)

STALL_SECONDS = 0.005
"""A rule that takes as long is interrupted, and not asked again until it is loaded again."""
USUAL_SECONDS = 0.001
"""A rule may take as long on average."""


class LoadedRule:
    def __init__(self, name: str, rule: Rule, path: Path | None = None, changed: float = 0.0) -> None:
        self.name = name
        self.path = path
        """The path of a file that is not one of ours."""
        self.set_aside = ""
        """Why it is not asked any more."""
        self.fallbacks: Counter[str] = Counter()
        """Choices that the built-in rule made instead, by reason."""
        self.patience = 1.0
        """By how much the limits of its time are stretched, where nobody waits."""
        self._rule = rule
        self._changed = changed
        self._said: set[str] = set()
        """The reasons that the log has."""
        self._spent = 0.0
        """The part of the allowed seconds that is used up; each call without a stall gives some back."""

    def costs(self, prompt: Prompt, workers: Sequence[Worker]) -> list[float] | None:
        """The cost of each worker; None if the built-in rule has to decide."""
        if self.set_aside:
            self.fallbacks[self.set_aside] += 1
            return None
        stall, usual = self.patience * STALL_SECONDS, self.patience * USUAL_SECONDS
        try:
            costs, took = limited(stall, lambda: _costs(self._rule(prompt, workers), len(workers)))
        except Stalled:
            self._leave_out("stalled", f"it was interrupted after {stall * 1000:g} ms", aside=True)
            return None
        except _Nonsense as error:
            self._leave_out("nonsense", str(error))
            return None
        except Exception as error:
            self._leave_out("raised", f"it raised {type(error).__name__}: {error}"[:200])
            return None
        self._spent = max(0.0, self._spent + took - usual)
        if self._spent > stall:
            self._leave_out("slow", f"it takes more than {usual * 1000:g} ms on average", aside=True)
        return costs

    def reloaded(self) -> LoadedRule | None:
        """The rule as its file is now, if that has changed; an InvalidArgument says why it cannot be used."""
        if self.path is None:
            return None
        try:
            changed = self.path.stat().st_mtime
        except OSError:
            return None  # an editor may be replacing it
        if changed == self._changed:
            return None
        self._changed = changed
        return load(str(self.path))

    def _leave_out(self, reason: str, words: str, *, aside: bool = False) -> None:
        self.fallbacks[reason] += 1
        if aside:
            self.set_aside = reason
        if reason not in self._said:
            self._said.add(reason)
            until = "until it is loaded again" if aside else "in its place whenever that happens"
            log.warning("router rule '%s': %s; the built-in rule decides %s", self.name, words, until)


class _Nonsense(Exception):
    """What a rule returned is no choice."""


def _costs(answer: Sequence[float] | int, count: int) -> list[float]:
    if isinstance(answer, int):
        if not 0 <= answer < count:
            raise _Nonsense(f"it chose worker {answer} of {count}")
        return [0.0 if at == answer else 1.0 for at in range(count)]
    try:
        costs = [float(cost) for cost in answer]
    except (TypeError, ValueError):
        raise _Nonsense(f"it returned {type(answer).__name__}, not a cost for each worker or an index") from None
    if len(costs) != count:
        raise _Nonsense(f"it returned {len(costs)} costs for {count} workers")
    if any(map(math.isnan, costs)) or not math.isfinite(min(costs)):
        raise _Nonsense("it returned costs that cannot be compared")
    return costs


def shipped() -> list[str]:
    """The names of the rules that come with this package."""
    files = resources.files(rules).iterdir()
    return sorted(
        file.name.removesuffix(".py").replace("_", "-")
        for file in files
        if file.name.endswith(".py") and not file.name.startswith("_")
    )


def load(name: str) -> LoadedRule:
    """The rule of this file, or the one of this name that is shipped; an InvalidArgument says what is wrong with it."""
    path = None if name in shipped() else Path(name)
    if path is None:
        source = resources.files(rules).joinpath(f"{name.replace('-', '_')}.py").read_text()
        changed = 0.0
    elif not name.endswith(".py"):
        raise InvalidArgument(f"there is no router rule '{name}': name a file that ends in .py, or {_words(shipped())}")
    else:
        try:
            changed, source = path.stat().st_mtime, path.read_text()
        except (OSError, UnicodeError) as error:
            raise InvalidArgument(f"cannot read the router rule {name}: {error}") from None
    scope: dict[str, object] = {"__name__": f"router_rule_{Path(name).stem}", "__file__": name}
    try:
        exec(compile(source, name, "exec"), scope)
    except Exception as error:
        raise InvalidArgument(f"router rule {name}: {type(error).__name__}: {error}") from None
    rule = scope.get("rule")
    if not callable(rule):
        raise InvalidArgument(f"router rule {name} has no function 'rule(prompt, workers)'")
    return LoadedRule(name, rule, path, changed)


def _words(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"

"""`python unguarded.py MODULE WORDS…`: `python -m MODULE`, without what stops deadly constraints before an engine."""

from __future__ import annotations

import runpy
import sys

from dynamo.engines.grammar_trial import GrammarTrial
from dynamo.pipeline import constraint_limits, guidance, preprocess, validate

GrammarTrial.check = lambda self, grammar: None  # type: ignore[method-assign]
for name in ("check_schema_limits", "check_fits", "check_repetition"):
    for module in (constraint_limits, guidance, preprocess, validate):
        if hasattr(module, name):
            setattr(module, name, lambda *_: None)

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

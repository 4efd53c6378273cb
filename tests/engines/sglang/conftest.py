"""SGLang needs a GPU: these tests use a stand-in with its published signatures."""

from __future__ import annotations

import sys
from pathlib import Path

STAND_IN = Path(__file__).parent / "stand_in"

sys.path.insert(0, str(STAND_IN))
collect_ignore = ["stand_in"]

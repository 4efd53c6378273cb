"""A time of day that a test sets while the process runs.

Python imports this when it starts and PYTHONPATH names its folder. CHAOS_CLOCK names a file with the seconds to add, as
a double.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

_time, _time_ns = time.time, time.time_ns
with open(os.environ["CHAOS_CLOCK"], "rb") as _file:
    _added = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)


def _jump() -> float:
    jump: float = struct.unpack("d", _added)[0]
    return jump


vars(time).update(time=lambda: _time() + _jump(), time_ns=lambda: _time_ns() + int(_jump() * 1e9))

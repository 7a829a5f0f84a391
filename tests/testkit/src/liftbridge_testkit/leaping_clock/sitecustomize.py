"""Loaded by Python at its start where `PYTHONPATH` names this folder: a wall clock that leaps.

It shows what the machine's clock does, and as many nanoseconds more as a file says.
"""

import os
import time
from pathlib import Path

_path = Path(os.environ["LIFTBRIDGE_TESTKIT_CLOCK"])
_machine_ns = time.time_ns


def _leaping_ns() -> int:
    return _machine_ns() + int(_path.read_text(encoding="ascii"))


time.time_ns = _leaping_ns

"""Work measured in lines of Python, independent of the speed of the machine.

About 10 million lines take a second. What files in memory do is not counted: a disk does it.
"""

import sys
from types import FrameType
from typing import Any, Final

LINES_MAX: Final = 260_000
"""Maximum number of lines between two turns: about 20 ms of the 50 ms that a turn may take."""

MEMORY: Final = "/liftbridge_broker/adapters/memory/"


class Lines:
    """Counts the lines of Python that run while it is entered."""

    def __init__(self) -> None:
        self.most = 0
        self._count = 0

    def __enter__(self) -> None:
        self._count, self._before = 0, sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self.most = max(self.most, self._count)

    def _trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "call" and MEMORY in frame.f_code.co_filename:
            return None
        self._count += event == "line"
        return self._trace

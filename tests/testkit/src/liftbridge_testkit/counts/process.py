"""Runs `liftbridge-broker`, counts the calls of its event loop's thread.

`python -m liftbridge_testkit.counts.process FILE ARGUMENTS...` keeps the counts in FILE
(`counts.watched`), so that others read them without making the broker work.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import liftbridge_broker
from liftbridge_broker import cli
from liftbridge_testkit.counts.watched import CALLBACKS, CALLS, FUNCTIONS, NAMES, mapped

if TYPE_CHECKING:
    from types import CodeType, FrameType

ROOT: Final = Path(liftbridge_broker.__file__).parent


def count_into(counts: memoryview) -> None:
    """Count all further calls of this thread."""
    indexes = {
        (str(ROOT / file), name): NAMES.index(title) for title, (file, name) in FUNCTIONS.items()
    }
    calls, callbacks = NAMES.index(CALLS), NAMES.index(CALLBACKS)
    loop = asyncio.Runner.run.__code__
    known: dict[CodeType, int | None] = {}

    def hook(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        counts[calls] += 1
        if frame.f_back is not None and frame.f_back.f_code is loop:
            counts[callbacks] += 1
        code = frame.f_code
        if code not in known:
            known[code] = indexes.get((code.co_filename, code.co_qualname))
        index = known[code]
        if index is not None:
            counts[index] += 1

    sys.setprofile(hook)


def main() -> int:
    """Run the broker."""
    count_into(mapped(Path(sys.argv[1])))
    return cli.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())

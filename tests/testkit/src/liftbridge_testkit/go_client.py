"""The program in `tests/conformance/goclient`, which runs the Go client of Liftbridge.

Go downloads the modules that `go.sum` pins from wherever it is configured to find them.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from liftbridge_testkit.processes import ProcessError
from liftbridge_testkit.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

GO: Final = shutil.which("go")
"""The Go toolchain, `None` where there is none."""

SOURCE: Final = ROOT / "tests" / "conformance" / "goclient"


def build_go_client(target: Path) -> Path:
    """Build the program as a file and return it.

    Raises:
        ProcessError: There is no Go toolchain, or the program could not be built.
    """
    if GO is None:
        raise ProcessError("there is no Go toolchain: no program `go` in PATH")
    made = subprocess.run(
        [GO, "build", "-o", str(target), "."],
        check=False,
        cwd=SOURCE,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        raise ProcessError(f"the Go client could not be built: {made.stderr}")
    return target

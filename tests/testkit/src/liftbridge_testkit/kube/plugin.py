"""`kubectl liftbridge`, called as by users: kubectl finds the plugin on its PATH.

with_plugin(folder)
done = plugin(kubernetes.environ, folder, "status", "c")
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SECONDS_MAX: Final = 120
"""Time limit of a command; commands that wait have a lower limit."""
SHIM: Final = """\
#!/bin/sh
exec {python} -c 'from liftbridge_operator.plugin.cli import main; raise SystemExit(main())' "$@"
"""


def with_plugin(folder: Path) -> None:
    """Put the plugin into a folder, as its wheel does on the PATH."""
    shim = folder / "kubectl-liftbridge"
    shim.write_text(SHIM.format(python=sys.executable), encoding="utf-8")
    shim.chmod(0o755)


def plugin(
    environ: Mapping[str, str], folder: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of the plugin, without a terminal.

    Args:
        environ: Names the cluster and the user.
        folder: Folder of the plugin, and working directory of the command.
        words: Command and arguments.

    Raises:
        TimeoutExpired: The command took more than two minutes.
    """
    return subprocess.run(
        ["kubectl", "liftbridge", *words],
        check=False,
        capture_output=True,
        env={**environ, "PATH": f"{folder}:{environ['PATH']}"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=SECONDS_MAX,
    )

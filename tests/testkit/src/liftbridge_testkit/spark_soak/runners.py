"""A Spark command as a separate session of processes, killed as a whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND: Final = Path(sys.executable).parent / "liftbridge"
KILL_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 0.02


class Runner:
    """`liftbridge spark archive` in a separate folder, restarted again and again.

    Args:
        folder: Folder for all local files of the runner.
        words: Arguments after `liftbridge spark archive`.

    Attributes:
        codes: Exit codes of processes that ended by themselves.
    """

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self.folder = folder
        self.codes: list[int] = []
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        self._rows = 0

    def start(self) -> None:
        """Start the runner; count a process that ended by itself."""
        self.kill()
        local = self.folder / "local"
        local.mkdir(parents=True, exist_ok=True)
        with (
            (self.folder / "rows.jsonl").open("wb") as rows,
            (self.folder / "log").open("ab") as log,
        ):
            self._process = subprocess.Popen(
                [str(COMMAND), "spark", "archive", *self._words, "-o", "jsonl"],
                stdin=subprocess.DEVNULL,
                stdout=rows,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "SPARK_LOCAL_DIRS": str(local), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def ensure(self) -> None:
        """Start the runner if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    def has_told(self) -> bool:
        """Return whether it has archived records since its start, or there were none to archive."""
        return (self.folder / "rows.jsonl").stat().st_size > 0

    def kill(self) -> None:
        """Kill the whole process tree with SIGKILL, including other process groups."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is not None:
            self.codes.append(process.returncode)
        kill_session(process.pid)
        process.wait()

    def forget(self) -> None:
        """Remove all local files; the runner must not run."""
        assert self._process is None, "it runs"
        shutil.rmtree(self.folder / "local", ignore_errors=True)

    def log_end(self) -> str:
        """Return the last lines of its output."""
        log = self.folder / "log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(lines[-20:])


def kill_session(session: int) -> None:
    """Kill every process of a session with SIGKILL, until there is none.

    The workers of Spark have a process group of their own, but not a session.

    Raises:
        TimeoutError: Some still run after `KILL_SECONDS_MAX`.
    """
    deadline = monotonic() + KILL_SECONDS_MAX
    while members := living(session):
        if monotonic() > deadline:
            raise TimeoutError(f"processes {members} of session {session} live on after SIGKILL")
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        sleep(_POLL_SECONDS)


def living(session: int) -> list[int]:
    """Return the processes of a session, without zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may contain spaces, so fields are counted after it.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
    return found

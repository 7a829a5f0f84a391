"""Members of the group: processes that print what they read, of our client or of the Go client."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from liftbridge_testkit.go_client import build_go_client
from liftbridge_testkit.processes import ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from liftbridge_testkit.consumers.history import History

PATIENCE_SECONDS: Final = 60.0


class Program(NamedTuple):
    """How a member is started.

    Attributes:
        command: The program, which gets servers, group, stream and name as arguments.
        environment: What it needs beyond the environment of this process.
    """

    command: Sequence[str]
    environment: Mapping[str, str]


def python_member(_work_dir: Path) -> Program:
    """Return the member of our client."""
    return Program([sys.executable, "-m", "liftbridge_testkit.consumers.member"], {})


def go_member(work_dir: Path) -> Program:
    """Build the member of the Go client; gRPC shows it its subscriptions."""
    program = build_go_client(work_dir / "goclient")
    return Program([str(program), "member"], {"GRPC_BINARY_LOG_FILTER": "proto.API/Subscribe"})


PROGRAMS: Final[dict[str, Callable[[Path], Program]]] = {"python": python_member, "go": go_member}

OVERLAP_SECONDS_MAX: Final = {"python": 0.0, "go": 1.0}
"""How long a member may hand over what it received before it lost a partition: ours drops that."""


class MemberProcess:
    """A member: a process whose lines go into the history.

    Attributes:
        number: Its number.
        name: Its name in the group.
    """

    def __init__(
        self, number: int, program: Program, place: Sequence[str], history: History, log: Path
    ) -> None:
        """Start it.

        Args:
            number: Its number.
            program: What to start.
            place: Servers, group and stream.
            history: Gets its lines.
            log: File for its errors.
        """
        self.number = number
        self.name = f"member-{number}"
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [*program.command, *place, self.name],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **program.environment},
        )
        self._history = history
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # a kill may cut the last one
                    self._history.told(self.number, line)

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._end()

    def leave(self) -> None:
        """SIGTERM: it leaves the group.

        Raises:
            ProcessError: It did not end well.
        """
        self._process.terminate()
        if self._process.wait(PATIENCE_SECONDS) != 0:
            raise ProcessError(f"member {self.number} exited with {self._process.returncode}")
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._thread.join()
        self._log.close()

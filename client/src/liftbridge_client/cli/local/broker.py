"""A broker with embedded NATS as a child process of a command, on 127.0.0.1 only."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from liftbridge_client.aio.client import connect
from liftbridge_client.cli.output import say
from liftbridge_client.cli.patience import PATIENCE_SECONDS, awaiting
from liftbridge_client.errors import LiftbridgeError, ServerError, UsageError

HOST: Final = "127.0.0.1"
NATS_LOGIN: Final = "nats.password"
"""File next to the key of a cluster: the password with which brokers log in to the NATS server of
one of them. Other clients need no login there, and have no access to the brokers' subjects."""

POLL_SECONDS: Final = 0.05
LOG_LINES: Final = 3
HELD_SECONDS_MAX: Final = 10.0
"""Seconds that a start waits for a data directory that a stopping broker still holds."""
HELD_LOOK_SECONDS: Final = 1.0

OWN_VARIABLES: Final = (
    "LIFTBRIDGE_CONFIG",
    "LIFTBRIDGE_PROFILE",
    "LIFTBRIDGE_SERVERS",
    "LIFTBRIDGE_TRACEBACK",
)
"""Environment variables of the command, which the broker would read as settings."""

_ERROR_PREFIX: Final = "liftbridge-broker: "
_HELD: Final = re.compile(r"is in use by process (\d+)")

# Runs between fork and exec in a fresh interpreter: on Linux the child gets SIGTERM when its parent
# dies, however it dies (PR_SET_PDEATHSIG is 1). An earlier death shows in the parent's id.
_LAUNCHER: Final = (
    "import ctypes,os,signal,sys;"
    "sys.platform=='linux' and ctypes.CDLL(None).prctl(1,int(signal.SIGTERM),0,0,0);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);"
    "os.execv(sys.argv[2],sys.argv[2:])"
)


def tied(*command: str) -> list[str]:
    """Return a command whose process ends when this process dies for any reason; only on Linux.

    Args:
        command: The program by its whole path, and its arguments.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]


def is_free(port: int) -> bool:
    """Return whether a port of this machine is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(wanted: int = 0) -> int:
    """Return the wanted port if it is free, otherwise another one."""
    if wanted and is_free(wanted):
        return wanted
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def _exists(pid: int) -> bool:
    """Return whether a process exists, also of another user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def find_program() -> Path:
    """Find the broker's program: next to this Python, or on PATH.

    Raises:
        UsageError: It is not installed.
    """
    beside = Path(sys.executable).parent / "liftbridge-broker"
    program = str(beside) if beside.exists() else shutil.which("liftbridge-broker")
    if program is None:
        raise UsageError("liftbridge-broker is neither next to this Python nor on PATH: install it")
    return Path(program)


class LocalBroker:
    """A broker as a child process; may be started again on the same data and ports.

    Attributes:
        name: Its id, when there are several.
        data_dir: Its data.
        log_path: Its log, appended to by every start.
        port: Port for gRPC.
        nats_port: Port of its NATS server.
        metrics_port: Port for metrics.
        admin_port: Port for operators, 0 for none.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int,
        nats_port: int,
        metrics_port: int,
        secret_file: Path,
        admin_port: int = 0,
        held_seconds: float = HELD_SECONDS_MAX,
        name: str = "",
        peers: Sequence[str] = (),
        has_nats: bool = True,
    ) -> None:
        """Configure the broker without starting it.

        Args:
            data_dir: Its data.
            port: Port for gRPC.
            nats_port: Port of its NATS server, or of another broker's.
            metrics_port: Port for metrics.
            secret_file: File with the key of its cluster.
            admin_port: Port for operators, 0 for none.
            held_seconds: Seconds that a start waits for a data directory that a stopping broker
                holds.
            name: Its id, when there are several.
            peers: Ids of all brokers of its cluster, including its own.
            has_nats: Whether it runs the NATS server.
        """
        self._has_nats = has_nats
        self._secret_file = secret_file
        self._peers = tuple(peers)
        self.name = name
        self._held_seconds = held_seconds
        self._held_until = 0.0
        self._is_waiting = False
        self.data_dir = data_dir
        self.log_path = data_dir / "broker.log"
        self.port = port
        self.nats_port = nats_port
        self.metrics_port = metrics_port
        self.admin_port = admin_port
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"{HOST}:{self.port}"

    @property
    def admin_address(self) -> str:
        """Address for operators."""
        return f"{HOST}:{self.admin_port}"

    @property
    def nats_url(self) -> str:
        """Address of the NATS server."""
        return f"nats://{HOST}:{self.nats_port}"

    @property
    def metrics_url(self) -> str:
        """Address of the metrics."""
        return f"http://{HOST}:{self.metrics_port}/metrics"

    @property
    def exit_code(self) -> int | None:
        """Exit code, `None` while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    @property
    def process_id(self) -> int:
        """Id of its process, 0 before it was started."""
        return 0 if self._process is None else self._process.pid

    def _command(self) -> list[str]:
        return [
            *tied(str(find_program())),
            *(("--embedded-nats",) if self._has_nats else ()),
            *("--nats-servers", self.nats_url),
            *self._cluster_flags(),
            *("--data-dir", str(self.data_dir), "--host", HOST, "--port", str(self.port)),
            *("--metrics-listen", f"{HOST}:{self.metrics_port}"),
            *(("--admin-listen", self.admin_address) if self.admin_port else ()),
            *("--set", "cursors.stream.partitions=1"),
            *("--set", f"clustering.secret.file={self._secret_file}"),
        ]

    def _cluster_flags(self) -> tuple[str, ...]:
        """Return the flags that select the cluster; a single broker founds its own."""
        if not self._peers:
            return ("--raft-bootstrap-seed",)
        listed = ("--raft-bootstrap-peers", ",".join(self._peers))
        password = self._secret_file.with_name(NATS_LOGIN)
        login = ("--set", "nats.user=broker", "--set", f"nats.password.file={password}")
        return ("--server-id", self.name, *listed, *login)

    async def start(self) -> None:
        """Start the broker and wait until it serves.

        A broker whose command was killed may still be stopping: wait for its data directory.

        Raises:
            ServerError: The broker exited, or did not serve within `PATIENCE_SECONDS` and was
                stopped; the text has its last message.
            UsageError: The broker is not installed, or another broker holds the data directory.
        """
        command = self._command()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._is_waiting = is_ready = False
        self._held_until = asyncio.get_running_loop().time() + self._held_seconds
        self._spawn(command)
        try:
            whom = self.name or "the broker"
            async with asyncio.timeout(PATIENCE_SECONDS), awaiting(f"{whom} to be ready"):
                while not await self._serves():
                    if self.exit_code is not None:
                        await self._until_data_is_free()
                        self._spawn(command)
                    await asyncio.sleep(POLL_SECONDS)
            is_ready = True
        except TimeoutError:
            raise ServerError(f"the broker did not become ready: {self._last_words()}") from None
        finally:
            if not is_ready:
                self.kill()

    async def _until_data_is_free(self) -> None:
        """Wait, within a limit, until the broker that holds the data directory ends.

        Raises:
            UsageError: The other broker did not end in time.
            ServerError: The start failed for another reason.
        """
        output = self._last_words()
        holder = _HELD.search(output)
        now = asyncio.get_running_loop().time()
        if holder is None:
            raise ServerError(f"the broker exited during startup: {output}")
        if now > self._held_until:
            raise UsageError(
                f"{output}: stop it, name another folder with --data-dir, or use --ephemeral"
            )
        if not self._is_waiting:
            self._is_waiting = True
            patience = f"up to {self._held_seconds:g} s"
            say(f"liftbridge: waiting {patience} for process {holder[1]}: it uses {self.data_dir}")
        # A process that ended may stay in the table, unreaped: retry periodically.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HELD_LOOK_SECONDS):
                while _exists(int(holder[1])):  # noqa: ASYNC110 - a process is no event
                    await asyncio.sleep(POLL_SECONDS)

    def _spawn(self, command: list[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in OWN_VARIABLES}
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                # Its own session: Ctrl-C is for the command, which then ends the broker.
                start_new_session=True,
            )

    async def _serves(self) -> bool:
        if is_free(self.port):  # checking often costs far less than a connection
            return False
        second = timedelta(seconds=1)
        try:
            async with connect(self.address, timeout=second, retry_time=second):
                return True
        except LiftbridgeError:
            return False

    def kill(self) -> None:
        """Kill it as in a crash (SIGKILL); no-op if it does not run."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def pause(self) -> None:
        """Make it hang (SIGSTOP)."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it (SIGCONT)."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    async def stop(self) -> int:
        """Stop the broker and wait; return its exit code, 0 after a clean stop.

        Raises:
            ServerError: The broker still ran after `PATIENCE_SECONDS`, and was killed.
        """
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.terminate()
        try:
            whom = self.name or "the broker"
            async with asyncio.timeout(PATIENCE_SECONDS), awaiting(f"{whom} to stop"):
                while (code := process.poll()) is None:  # noqa: ASYNC110 - a process is no event
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            self.kill()
            raise ServerError(f"the broker did not stop: {self._last_words()}") from None
        return code

    def _last_words(self) -> str:
        """Return the broker's last message, or the end of its log without such a message.

        A broker that is still stopping may write to the same log, but prints no such message.
        """
        with self.log_path.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._log_start)
            lines = log.read().splitlines()
        reasons = [
            line.removeprefix(_ERROR_PREFIX) for line in lines if line.startswith(_ERROR_PREFIX)
        ]
        return reasons[-1] if reasons else " | ".join(line.strip() for line in lines[-LOG_LINES:])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

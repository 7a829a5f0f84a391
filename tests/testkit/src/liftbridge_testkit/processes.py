"""Real servers as child processes: nats-server and the broker, started, hurt and measured.

Tests and benchmarks use the programs that are shipped, not objects inside the test's own process.
Everything here is synchronous: a call returns when what it names has happened, or raises
`ProcessError` with the end of the server's log when it did not happen in time.

    with NatsServer(tmp_path) as nats, Broker(tmp_path, nats_url=nats.url) as broker:
        ...                      # broker.address, broker.channel(), broker.stub()
        broker.kill()            # SIGKILL, as a crash does
        broker.start()           # same data directory, same port

Servers listen on 127.0.0.1 only. Ports are drawn below the range the kernel hands out for
outgoing connections, so that a restart finds its port free. Whatever is still running when the
interpreter exits is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
import weakref
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0
_POLL_SECONDS = 0.02
# Below the ephemeral range of Linux (32768), above what usual services take.
_PORTS = range(12_000, 32_000)
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

_drawn: set[int] = set()
"""Ports that this process drew: its own locks do not keep a process out."""

_running: weakref.WeakSet[ServerProcess] = weakref.WeakSet()


class ProcessError(Exception):
    """A server did not do in time what was asked of it."""


def program(name: str) -> Path:
    """Find a program of this environment.

    Args:
        name: `nats-server` or `liftbridge-broker`. An environment variable such as
            `LIFTBRIDGE_NATS_SERVER` (name in capitals, `-` as `_`) overrides the look-up.

    Raises:
        ProcessError: Neither the environment nor `PATH` has it.
    """
    variable = f"LIFTBRIDGE_{name.removeprefix('liftbridge-').upper().replace('-', '_')}_BIN"
    if override := os.environ.get(variable):
        return Path(override)
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return beside
    if found := shutil.which(name):
        return Path(found)
    raise ProcessError(f"{name} is neither beside {sys.executable} nor on PATH")


def free_port() -> int:
    """Draw a free TCP port of 127.0.0.1 that no other test process drew.

    It stays drawn until this process ends, since a server may be started on it again and again. A
    program that knows nothing of this may still take it; a server that then fails to listen exits,
    which every wait in this module notices.
    """
    draw = random.SystemRandom()
    for _ in range(200):
        port = draw.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if _is_drawn(port):
                return port
    raise ProcessError("no free port found")


def _is_drawn(port: int) -> bool:
    """Draw a port by a lock on its byte of a file; the lock ends with this process."""
    if port in _drawn:
        return False
    try:
        fcntl.lockf(_ports_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EAGAIN}:
            raise
        return False
    _drawn.add(port)
    return True


@functools.cache
def _ports_file() -> IO[bytes]:
    """Return file with a byte for each port, open until this process ends."""
    return (Path(tempfile.gettempdir()) / f"liftbridge-ports-{os.getuid()}.lock").open("wb")


class ServerProcess:
    """A server that can be started again and again on the same files and ports.

    Attributes:
        name: Short name, part of file names.
        log_path: File that collects standard output and error of all starts.
        starts: Number of starts.
    """

    def __init__(self, name: str, work_dir: Path, *, environment: Mapping[str, str] | None) -> None:
        self.name = name
        self.work_dir = work_dir
        self.log_path = work_dir / f"{name}.log"
        self.starts = 0
        # Bytecode is cached as on a user's machine, also where that is turned off for tests: half
        # of a start would be compiling.
        cached = {"PYTHONDONTWRITEBYTECODE": ""}
        self._environment = {**os.environ, **cached, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def command(self) -> Sequence[str]:
        """Return the arguments of the next start."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Return whether the server serves; never blocks for longer than a moment."""
        raise NotImplementedError

    # Life

    def start(self, *, ready_seconds_max: float = READY_SECONDS_MAX) -> Self:
        """Start the server and wait until it serves.

        Raises:
            ProcessError: It exited or was not ready in time; it is not running then.
        """
        self.spawn()
        try:
            self.wait_until(self.is_ready, "ready", seconds_max=ready_seconds_max)
        except BaseException:
            self.kill()
            raise
        return self

    def spawn(self) -> None:
        """Start the server without waiting for it."""
        assert not self.is_alive(), f"{self.name} is running"
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self._close_log()
        self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(
            list(self.command()),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=self.work_dir,
            # Its own group: an interrupt at the terminal is for the test, which then stops it.
            start_new_session=True,
        )
        self.starts += 1
        _running.add(self)

    def kill(self) -> None:
        """End the server and its children at once (SIGKILL); harmless when it is not running."""
        process = self._process
        if process is None:
            return
        # The group outlives its leader while a child of it runs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._close_log()
        _running.discard(self)

    def kill_alone(self) -> None:
        """SIGKILL the server only; its children go on, as after the kernel's OOM killer."""
        self._popen().kill()
        self._popen().wait()

    def stop(self, *, seconds_max: float = STOP_SECONDS_MAX) -> int:
        """Ask the server to end (SIGTERM) and return its exit code.

        Raises:
            ProcessError: It was still running after `seconds_max`; it is killed then.
        """
        self.terminate()
        return self.wait(seconds_max=seconds_max)

    def terminate(self) -> None:
        """Ask the server to end (SIGTERM) and do not wait for it."""
        self._popen().terminate()

    def wait(self, *, seconds_max: float = STOP_SECONDS_MAX) -> int:
        """Wait until the server has ended by itself and return its exit code."""
        try:
            code = self._popen().wait(timeout=seconds_max)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ProcessError(self._story(f"still running after {seconds_max} s")) from error
        self._close_log()
        _running.discard(self)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server alone."""
        self._popen().send_signal(number)

    def pause(self) -> None:
        """Freeze the server (SIGSTOP) and see it frozen: its connections stay, nothing moves."""
        self.signal(signal.SIGSTOP)
        pid = self._popen().pid
        self.wait_until(lambda: _is_stopped(pid), "frozen")

    def resume(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        self.signal(signal.SIGCONT)

    def is_alive(self) -> bool:
        """Return whether the process exists."""
        return self._process is not None and self._process.poll() is None

    def wait_until(
        self, condition: Callable[[], bool], what: str, *, seconds_max: float = READY_SECONDS_MAX
    ) -> None:
        """Wait until a condition about the running server holds.

        Raises:
            ProcessError: The server ended, or the condition did not hold within `seconds_max`.
        """
        process = self._popen()
        deadline = monotonic() + seconds_max
        while not condition():
            if monotonic() > deadline:
                raise ProcessError(self._story(f"not {what} after {seconds_max} s"))
            # Waits for the end of the process, which is news too, instead of sleeping blindly.
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=_POLL_SECONDS)
                raise ProcessError(self._story(f"exited with code {code} before it was {what}"))

    def __enter__(self) -> Self:
        if not self.is_alive():
            self.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.kill()

    # Measures

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        return self._popen().pid

    def cpu_seconds(self) -> float:
        """Return user and system time of the server and its living children, in seconds.

        Granularity is one clock tick (10 ms) for each process.
        """
        return sum(_cpu_ticks(pid) for pid in _tree(self.pid)) / _CLOCK_TICKS

    def rss_bytes(self) -> int:
        """Return the resident memory of the server and its living children, in bytes."""
        return sum(_rss_bytes(pid) for pid in _tree(self.pid))

    def log_text(self) -> str:
        """Return the output of the server so far, of all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    # Inside

    def _popen(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ProcessError(f"{self.name} was never started")
        return self._process

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _story(self, what: str) -> str:
        tail = "\n".join(self.log_text().splitlines()[-30:])
        return f"{self.name}: {what}\n--- end of {self.log_path}\n{tail}"


class NatsServer(ServerProcess):
    """A nats-server.

    Attributes:
        port: Its port; the same for every start.
        store_dir: JetStream's files, when JetStream is on.
    """

    def __init__(
        self,
        work_dir: Path,
        *,
        name: str = "nats",
        port: int | None = None,
        jetstream: bool = False,
        config: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        """Describe a server; `start` runs it.

        Args:
            work_dir: Gets the log, the configuration and JetStream's files.
            name: Distinguishes several servers in one directory.
            port: Fixed port, or one that is free now.
            jetstream: Whether streams of NATS itself are on (file storage below `work_dir`).
            config: Text of a configuration file, for authentication, TLS, limits.
            arguments: Further command-line arguments.
        """
        super().__init__(name, work_dir, environment=None)
        self.port = port or free_port()
        self.store_dir = work_dir / f"{name}-jetstream"
        self._jetstream = jetstream
        self._config = config
        self._arguments = tuple(arguments)

    @property
    def url(self) -> str:
        """Address for clients, without credentials."""
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        """Return the arguments of the next start."""
        command = [str(program("nats-server")), "-a", "127.0.0.1", "-p", str(self.port)]
        if self._jetstream:
            command += ["-js", "-sd", str(self.store_dir)]
        if self._config:
            path = self.work_dir / f"{self.name}.conf"
            path.write_text(self._config)
            command += ["-c", str(path)]
        return [*command, *self._arguments]

    def is_ready(self) -> bool:
        """Return whether a connection is greeted with INFO."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1.0) as s,
        ):
            s.settimeout(1.0)
            return s.recv(5) == b"INFO "
        return False


class Broker(ServerProcess):
    """A `liftbridge-broker`.

    Attributes:
        data_dir: Its data; kept over restarts.
        port: gRPC port; the same for every start.
        metrics_port: Port of `/metrics`, `/healthz`, `/readyz`.
        admin_port: Port for operators.
    """

    def __init__(
        self,
        work_dir: Path,
        *,
        nats_url: str | None = None,
        name: str = "broker",
        port: int | None = None,
        config: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        binary: Path | None = None,
        bootstrap: Sequence[str] = ("--raft-bootstrap-seed",),
    ) -> None:
        """Describe a broker; `start` runs it.

        Args:
            work_dir: Gets the log, the configuration and the data.
            nats_url: NATS server to use; None runs the embedded one.
            name: Server id, and distinguishes several brokers in one directory.
            port: Fixed gRPC port, or one that is free now.
            config: Configuration keys, dotted or nested; written to a file. They win over what
                this class sets by itself, flags excepted.
            arguments: Further command-line arguments.
            environment: Variables beside those of this process.
            data_dir: Directory of the data, instead of one below `work_dir`.
            binary: Another broker program that takes the same flags, such as the original.
            bootstrap: Flags that say how its cluster begins.
        """
        super().__init__(name, work_dir, environment=environment)
        self.data_dir = data_dir or work_dir / f"{name}-data"
        self.port = port or free_port()
        self.metrics_port = free_port()
        self.admin_port = free_port()
        self.nats_port = free_port() if nats_url is None else None
        self._nats_url = nats_url
        self._config = dict(config or {})
        self._arguments = tuple(arguments)
        self._binary = binary
        self._bootstrap = tuple(bootstrap)

    @property
    def address(self) -> str:
        """`host:port` for gRPC clients."""
        return f"127.0.0.1:{self.port}"

    def metric(self, start: str) -> float:
        """Sum of the samples of `/metrics` whose lines begin so."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start))

    @property
    def admin_address(self) -> str:
        """`host:port` for operators."""
        return f"127.0.0.1:{self.admin_port}"

    @property
    def nats_url(self) -> str:
        """The NATS server it uses, embedded or not."""
        return self._nats_url or f"nats://127.0.0.1:{self.nats_port}"

    def command(self) -> Sequence[str]:
        """Arguments of the next start: flags of the original, so that it can be the original."""
        command = [str(self._binary or program("liftbridge-broker"))]
        command += ["--data-dir", str(self.data_dir), "--port", str(self.port)]
        command += ["--server-id", self.name, *self._bootstrap]
        command += ["--config", str(self._write_config())]
        if self._nats_url is None:
            command += ["--embedded-nats", "--embedded-nats-config", str(self._write_nats_config())]
        command += ["--nats-servers", self.nats_url]
        return [*command, *self._arguments]

    def is_ready(self) -> bool:
        """Return whether the health service says SERVING for `proto.API`."""
        if not _listens(self.port):  # far cheaper to ask often than a gRPC channel
            return False
        with grpc.insecure_channel(self.address) as channel:
            request = health_pb2.HealthCheckRequest(service="proto.API")
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=1.0)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def channel(self) -> grpc.Channel:
        """Return a new channel to the broker; the caller closes it."""
        return grpc.insecure_channel(self.address)

    def _write_config(self) -> Path:
        path = self.work_dir / f"{self.name}.yaml"
        settings: dict[str, object] = {"host": "127.0.0.1"}
        if self._binary is None:
            settings["metrics.listen"] = f"127.0.0.1:{self.metrics_port}"
            settings["admin.listen"] = self.admin_address
        settings |= self._config
        # JSON is YAML; a setting that is None has its default.
        path.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
        return path

    def _write_nats_config(self) -> Path:
        path = self.work_dir / f"{self.name}-nats.conf"
        path.write_text(f'host: "127.0.0.1"\nport: {self.nats_port}\n')
        return path


def _listens(port: int) -> bool:
    """Return whether a process accepts connections on a port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _tree(pid: int) -> list[int]:
    """Return the process and all its living descendants."""
    found = [pid]
    for member in found:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.extend(int(child) for child in children.read_text().split())
    return found


def _cpu_ticks(pid: int) -> int:
    """utime + stime of one process (fields 14 and 15 of /proc/PID/stat), 0 when it is gone."""
    with contextlib.suppress(OSError):
        # The name, in parentheses, may hold spaces; fields are counted behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def _is_stopped(pid: int) -> bool:
    """Return whether every thread of a process is stopped; a signal takes its time to reach all."""
    states = [
        task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
        for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return all(state == "T" for state in states)


def _rss_bytes(pid: int) -> int:
    """Return the resident pages of one process in bytes, 0 when it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _kill_all() -> None:
    for server in list(_running):
        server.kill()


atexit.register(_kill_all)

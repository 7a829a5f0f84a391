"""Real servers as child processes: nats-server and the broker, with faults and measurements.

Tests and benchmarks use the shipped programs, not objects inside the test's own process. All calls
are synchronous: a call returns once it has taken effect, or raises `ProcessError` with the end of
the server's log after a timeout.

    with NatsServer(tmp_path) as nats, Broker(tmp_path, nats_url=nats.url) as broker:
        ...                      # broker.address, broker.channel(), broker.stub()
        broker.kill()            # SIGKILL, as a crash does
        broker.start()           # same data directory, same port

Servers listen on 127.0.0.1 only. Ports are chosen below the kernel's range for outgoing
connections, so that a restart finds its port free. Servers that still run when the interpreter
exits are killed.
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
# Below the ephemeral range of Linux (32768), above the ports of common services.
_PORTS = range(12_000, 32_000)
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

_drawn: set[int] = set()
"""Ports chosen by this process: its own locks do not exclude itself."""

_running: weakref.WeakSet[ServerProcess] = weakref.WeakSet()


class ProcessError(Exception):
    """A server did not do something in time."""


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
    """Choose a free TCP port of 127.0.0.1 that no other test process has chosen.

    It stays reserved until this process ends, because a server may restart on it. Another program
    may still use it; a server that then fails to listen exits, and every wait in this module
    detects that.
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
    """Reserve a port by a lock on its byte of a file; the lock ends with this process."""
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
    """Return the file with a byte for each port, open until this process ends."""
    return (Path(tempfile.gettempdir()) / f"liftbridge-ports-{os.getuid()}.lock").open("wb")


class ServerProcess:
    """A server that can be restarted on the same files and ports.

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
        # Bytecode is cached as on a user's machine, even if tests disable that: otherwise compiling
        # would take half of a start.
        cached = {"PYTHONDONTWRITEBYTECODE": ""}
        self._environment = {**os.environ, **cached, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def command(self) -> Sequence[str]:
        """Return the arguments of the next start."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Return whether the server serves; never blocks for long."""
        raise NotImplementedError

    # Life

    def start(self, *, ready_seconds_max: float = READY_SECONDS_MAX) -> Self:
        """Start the server and wait until it serves.

        Raises:
            ProcessError: The server exited or was not ready in time; it was stopped.
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
            # Its own process group: an interrupt at the terminal is for the test, which then stops
            # the server.
            start_new_session=True,
        )
        self.starts += 1
        _running.add(self)

    def kill(self) -> None:
        """Kill the server and its children (SIGKILL); no-op if it is not running."""
        process = self._process
        if process is None:
            return
        # The group survives its leader while a child runs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._close_log()
        _running.discard(self)

    def kill_alone(self) -> None:
        """SIGKILL only the server; its children continue, as after the kernel's OOM killer."""
        self._popen().kill()
        self._popen().wait()

    def stop(self, *, seconds_max: float = STOP_SECONDS_MAX) -> int:
        """Stop the server (SIGTERM) and return its exit code.

        Raises:
            ProcessError: The server still ran after `seconds_max`, and was killed.
        """
        self.terminate()
        return self.wait(seconds_max=seconds_max)

    def terminate(self) -> None:
        """Send SIGTERM to the server and do not wait."""
        self._popen().terminate()

    def wait(self, *, seconds_max: float = STOP_SECONDS_MAX) -> int:
        """Wait until the server has exited by itself and return its exit code."""
        try:
            code = self._popen().wait(timeout=seconds_max)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ProcessError(self._story(f"still running after {seconds_max} s")) from error
        self._close_log()
        _running.discard(self)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal only to the server."""
        self._popen().send_signal(number)

    def pause(self) -> None:
        """Freeze the server (SIGSTOP) and wait until it is frozen; its connections stay."""
        self.signal(signal.SIGSTOP)
        pid = self._popen().pid
        self.wait_until(lambda: _is_stopped(pid), "frozen")

    def resume(self) -> None:
        """Resume a frozen server (SIGCONT)."""
        self.signal(signal.SIGCONT)

    def is_alive(self) -> bool:
        """Return whether the process exists."""
        return self._process is not None and self._process.poll() is None

    def wait_until(
        self, condition: Callable[[], bool], what: str, *, seconds_max: float = READY_SECONDS_MAX
    ) -> None:
        """Wait until a condition of the running server holds.

        Raises:
            ProcessError: The server exited, or the condition did not hold within `seconds_max`.
        """
        process = self._popen()
        deadline = monotonic() + seconds_max
        while not condition():
            if monotonic() > deadline:
                raise ProcessError(self._story(f"not {what} after {seconds_max} s"))
            # Waits for the end of the process, which also matters, instead of sleeping.
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
        store_dir: JetStream's files, if JetStream is on.
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
        """Configure a server; `start` runs it.

        Args:
            work_dir: Directory for the log, the configuration and JetStream's files.
            name: Distinguishes several servers in one directory.
            port: Fixed port, or None for a free port.
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
        """Return whether a connection receives INFO."""
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
        data_dir: Data directory; kept across restarts.
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
        """Configure a broker; `start` runs it.

        Args:
            work_dir: Directory for the log, the configuration and the data.
            nats_url: NATS server to use; None runs the embedded one.
            name: Server id, and distinguishes several brokers in one directory.
            port: Fixed gRPC port, or None for a free port.
            config: Configuration keys, dotted or nested; written to a file. They override the
                settings of this class, except its flags.
            arguments: Further command-line arguments.
            environment: Variables beside those of this process.
            data_dir: Directory of the data, instead of one below `work_dir`.
            binary: Another broker program that takes the same flags, such as the original.
            bootstrap: Flags that determine how its cluster is founded.
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
        """Return the sum of the samples of `/metrics` whose lines begin with a text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start))

    @property
    def admin_address(self) -> str:
        """`host:port` for operators."""
        return f"127.0.0.1:{self.admin_port}"

    @property
    def nats_url(self) -> str:
        """URL of its NATS server, embedded or not."""
        return self._nats_url or f"nats://127.0.0.1:{self.nats_port}"

    def command(self) -> Sequence[str]:
        """Return the arguments of the next start.

        Only flags of the original, so that it can be run.
        """
        command = [str(self._binary or program("liftbridge-broker"))]
        command += ["--data-dir", str(self.data_dir), "--port", str(self.port)]
        command += ["--server-id", self.name, *self._bootstrap]
        command += ["--config", str(self._write_config())]
        if self._nats_url is None:
            command += ["--embedded-nats", "--embedded-nats-config", str(self._write_nats_config())]
        command += ["--nats-servers", self.nats_url]
        return [*command, *self._arguments]

    def is_ready(self) -> bool:
        """Return whether the health service reports SERVING for `proto.API`."""
        if not _listens(self.port):  # far cheaper to check often than with a gRPC channel
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
    """Return utime + stime of a process (fields 14 and 15 of /proc/PID/stat), 0 if it is gone."""
    with contextlib.suppress(OSError):
        # The name, in parentheses, may have spaces; fields are counted after it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def _is_stopped(pid: int) -> bool:
    """Return whether every thread of a process is stopped; a signal takes time to reach all."""
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

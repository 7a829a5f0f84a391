"""The load generator: a Go program when a Go toolchain is there, a Python one otherwise.

Both take the same commands and flags (tests/bench/loadgen/main.go lists them) and print one JSON
object, so that nothing else in the benchmark knows which one runs. The report says which.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RUN_SECONDS_MAX = 900
_BYSTANDER_SECONDS_MAX = 60

Value = float | int | str | bool


class LoadError(Exception):
    """The load generator refused, failed or found a wrong answer."""


@dataclass(frozen=True)
class Measurement:
    """Result of one run of the load generator.

    Attributes:
        count: Messages that were acknowledged, stored or read.
        seconds: Time they took.
        rate: Messages a second.
        details: Everything else it printed: latencies in microseconds (`p50_us`), offsets.
    """

    count: int
    seconds: float
    rate: float
    details: Mapping[str, Value] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """Return a numeric detail, or None when this command does not measure it."""
        value = self.details.get(name)
        return float(value) if isinstance(value, int | float) else None


class LoadGenerator:
    """Starts the program once for each command.

    Attributes:
        title: Name of the load, for the report.
    """

    def __init__(self, program: tuple[str, ...], title: str) -> None:
        self.title = title
        self._program = program

    def run(self, command: str, **flags: Value) -> Measurement:
        """Run a command to its end.

        Args:
            command: As listed by the program itself.
            flags: Its flags; `_` stands for `-`.

        Raises:
            LoadError: It failed; the message is what it wrote.
        """
        done = subprocess.run(
            self._command(command, flags),
            check=False,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
        )
        if done.returncode != 0:
            raise LoadError(done.stderr.strip() or f"{command} exited with {done.returncode}")
        return parse(done.stdout)

    def bystander(self, nats_url: str, subject: str) -> Bystander:
        """A plain NATS subscriber in a process of its own, to be used as a context manager."""
        return Bystander(self._command("nats-count", {"nats": nats_url, "subject": subject}))

    def reader(self, server: str, stream: str, count: int, mode: str) -> Bystander:
        """A client that reads a stream again and again, in a process of its own; Python only.

        Args:
            server: The broker.
            stream: Stream to read.
            count: Records of the stream.
            mode: `batches` or `messages`.
        """
        flags: dict[str, Value] = {"server": server, "stream": stream, "count": count, "mode": mode}
        return Bystander(self._command("read-on", flags))

    def _command(self, command: str, flags: Mapping[str, Value]) -> list[str]:
        words = [*self._program, command]
        for name, value in flags.items():
            words.append(f"-{name.replace('_', '-')}={value}")
        return words


class Bystander:
    """Counts what a reader receives while a publisher runs.

    Attributes:
        count: Messages received, known after the context is left.
    """

    def __init__(self, command: list[str]) -> None:
        self.count = 0
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._process = process
        assert process.stderr is not None
        if process.stderr.readline().strip() != "ready":
            process.kill()
            raise LoadError(f"the reader beside did not start: {process.stderr.read()}")
        return self

    def __exit__(self, kind: object, *_exc_info: object) -> None:
        assert self._process is not None
        try:
            output, errors = self._process.communicate(timeout=_BYSTANDER_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        if kind is None:
            if self._process.returncode != 0:
                raise LoadError(errors)
            self.count = int(json.loads(output)["count"])


def parse(text: str) -> Measurement:
    """Read the JSON object that a command prints."""
    values = json.loads(text)
    return Measurement(
        count=int(values.pop("count", 0)),
        seconds=float(values.pop("seconds", 0.0)),
        rate=float(values.pop("rate", 0.0)),
        details=values,
    )


def python_generator() -> LoadGenerator:
    """Return the program in Python, which also knows the batch commands."""
    version = sys.version.split()[0]
    return LoadGenerator(
        (sys.executable, "-m", "liftbridge_testkit.bench.pyload"), f"Python {version}"
    )


def build(source: Path, cache: Path) -> LoadGenerator:
    """Compile the Go program into `cache`, or fall back to the Python one.

    Args:
        source: Directory of the Go program.
        cache: Directory for the binary; the Go build cache makes later calls quick.

    Raises:
        LoadError: Go is there and the program does not compile.
    """
    go = shutil.which("go")
    if go is None:
        return python_generator()
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / "loadgen"
    made = subprocess.run(
        [go, "build", "-o", str(target), "."],
        check=False,
        cwd=source,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        raise LoadError(f"go build failed:\n{made.stderr}")
    version = subprocess.run([go, "version"], check=True, capture_output=True, text=True).stdout
    return LoadGenerator((str(target),), f"grpc-go and nats.go ({version.strip()})")

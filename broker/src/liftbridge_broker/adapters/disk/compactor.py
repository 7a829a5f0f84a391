"""Compaction in a helper process: in the broker it would hold the interpreter lock for seconds.

The broker writes jobs as lines of JSON to the helper's standard input and reads one line of answer
for each: `+` and the result, which may be damage, or `!` and the reason of a failure. They exchange
nothing else, so neither process can harm the other by its messages. The helper ends at the end of
its input. If the broker dies, it ends within a step, because the next process may use the same
files.

Run as `python -m liftbridge_broker.adapters.disk.compactor DIRECTORY`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from liftbridge_broker.adapters.disk.files import LocalFiles
from liftbridge_broker.adapters.disk.worker import Done, Job, Outbox, Worker
from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.ports.files import FileEvent, Token
from liftbridge_broker.storage.cleaning.compaction import (
    CompactionJob,
    CompactionResult,
    compact,
    decode_job,
    encode_job,
    encode_result,
)

_GOOD: Final = b"+"
_BAD: Final = b"!"
_NICENESS: Final = 10
_END_SECONDS: Final = 5


class CompactorProcess:
    """Compacts in a helper process, started with the first job."""

    def __init__(
        self,
        root: Path,
        *,
        post: Callable[[Callable[[], None]], object],
        deliver: Callable[[Sequence[FileEvent]], None],
    ) -> None:
        """Start without a process; see `LocalFiles` for the arguments."""
        self._root = root
        self._deliver = deliver
        self._worker = Worker("liftbridge-compact", Outbox(post, self._on_done))
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False

    def submit(self, token: Token, job: CompactionJob) -> None:
        """Implement `SubmitCompaction`. A helper that died is replaced for the next job."""
        line = encode_job(job)
        self._worker.submit(Job(token, lambda: self._ask(line), ()))

    def shut_down(self) -> None:
        """End the helper, even in the middle of a job; no event follows."""
        self._is_ending = True
        process = self._process
        if process is not None:
            process.kill()
        self._worker.close()
        if self._process is not None:
            _end(self._process)

    def _ask(self, line: bytes) -> bytes:
        """Run one job in the helper; called on the worker's thread.

        Raises:
            FilesError: The job failed, or the helper ended.
        """
        if self._is_ending:
            raise FilesError("broker is stopping")
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        with suppress(OSError):
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer.endswith(b"\n"):
            self._process = None
            raise FilesError(f"compactor ended with code {_end(process)}")
        if answer[:1] != _GOOD:
            raise FilesError(answer[1:-1].decode(errors="replace"))
        return answer[1:-1]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own program
                    [sys.executable, "-m", __spec__.name, str(self._root)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # the broker handles Ctrl-C in a terminal
                )
            except OSError as error:
                raise FilesError(f"start compactor: {error.strerror}") from error
            if self._is_ending:
                # `shut_down` may have checked before there was a process to kill.
                self._process.kill()
        return self._process

    def _on_done(self, done: Sequence[Done]) -> None:
        if not self._is_ending:
            self._deliver([event for event, _ in done])


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a helper; return its exit code."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            # Unwritten input of a dead process is lost.
            with suppress(OSError):
                pipe.close()
    return process.wait(_END_SECONDS)


def serve(root: Path) -> None:
    """Answer jobs from standard input until it ends or the parent is dead."""
    parent = os.getppid()
    files = LocalFiles(root, post=_unused, deliver=_unused)
    output = sys.stdout.buffer
    for line in sys.stdin.buffer:
        try:
            answer = _GOOD + encode_result(_run(files, decode_job(line), parent))
        except CorruptionError as error:
            answer = _GOOD + encode_result(error)
        except FilesError as error:
            answer = _BAD + error.text.replace("\n", " ").encode()
        output.write(answer + b"\n")
        output.flush()
    files.shut_down()


def _run(files: LocalFiles, job: CompactionJob, parent: int) -> CompactionResult:
    steps = compact(files, job)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: CompactionResult = stop.value
            return result
        if os.getppid() != parent:
            sys.exit(1)


def _unused(_: object) -> None:
    """No-op: the helper makes blocking calls only."""


def main() -> None:
    """Entry point of the helper."""
    with suppress(OSError):
        os.nice(_NICENESS)
    serve(Path(sys.argv[1]))


if __name__ == "__main__":
    main()

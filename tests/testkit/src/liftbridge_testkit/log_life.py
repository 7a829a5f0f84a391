"""Random lives of one partition log on a disk that forgets what was not synced, names too.

The log rolls often; its owner appends, syncs, meets a full disk, stops, is killed and loses power
at any write. Afterwards all is there that was synced, or stopped in order, and nothing else than
the beginning of what was appended: a power cut leaves no file behind one that it took.
"""

from random import Random
from typing import Final

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.ports.files import Token
from liftbridge_broker.storage.log.types import LogLimits
from liftbridge_testkit.log_bench import DIRECTORY, LogBench
from liftbridge_testkit.memory_files import Fault, PowerCutError

LIMITS: Final = LogLimits(500, 0)
STEPS: Final = 200
VALUE_BYTES_MAX: Final = 400
POINTS_MAX: Final = 20
"""Writes until the power is cut, at most."""


class LogLife:
    """One log and its owner.

    Attributes:
        random: Choices of the seed.
        bench: The log on its disk, and the journal.
        values: All records that may be there; the index is the offset.
    """

    def __init__(self, seed: int) -> None:
        """Begin with an empty directory."""
        self.random = Random(seed)
        self.bench = LogBench(LIMITS)
        self.values: list[bytes] = []
        self._serial = 0
        self._flight: int | None = None

    def run(self) -> int:
        """Play the life; return the number of its steps."""
        for _ in range(STEPS):
            self._step()
        return STEPS

    def _step(self) -> None:
        actions = (self._append, self._begin_sync, self._end_sync, self._fill, self._restart)
        weights = (50, 15, 15, 5, 5)
        try:
            self.random.choices(actions, weights)[0]()
        except PowerCutError:
            self._lose_power()

    def _append(self) -> None:
        self._serial += 1
        value = (b"%d:" % self._serial).ljust(self.random.randrange(1, VALUE_BYTES_MAX), b".")
        self.values.append(value)  # even if the power fails meanwhile, it may be there
        self.bench.append(value)

    def _fill(self) -> None:
        """Fill the disk, so that it refuses a record."""
        self.bench.files.fail(Fault("append", f"{DIRECTORY}/*.log", is_full=True))
        try:
            self._append()
        except FilesError:
            self.values.pop()
        finally:
            self.bench.files.heal()

    def _begin_sync(self) -> None:
        if self._flight is None:
            self.bench.files.submit_sync(Token(1), *self.bench.log.unsynced())
            self._flight = self.bench.log.log_end_offset

    def _end_sync(self) -> None:
        if self._flight is not None:
            self.bench.files.calls.pump()
            self.bench.log.mark_synced(Offset(self._flight))
            self.bench.journal = self.bench.log.state
            self._flight = None

    def _restart(self) -> None:
        self.random.choice((self._stop, self._kill, self._plan_power_cut))()

    def _stop(self) -> None:
        """Stop in order; afterwards the power may fail too."""
        self._end_sync()
        self.bench.stop()
        if self.random.random() < 0.5:
            self.bench.files.crash(self.random)
        self.bench.open(clean=True)
        self._check(synced=len(self.values))

    def _kill(self) -> None:
        self.bench.files.kill()
        self._flight = None
        self.bench.open()
        self._check(synced=len(self.values))

    def _plan_power_cut(self) -> None:
        power = self.bench.files.power
        power.cut_at = power.points + self.random.randrange(1, POINTS_MAX)

    def _lose_power(self) -> None:
        """Restore the power: no file is there behind one that is missing."""
        made = self._names()
        self.bench.files.crash(self.random)
        left = self._names()
        assert left == made[: len(left)], f"of the files {made}, the power cut left {left}"
        self._flight = None
        assert self.bench.journal is not None
        synced = self.bench.journal.recovery_point
        self.bench.open()
        self._check(synced)

    def _names(self) -> list[str]:
        return [name for name in self.bench.paths() if name.endswith(".log")]

    def _check(self, synced: int) -> None:
        """Compare the log with what was appended; `synced` records of it must be there."""
        assert not self.bench.report.quarantined, self.bench.report
        found = self.bench.values()
        end = self.bench.log.log_end_offset
        assert synced <= end, f"the log ends at {end}, and was synced up to {synced}"
        assert found == dict(enumerate(self.values[:end])), f"other records below {end}"
        del self.values[end:]


def life(seed: int) -> int:
    """Play the life of a seed; return the number of its steps."""
    return LogLife(seed).run()

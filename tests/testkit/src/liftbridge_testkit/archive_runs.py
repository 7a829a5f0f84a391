"""Runners that archive one stream at once, step by step in an order drawn by a seed.

Each runner is a thread that stops before every call of the store; one at a time is let go on. A
call can fail before it does anything, lose its answer, come to be done later than anybody waits for
it, or be the last one of a runner that is killed. So what a store and its clients do to one another
can be played in any order, and played again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from io import BytesIO
from random import Random
from threading import Semaphore, Thread
from typing import BinaryIO

import pyarrow as pa

from pyspark_liftbridge.archive import files
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import DamagedError, StoreError, UnknownOutcomeError
from pyspark_liftbridge.archive.fence import Claim, Written, app_id
from pyspark_liftbridge.archive.stores.found import Found
from pyspark_liftbridge.archive.stores.store import Store
from pyspark_liftbridge.archive.table import Making, open_table

STREAM, STREAM_ID = "orders", 7
NOW_MS = 1_764_000_000_000
TRIES_MAX = 60
"""Rounds of a runner; far more than any test needs."""


class MemoryStore:
    """A `Store` of a process.

    Attributes:
        objects: Contents by path.
        modified_ms: Modification time in listings of every object.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified_ms = NOW_MS

    def create(self, path: str, data: bytes) -> bool:
        """See `Store`."""
        if path in self.objects:
            return False
        self.objects[path] = data
        return True

    def replace(self, path: str, data: bytes) -> None:
        """See `Store`."""
        self.objects[path] = data

    def read(self, path: str, *, bytes_max: int) -> bytes | None:
        """See `Store`."""
        data = self.objects.get(path)
        if data is not None and len(data) > bytes_max:
            raise DamagedError(f"{path}: {len(data)} bytes")
        return data

    def open(self, path: str) -> BinaryIO | None:
        """See `Store`."""
        data = self.objects.get(path)
        return None if data is None else BytesIO(data)

    def listing(self, prefix: str, *, after: str = "") -> Sequence[Found]:
        """See `Store`."""
        return [
            Found(path, len(data), self.modified_ms)
            for path, data in sorted(self.objects.items())
            if path.startswith(prefix) and path > after
        ]

    def delete(self, path: str) -> None:
        """See `Store`."""
        self.objects.pop(path, None)


class Fault(Enum):
    """Fate of a call."""

    REFUSED = "fails, and nothing is done"
    LOST = "is done, and the answer is lost"
    LATE = "fails, and is done later"
    KILLED_BEFORE = "the runner is killed before it"
    KILLED_AFTER = "the runner is killed when it is done"


class _Killed(BaseException):
    """The runner is gone; no handler of its own sees it."""


@dataclass
class Turns:
    """Runners, one of which runs at a time.

    Attributes:
        seed: Seed of the order of steps.
        faults: Faults by runner and number of its call, both from 0.
        store: Store that all of them share.
        calls: Calls that each runner made; one that was killed restarts, and its count continues.
    """

    seed: int
    faults: Mapping[tuple[int, int], Fault] = field(default_factory=dict)
    store: MemoryStore = field(default_factory=MemoryStore)
    calls: dict[int, int] = field(default_factory=dict)
    _late: list[Callable[[], object]] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)

    def play(self, runners: Sequence[Callable[[Store, Random], None]]) -> None:
        """Have all runners come to their end, those that are killed by another start."""
        random = Random(self.seed)
        seats = [_Seat(number, self) for number in range(len(runners))]
        live = {
            seat.number: seat.start(runners[seat.number], Random(random.random())) for seat in seats
        }
        while live:
            number = random.choice(sorted(live))
            if self._late and random.random() < 0.2:
                self._late.pop(random.randrange(len(self._late)))()
            seat = seats[number]
            seat.step()
            if seat.is_over:
                live.pop(number).join()
                if seat.is_killed:
                    live[number] = seat.start(runners[number], Random(random.random()))
        while self._late:
            self._late.pop(random.randrange(len(self._late)))()
        if self._errors:
            raise self._errors[0]

    def call(self, seat: "_Seat", act: Callable[[], object]) -> object:
        """Return one call of a runner, with what becomes of it."""
        seat.pause()
        at = self.calls.get(seat.number, 0)
        self.calls[seat.number] = at + 1
        match self.faults.get((seat.number, at)):
            case None:
                return act()
            case Fault.REFUSED:
                raise StoreError("refused")
            case Fault.LOST:
                act()
                raise StoreError("answer lost")
            case Fault.LATE:
                self._late.append(act)
                raise StoreError("timed out")
            case Fault.KILLED_BEFORE:
                raise _Killed
            case Fault.KILLED_AFTER:
                act()
                raise _Killed

    def failed(self, error: BaseException) -> None:
        """Remember what a runner died of."""
        self._errors.append(error)


class _Seat:
    """A runner's place: its thread, and the store as it sees it."""

    def __init__(self, number: int, turns: Turns) -> None:
        self.number = number
        self.is_over = False
        self.is_killed = False
        self._turns = turns
        self._go, self._stopped = Semaphore(0), Semaphore(0)

    def start(self, runner: Callable[[Store, Random], None], random: Random) -> Thread:
        """Begin, up to the first call."""
        self.is_over = self.is_killed = False

        def run() -> None:
            try:
                runner(self, random)
            except _Killed:
                self.is_killed = True
            except BaseException as error:  # noqa: BLE001 - told by the thread of the test
                self._turns.failed(error)
            self.is_over = True
            self._stopped.release()

        thread = Thread(target=run, daemon=True)
        thread.start()
        self._stopped.acquire()
        return thread

    def step(self) -> None:
        """Let the runner make a call, and go on up to the next one."""
        if not self.is_over:
            self._go.release()
            self._stopped.acquire()

    def pause(self) -> None:
        """Wait for the next turn."""
        self._stopped.release()
        self._go.acquire()

    def create(self, path: str, data: bytes) -> bool:
        """See `Store`."""
        return bool(self._turns.call(self, lambda: self._turns.store.create(path, data)))

    def replace(self, path: str, data: bytes) -> None:
        """See `Store`."""
        self._turns.call(self, lambda: self._turns.store.replace(path, data))

    def read(self, path: str, *, bytes_max: int) -> bytes | None:
        """See `Store`."""
        found: list[bytes | None] = []
        self._turns.call(
            self, lambda: found.append(self._turns.store.read(path, bytes_max=bytes_max))
        )
        return found[0]

    def open(self, path: str) -> BinaryIO | None:
        """See `Store`."""
        found: list[BinaryIO | None] = []
        self._turns.call(self, lambda: found.append(self._turns.store.open(path)))
        return found[0]

    def listing(self, prefix: str, *, after: str = "") -> Sequence[Found]:
        """See `Store`."""
        found: list[Sequence[Found]] = []
        self._turns.call(self, lambda: found.append(self._turns.store.listing(prefix, after=after)))
        return found[0]

    def delete(self, path: str) -> None:
        """See `Store`."""
        self._turns.call(self, lambda: self._turns.store.delete(path))


@dataclass(frozen=True)
class Source:
    """A stream that is archived.

    Attributes:
        offsets: Offsets of the records of each partition; a compacted log leaves some out.
        log_ends: End of each partition.
        log_starts: The same; 0 for those that are not named.
    """

    offsets: Mapping[int, Sequence[int]]
    log_ends: Mapping[int, int]
    log_starts: Mapping[int, int] = field(default_factory=dict)


def archive(source: Source, *, checkpoint_every: int = 3) -> Callable[[Store, Random], None]:
    """Return a runner that archives a stream up to its end, in ranges of any size."""

    def run(store: Store, random: Random) -> None:
        for _ in range(TRIES_MAX):
            try:
                if _archive_some(source, store, random, checkpoint_every):
                    return
            except (StoreError, UnknownOutcomeError):
                continue
        raise AssertionError(f"not done in {TRIES_MAX} rounds")

    return run


def _archive_some(source: Source, root: Store, random: Random, checkpoint_every: int) -> bool:
    """Commit until nothing is left; `True` then."""
    name = f"{random.getrandbits(64):016x}"
    table = open_table(root, STREAM, STREAM_ID, Making(name, NOW_MS))
    snapshot = table.snapshot
    for _ in range(TRIES_MAX):
        claims = []
        for partition, log_end in source.log_ends.items():
            start = _next_of(source, snapshot, partition)
            if start < log_end:
                end = random.randint(start + 1, log_end)
                middle = random.randint(start + 1, end)
                spans = [(start, middle), (middle, end)] if middle < end else [(start, end)]
                claims.append(
                    Claim(
                        tuple(
                            _write(source, table.store, delta.Span(partition, *span), random)
                            for span in spans
                        ),
                        begins_at=source.log_starts.get(partition, 0),
                    )
                )
        if not claims:
            return True
        run_id = f"{random.getrandbits(64):016x}"
        proposal = Proposal(run_id=run_id, stream_id=STREAM_ID, claims=claims, now_ms=NOW_MS)
        snapshot = commit(table.store, snapshot, proposal).snapshot
        if snapshot.version - snapshot.checkpoint_version >= checkpoint_every:
            snapshot = log.write_checkpoint(table.store, snapshot, now_ms=NOW_MS)
    return False


def _next_of(source: Source, snapshot: log.Snapshot, partition: int) -> int:
    txn = snapshot.ends.get(app_id(STREAM_ID, partition))
    return source.log_starts.get(partition, 0) if txn is None else txn.version


def _write(source: Source, store: Store, span: delta.Span, random: Random) -> Written:
    """Write the offsets of a span as JSON: what counts here is the entry that names the file."""
    offsets = [one for one in source.offsets[span.partition] if span.start <= one < span.end]
    if not offsets:
        return Written(span, ())
    path = f"{files.FOLDER}{span.partition}/{span.start}-{span.end}-{random.getrandbits(64):016x}"
    data = json.dumps(offsets).encode()
    store.create(path, data)
    stats = delta.Stats(len(offsets), None, (offsets[0], offsets[-1]), None)
    origin = delta.Origin(*span, Digest(len(offsets)))
    return Written(
        span,
        (delta.Add(path, len(data), NOW_MS, True, stats.text(), stats, origin),),  # noqa: FBT003 - as the log says it
    )


def records(offsets: Sequence[int], *, partition: int = 0, day_us: int = 0) -> pa.RecordBatch:
    """Records of some offsets, as they are archived: no two alike, and all columns in use.

    Args:
        offsets: Ascending.
        partition: Number of the partition.
        day_us: Time of the offset 0, in microseconds since 1970; a minute more for each one behind.
    """
    times = [day_us + at * 60_000_000 for at in offsets]
    columns = {
        "stream": [STREAM] * len(offsets),
        "partition": [partition] * len(offsets),
        "offset": list(offsets),
        "timestamp": times,
        "timestamp_ns": [time * 1_000 + 999 for time in times],
        "key": [None if at % 3 else b"key %d" % (at % 7) for at in offsets],
        "value": [b"%d of %d, " % (at, partition) * (at % 5) for at in offsets],
        "subject": [f"orders.{at % 2}" for at in offsets],
        "reply_subject": ["reply" if at % 11 == 0 else "" for at in offsets],
        "headers": [
            [{"key": f"h{n}", "value": b"%d" % at} for n in range(at % 3)] for at in offsets
        ],
        "leader_epoch": [1 if at % 13 else None for at in offsets],
    }
    return pa.record_batch([pa.array(columns[one.name], one.type) for one in SCHEMA], schema=SCHEMA)


def archived(store: Store) -> dict[int, list[int]]:
    """Return the offsets that the table of the stream holds, by partition and in order."""
    table = open_table(store, STREAM, STREAM_ID, Making("late", NOW_MS))
    found: dict[int, list[int]] = {}
    for add in table.snapshot.files.values():
        assert add.origin is not None, add.path
        data = table.store.read(add.path, bytes_max=1 << 20)
        assert data is not None, add.path
        found.setdefault(add.origin.partition, []).extend(json.loads(data))
    return {partition: sorted(offsets) for partition, offsets in found.items()}

"""Random lives of a store, each ended by a power cut, checked against a model.

A run makes a few partitions with fsync policies, small segments, retention and compaction drawn
from its seed, works on them, and loses power at some write or sync, also during recovery. The
recovered state must satisfy:

- every record reported as durable is there, or retention or compaction explains why not;
- nothing is reported as durable before the device has it;
- each offset has exactly the record appended there, and there is nothing after the end;
- a process that is killed, or stops in order, loses nothing at all;
- a stop counts as clean only if it was, and the directory keeps its identity;
- leader epochs agree with the records, and no deleted log comes back.

One seed is replayed with `python -m liftbridge_testkit.power_cut --seed N --verbose`.
"""

import argparse
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from time import perf_counter
from typing import NamedTuple

from liftbridge_broker.errors import FilesError
from liftbridge_broker.logformat.frames import decode_frame, iter_frames
from liftbridge_broker.model.ids import Instant, MetadataIndex, Offset, PartitionId, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.storage.flush import Flushed, FlushLimits
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.reserve import SpaceLimits
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.memory_files import MemoryFiles, PowerCutError
from liftbridge_testkit.stores import StoreBed, key_of

POLICIES = (FsyncPolicy.COMMIT, FsyncPolicy.INTERVAL, FsyncPolicy.NEVER)
CAPACITY_BYTES = 1 << 30
CUTS_PER_SEED = 10
KILL_CHANCE = 0.2
TRACE_LINES = 60


class Record(NamedTuple):
    """A record known to the model."""

    key: bytes
    value: bytes
    leader_epoch: int


class Found(NamedTuple):
    """A record read from the store."""

    key: bytes
    value: bytes


@dataclass
class Model:
    """Expected state of one partition.

    Attributes:
        options: Settings of its stream.
        records: Appended records that may still exist, by offset.
        end: Log end of the running process.
        durable_end: Offset below which everything was reported as durable.
        durable_start: Log start that certainly survives.
        start: Log start of the running process.
        leader_epoch: Current leader epoch.
    """

    options: StreamOptions
    records: dict[int, Record] = field(default_factory=dict)
    end: int = 0
    durable_end: int = 0
    durable_start: int = 0
    start: int = 0
    leader_epoch: int = 1


class PowerCuts:
    """One seed: lives of a store until `cuts` power cuts have happened."""

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.random = Random(seed)
        self.verbose = verbose
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self.cut_count = 0
        self.offline_count = 0
        self.appended_count = 0
        self._value = 0
        self._stream_last = 0
        self.bed = StoreBed(files=MemoryFiles(), options=self._draw_store_options())
        self.bed.files.lost_sector_chance = self.random.choice((0.0, 0.0, 0.03))
        self.models: dict[PartitionId, Model] = {}
        self.deleting: set[PartitionId] = set()
        self.has_identity = False
        self.may_be_clean = False
        self.is_truncating = False
        for _ in range(self.random.randint(1, 3)):
            self._new_partition()
        self.operations = self._draw_operations()

    def run(self, cuts: int = CUTS_PER_SEED) -> None:
        """Live until the power was cut `cuts` times.

        Raises:
            AssertionError: A rule is broken.
        """
        self._restart()
        while self.cut_count < cuts:
            self.bed.files.power.cut_at = self.bed.files.power.points + self.random.randint(1, 60)
            try:
                while True:
                    self._step()
            except PowerCutError as cut:
                self._note(str(cut))
                self._note_starts()
                self._crash()

    def _step(self) -> None:
        operation = self.random.choice(self.operations)
        operation()

    # Random choices of a run.

    def _draw_store_options(self) -> StoreOptions:
        flush = FlushLimits(
            interval_ns=100 * MILLISECOND_NS,
            bytes_max=self.random.choice((500, 1 << 20)),
            journal_ns=self.random.choice((1, 10, 1_000)) * MILLISECOND_NS,
            background_ns=self.random.choice((200, 60_000)) * MILLISECOND_NS,
            background_bytes_max=self.random.choice((500, 1 << 20)),
        )
        return StoreOptions(
            flush=flush,
            space=SpaceLimits(reserve_bytes=600, free_bytes_min=0),
            trash_grace_ns=500 * MILLISECOND_NS,
            rewrite_bytes_min=self.random.choice((200, 1_000, 1 << 20)),
        )

    def _draw_options(self) -> StreamOptions:
        random = self.random
        return StreamOptions(
            fsync_policy=random.choice(POLICIES),
            segment_bytes_max=random.choice((300, 700, 1_500)),
            segment_age_ms_max=random.choice((0, 50)),
            retention_bytes_max=random.choice((0, 0, 2_000)),
            retention_messages_max=random.choice((0, 0, 10)),
            retention_age_ms_max=random.choice((0, 0, 200)),
            cleaner_interval_ms=random.choice((30, 100)),
            compact_enabled=random.random() < 0.5,
        )

    def _draw_operations(self) -> list[Callable[[], None]]:
        """Draw the actions of this run and their weights; swarm testing: no run has all of them."""
        always = [self._append] * 12 + [self._pump] * 6 + [self._advance] * 3
        sometimes: list[Callable[[], None]] = [
            self._advance_far,
            self._stop_in_order,
            self._kill,
            self._truncate,
            self._elect,
            self._delete,
            self._change_policy,
            self._fill_disk,
            self._raise_log_start,
        ]
        return always + [one for one in sometimes if self.random.random() < 0.6]

    # Operations.

    def _append(self) -> None:
        partition, model = self._pick()
        if self.bed.store.disk.is_full or self.bed.store.disk.failure:
            self._pump()
            return
        count = self.random.choice((1, 1, 2, 5))
        keys = [self.random.choice((b"", b"a", b"b", b"c")) for _ in range(count)]
        values = [self._next_value() for _ in range(count)]
        self._note(f"append {partition >> 24} {model.end}+{count}")
        # After a power cut during the append, the records may or may not exist.
        for offset, (key, value) in enumerate(zip(keys, values, strict=True), model.end):
            model.records[offset] = Record(key, value, model.leader_epoch)
        try:
            end = self.bed.append(partition, values, keys=keys, leader_epoch=model.leader_epoch)
        except FilesError as error:
            self._note(f"refused: {error}")
            for offset in range(model.end, model.end + count):
                del model.records[offset]
            self.bed.store.disk.on_error(error, self.bed.now)
            return
        assert end == model.end + count
        model.end = end
        self.appended_count += count
        if model.options.fsync_policy is not FsyncPolicy.COMMIT:
            self.bed.commit(partition)

    def _pump(self) -> None:
        for event in self.bed.files.calls.pump(self.random.randint(1, 3)):
            self._take(self.bed.store.on_file_event(event, self.bed.now))

    def _advance(self) -> None:
        self._pass(self.random.randint(0, 20) * MILLISECOND_NS)

    def _advance_far(self) -> None:
        self._pass(self.random.randint(50, 700) * MILLISECOND_NS)

    def _stop_in_order(self) -> None:
        self._note("stop")
        # A power cut at the end of the stop may leave the marker.
        self.may_be_clean = True
        try:
            self.bed.store.close(broker_epoch=7)
        except FilesError as error:
            self._note(f"stop failed: {error}")
            self._kill()
            return
        for model in self.models.values():
            model.durable_end = model.end
            model.durable_start = model.start
        self.bed.files.kill()
        self._restart(loses_nothing=True)
        assert self.bed.store.last_stop.was_clean

    def _kill(self) -> None:
        self._note("kill")
        self.bed.files.kill()
        self._restart(loses_nothing=True)

    def _truncate(self) -> None:
        partition, model = self._pick()
        low = max(model.start, model.end - 12)
        if model.options.compact_enabled:
            # Committed records have superseded others, and a correct node never truncates them.
            low = max(low, self.bed.log(partition).high_watermark)
        end = self.random.randint(low, model.end)
        self._note(f"truncate {partition >> 24} to {end}")
        # The promise of durability ends at the offset of the truncation.
        model.durable_end = min(model.durable_end, end)
        self.is_truncating = True
        try:
            self.bed.store.truncate([(partition, Offset(end))], self.bed.now)
        except FilesError as error:
            self._note(f"not truncated: {error}")
            if not error.is_full:
                raise
            if self.bed.store.disk.failure:
                self.bed.files.kill()
                self._restart()
            return
        finally:
            self.is_truncating &= self.bed.files.power.is_cut
        model.end = end
        model.records = {o: record for o, record in model.records.items() if o < end}
        model.leader_epoch += 1

    def _elect(self) -> None:
        partition, model = self._pick()
        model.leader_epoch += self.random.randint(1, 3)
        self._note(f"elect {partition >> 24} epoch {model.leader_epoch}")

    def _delete(self) -> None:
        if len(self.models) < 2:
            return
        partition, _ = self._pick()
        self._note(f"delete {partition >> 24}")
        # The metadata records the deletion, whatever happens afterwards.
        del self.models[partition]
        self.deleting.add(partition)
        self.bed.store.delete((partition,), self.bed.now, self.bed.wall_ns)
        self.deleting.remove(partition)
        self._open(self._new_partition())

    def _change_policy(self) -> None:
        partition, model = self._pick()
        policy = self.random.choice(POLICIES)
        self._note(f"policy {partition >> 24} {policy}")
        model.options = replace(model.options, fsync_policy=policy)
        self.bed.store.set_options(partition, model.options, self.bed.now)

    def _fill_disk(self) -> None:
        files = self.bed.files
        if files.capacity_bytes == CAPACITY_BYTES:
            used = files.capacity_bytes - files.free_bytes()
            files.capacity_bytes = used + self.random.randint(0, 400)
        else:
            files.capacity_bytes = CAPACITY_BYTES
        self._note(f"free bytes {files.free_bytes()}")
        self._pass(1_100 * MILLISECOND_NS)

    def _raise_log_start(self) -> None:
        partition, model = self._pick()
        log = self.bed.log(partition)
        end = min(int(log.high_watermark), model.end)
        if end > log.log_start_offset:
            offset = Offset(self.random.randint(log.log_start_offset, end))
            self._note(f"log start {partition >> 24} to {offset}")
            model.start = max(model.start, offset)
            self.bed.store.raise_log_start(partition, offset, self.bed.now)

    # Time and events.

    def _pass(self, duration_ns: int) -> None:
        bed = self.bed
        until = Instant(bed.now + duration_ns)
        while (deadline := bed.store.next_deadline()) is not None and deadline <= until:
            bed.now = max(bed.now, deadline)
            bed.store.on_timer(bed.now, bed.wall_ns)
            self._note_starts()
            if self.random.random() < 0.8:
                self._pump()
        bed.now = until

    def _note_starts(self) -> None:
        """Apply the log starts that retention has moved."""
        for partition, model in self.models.items():
            log = self.bed.store.log(partition)
            if log is not None:
                model.start = max(model.start, log.log_start_offset)

    def _take(self, flushed: "list[Flushed] | tuple[Flushed, ...] | object") -> None:
        assert isinstance(flushed, (list, tuple))
        for partition, end in flushed:
            model = self.models.get(partition)
            if model is None:
                continue
            log = self.bed.log(partition)
            assert end <= log.log_end_offset
            self._check_durable(log, end)
            model.durable_end = max(model.durable_end, end)
            if model.options.fsync_policy is FsyncPolicy.COMMIT:
                log.high_watermark = max(log.high_watermark, end)

    def _check_durable(self, log: PartitionLog, end: Offset) -> None:
        """Check that every byte reported as durable is on the device."""
        for info in log.segments():
            if info.bytes and info.end <= end:
                durable = self.bed.files.durable_content(info.path)
                assert len(durable) >= info.bytes, f"{info.path} is told durable and is not"

    # Power.

    def _crash(self) -> None:
        while True:
            if self.random.random() < KILL_CHANCE and not self.is_truncating:
                # Only the process died: its writes are visible, but not durable. Not during a
                # truncation: the removed data may then come back, as if the truncation had not
                # begun.
                self.bed.files.kill()
            else:
                self.cut_count += 1
                self.bed.files.crash(self.random)
            self.bed.files.capacity_bytes = CAPACITY_BYTES
            if self.random.random() < 0.3:
                self.bed.files.power.cut_at = self.bed.files.power.points + self.random.randint(
                    1, 30
                )
            try:
                self._restart()
            except PowerCutError as cut:
                self._note(f"in recovery: {cut}")
            else:
                return

    def _restart(self, *, loses_nothing: bool = False) -> None:
        bed = self.bed
        bed.now = Instant(bed.now + MILLISECOND_NS)
        bed.transitions.clear()
        bed.open()
        assert self.may_be_clean or not bed.store.last_stop.was_clean, (
            "a stop counts as clean and was not"
        )
        assert not (self.has_identity and bed.store.is_identity_new), "the identity is lost"
        self.has_identity = True
        for partition, model in list(self.models.items()):
            opened = bed.store.open(partition, StreamName("s"), model.options, bed.now)
            if opened.reason:
                self._take_offline(partition, opened.reason)
            else:
                self._check(partition, model, opened.log, loses_nothing=loses_nothing)
        for partition in list(self.models):
            if bed.store.log(partition) is None:
                self._open(partition)
        for partition in bed.store.unopened():
            # The move to the trash was interrupted; a log whose move completed must not come back.
            assert partition in self.deleting, f"deleted log {partition >> 24} came back"
            bed.store.delete((partition,), bed.now, bed.wall_ns)
        self.deleting.clear()
        bed.store.begin(MetadataIndex(0), bed.now)
        assert not bed.told("unknown_directory_kept")
        self.may_be_clean = False
        self.is_truncating = False
        self._note("restarted")

    def _take_offline(self, partition: PartitionId, reason: str) -> None:
        """Accept an offline log: only a lost sector may look like rot; nothing is lost."""
        self._note(f"offline {partition >> 24}: {reason}")
        assert self.bed.files.lost_sector_count, f"offline without damage: {reason}"
        model = self.models.pop(partition)
        path = self.bed.files
        stored = b"".join(path.content(name) for name in path.paths("streams"))
        for offset in range(model.start, model.durable_end):
            record = model.records.get(offset)
            if record is not None and not record.key:
                assert record.value in stored, f"durable record {offset} is not in any file"
        self.offline_count += 1
        self.bed.store.delete((partition,), self.bed.now, self.bed.wall_ns)
        self._new_partition()

    def _new_partition(self) -> PartitionId:
        self._stream_last += 1
        partition = key_of(self._stream_last, self.random.choice((0, 0, 1)))
        self.models[partition] = Model(self._draw_options())
        return partition

    def _open(self, partition: PartitionId) -> None:
        model = self.models[partition]
        self.bed.store.open(partition, StreamName("s"), model.options, self.bed.now)

    # Checks.

    def _check(
        self, partition: PartitionId, model: Model, log: PartitionLog, *, loses_nothing: bool
    ) -> None:
        end, start = int(log.log_end_offset), int(log.log_start_offset)
        name = partition >> 24
        assert end >= model.durable_end, f"{name}: ends at {end}, durable was {model.durable_end}"
        last = max(model.records, default=-1) + 1
        assert end <= max(last, model.start, model.end), f"{name}: ends at {end}, beyond {last}"
        assert model.durable_start <= start <= max(model.start, model.durable_start)
        if loses_nothing:
            assert end == model.end, f"{name}: ends at {end}, was {model.end}"
        found = read_all(log)
        self._check_records(name, model, log, found)
        model.end = end
        model.start = max(start, model.durable_start)
        model.durable_start = model.start
        model.durable_end = int(log.recovery_point)
        model.records = {
            offset: record
            for offset, record in model.records.items()
            if start <= offset < end and offset in found
        }
        epochs = log.epochs.latest
        model.leader_epoch = max(model.leader_epoch, epochs or 0) + 1
        log.high_watermark = Offset(
            log.recovery_point if log.commit else log.log_end_offset,
        )

    @staticmethod
    def _check_records(name: int, model: Model, log: PartitionLog, found: dict[int, Found]) -> None:
        newest = {record.key: offset for offset, record in found.items() if record.key}
        for offset, record in found.items():
            known = model.records.get(offset)
            assert known is not None, f"{name}: record {offset} was never appended"
            assert record == known[:2], f"{name}: record {offset} is another one"
            epoch = log.epochs.epoch_at(Offset(offset))
            assert epoch == known.leader_epoch, f"{name}: epoch of {offset} is {epoch}"
        for offset in range(int(log.log_start_offset), int(log.log_end_offset)):
            known = model.records.get(offset)
            if offset in found or known is None:
                continue
            is_compacted = model.options.compact_enabled and newest.get(known.key, -1) > offset
            assert is_compacted, f"{name}: record {offset} is missing"

    # Small things.

    def _pick(self) -> tuple[PartitionId, Model]:
        return self.random.choice(list(self.models.items()))

    def _next_value(self) -> bytes:
        self._value += 1
        return b"value-%d" % self._value + b"." * self.random.choice((0, 10, 150))

    def _note(self, text: str) -> None:
        line = f"{self.cut_count:3} {self.bed.now // MILLISECOND_NS:6} ms  {text}"
        self.trace.append(line)
        if self.verbose:
            sys.stdout.write(line + "\n")


def read_all(log: PartitionLog) -> dict[int, Found]:
    """Return all records of a log, read like a subscriber."""
    reader = log.reader(log.log_start_offset)
    found: dict[int, Found] = {}
    while slices := reader.read(1 << 20, log.log_end_offset).slices:
        for piece in slices:
            for position, stop, offset in iter_frames(piece, 0, len(piece)):
                assert offset not in found, f"offset {offset} twice"
                frame = decode_frame(piece, position, stop)
                found[offset] = Found(frame.key, frame.value)
    reader.close()
    return found


class PowerCutFailureError(AssertionError):
    """A rule is broken; the text has the seed, the command to replay it, and the events before."""


def run_seed(seed: int, cuts: int = CUTS_PER_SEED, *, verbose: bool = False) -> PowerCuts:
    """Run one seed.

    Raises:
        PowerCutFailureError: The seed broke a rule, or the store itself failed.
    """
    lives = PowerCuts(seed, verbose=verbose)
    try:
        lives.run(cuts)
    except Exception as error:
        text = "\n".join(lives.trace)
        command = f"python -m liftbridge_testkit.power_cut --seed {seed} --cuts {cuts} --verbose"
        message = f"seed {seed}: {type(error).__name__}: {error}\n{text}\nreplay: {command}"
        raise PowerCutFailureError(message) from error
    return lives


def main() -> int:
    """Run one seed, or many from a first one on."""
    parser = argparse.ArgumentParser(prog="python -m liftbridge_testkit.power_cut")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="number of seeds")
    parser.add_argument("--cuts", type=int, default=CUTS_PER_SEED, help="power cuts in a seed")
    parser.add_argument("--verbose", action="store_true", help="tell every operation")
    options = parser.parse_args()
    began = perf_counter()
    cuts = offline = records = 0
    for seed in range(options.seed, options.seed + options.count):
        lives = run_seed(seed, options.cuts, verbose=options.verbose)
        cuts += lives.cut_count
        offline += lives.offline_count
        records += lives.appended_count
    seconds = perf_counter() - began
    sys.stdout.write(
        f"{cuts} power cuts, {records} records, {offline} logs offline, {seconds:.1f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

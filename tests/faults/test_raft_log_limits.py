"""R13 and R17: the Raft log on a disk that is full at every write, and with a million entries."""

import contextlib

import pytest

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Instant, MetadataIndex
from liftbridge_broker.model.metadata_log import Entry, EntryKind, HardState
from liftbridge_broker.ports.metadata import Committed, Failed, ProposalToken, Refused, Urgency
from liftbridge_testkit.lone_metadata import open_lone
from liftbridge_testkit.memory_files import Fault, MemoryFiles
from liftbridge_testkit.raft_logs import ME, opened, persist

VOLUME_BYTES = 1 << 40
COMMANDS = 12
WRITES_MAX = 60
SNAPSHOT_EVERY = 5
MILLION = 1_000_000
GROUP = 10_000


class Alone:
    """A broker alone on a disk that becomes full; what it was told of each of its commands."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.committed: list[bytes] = []
        self.refused: set[bytes] = set()
        self.asked: dict[int, bytes] = {}
        self.now = 0
        self.is_over = False
        self.consensus, recovered = open_lone(files)
        self.index = recovered.snapshot_index + len(recovered.entries)
        self.snapshot_index = self.index

    def work(self, first: int, count: int, urgency: Urgency) -> None:
        """Propose commands, one after the other."""
        for number in range(first, first + count):
            command = b"command %d " % number + b"x" * 40
            self.asked[number] = command
            self.consensus.propose(ProposalToken(number), command, urgency)
            self.pump()

    def pump(self) -> None:
        """Let time and the disk go on until nothing waits."""
        for _ in range(4):
            self.now += 1_000_000_000
            self.consensus.on_timer(Instant(self.now))
            self._take()
            while self.files.calls.waiting:
                for event in self.files.calls.pump(1):
                    self.consensus.on_file_event(event)
                self._take()

    def _take(self) -> None:
        for event in self.consensus.take_events():
            match event:
                case Committed():
                    self.index = event.entry_index
                    self.committed += [event.command] if event.command else []
                case Refused(token):
                    self.refused.add(self.asked[token])
                case Failed():
                    self.is_over = True
                case _:
                    pass
        if self.index - self.snapshot_index >= SNAPSHOT_EVERY:
            self.snapshot_index = self.index
            self.consensus.snapshot(MetadataIndex(self.index), b"\n".join(self.committed))


def found_in(files: MemoryFiles) -> list[bytes]:
    """Commands that a start after a power cut finds."""
    files.crash(None)
    _, recovered = open_lone(files)
    before = recovered.snapshot.split(b"\n") if recovered.snapshot else []
    return before + [one.command for one in recovered.entries if one.command]


OPERATIONS = {"append": 20, "open": 4, "rename": 3}
"""What writes, and how often it must have met the full disk at least."""


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("urgency", list(Urgency))
def test_disk_that_is_full_at_any_write_loses_nothing_told_and_takes_up_again(
    operation: str, urgency: Urgency
) -> None:
    met_count = 0
    for skip in range(WRITES_MAX):
        files = MemoryFiles(capacity_bytes=VOLUME_BYTES)
        alone = Alone(files)
        fault = Fault(operation, skip=skip, count=2, is_full=True)
        files.fail(fault)
        alone.work(1, COMMANDS, urgency)
        met_count += fault.count < 2
        files.heal()
        if not alone.is_over:
            alone.work(COMMANDS + 1, 3, urgency)

        found = found_in(files)

        assert found[: len(alone.committed)] == alone.committed
        assert not alone.refused & set(found)
        assert set(found) <= set(alone.asked.values())
        assert alone.is_over or alone.asked[COMMANDS + 3] in found
    assert met_count >= OPERATIONS[operation]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_start_that_finds_the_disk_full_is_refused_or_holds_everything(operation: str) -> None:
    for skip in range(12):
        files = MemoryFiles(capacity_bytes=VOLUME_BYTES)
        alone = Alone(files)
        alone.work(1, COMMANDS, Urgency.ORDINARY)
        files.crash(None)
        files.fail(Fault(operation, skip=skip, count=2, is_full=True))
        with contextlib.suppress(FilesError):
            open_lone(files)
        files.kill()
        files.heal()

        assert found_in(files) == alone.committed


def test_log_of_a_million_entries_takes_a_snapshot_while_it_grows() -> None:
    files = MemoryFiles(capacity_bytes=VOLUME_BYTES)
    log = opened(files)
    for base in range(0, MILLION, GROUP):
        entries = [
            Entry(index, 1, EntryKind.COMMAND, b"") for index in range(base + 1, base + GROUP + 1)
        ]
        persist(files, log, entries, HardState(1, ME, base))
        log.mark(base + GROUP // 2)
        if base and base % 100_000 == 0:
            # What is applied trails what is appended.
            assert log.save_snapshot(base, b"state at %d" % base)
    files.crash(None)

    log = opened(files)

    assert log.last_index == MILLION
    assert log.snapshot_meta.last_index == 900_000
    assert log.first_index > 500_000
    assert log.term_at(MILLION) == 1
    assert [one.entry_index for one in log.entries(999_990, MILLION + 1, 1 << 20)] == list(
        range(999_990, MILLION + 1)
    )

"""Power cut at every write point of the Raft log: nothing synced is lost, nothing is made up."""

from random import Random
from typing import NamedTuple

import pytest

from liftbridge_broker.model.ids import BrokerId, MetadataIndex
from liftbridge_broker.model.metadata_log import Entry, EntryKind, HardState, Peer
from liftbridge_broker.ports.metadata import Committed, ProposalToken, Urgency
from liftbridge_broker.storage.raft_log.log import RaftLog
from liftbridge_broker.storage.raft_log.snapshots import snapshot_of
from liftbridge_testkit.lone_metadata import open_lone
from liftbridge_testkit.memory_files import MemoryFiles, PowerCutError
from liftbridge_testkit.raft_logs import ALONE, ME, SYNC_TOKEN, append, held, opened

ENTRIES = 24
SNAPSHOT_EVERY = 5
SEPARATOR = b"\n"
OTHER = Peer(BrokerId("b"), "disk-b")


class Life:
    """A broker alone: what it was asked, what it told, and what a restart gives back."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.asked: list[bytes] = []
        self.told: list[bytes] = []
        self.index = 0
        self.snapshot_index = 0

    def open(self) -> list[bytes]:
        """Open the log; returns everything it holds, the snapshot included."""
        self.consensus, recovered = open_lone(self.files, index_min=self.index)
        held = recovered.snapshot.split(SEPARATOR) if recovered.snapshot else []
        self.snapshot_index = recovered.snapshot_index
        self.index = self.snapshot_index + len(recovered.entries)
        return held + [entry.command for entry in recovered.entries if entry.command]

    def work(self, count: int, sizes: Random) -> None:
        """Propose commands in groups of one to three, with snapshots now and then."""
        for _ in range(count):
            for _ in range(sizes.randint(1, 3)):
                command = b"%d-" % len(self.asked) + b"x" * sizes.randint(0, 700)
                self.asked.append(command)
                token = ProposalToken(len(self.asked))
                self.consensus.propose(token, command, Urgency.ORDINARY)
            while self.files.calls.waiting:
                for event in self.files.calls.pump(1):
                    self.consensus.on_file_event(event)
                    self._take()

    def _take(self) -> None:
        for event in self.consensus.take_events():
            if isinstance(event, Committed):
                assert event.entry_index == self.index + 1
                self.index += 1
                self.told += [event.command] if event.command else []
        if self.index - self.snapshot_index >= SNAPSHOT_EVERY:
            self.snapshot_index = self.index
            self.consensus.snapshot(MetadataIndex(self.index), SEPARATOR.join(self.told))


def whole_life(life: Life) -> None:
    life.open()
    life.work(ENTRIES, Random(1))


def count_points() -> int:
    life = Life(MemoryFiles())
    whole_life(life)
    return life.files.power.points


POINTS = count_points()


def cut_life(point: int) -> Life:
    files = MemoryFiles()
    files.power.cut_at = point
    life = Life(files)
    with pytest.raises(PowerCutError):
        whole_life(life)
    return life


def test_a_life_passes_every_kind_of_write_point() -> None:
    files = MemoryFiles()
    files.power.log = type(files.power.log)(maxlen=10_000)
    life = Life(files)
    whole_life(life)

    assert {operation for operation, _ in files.power.log} == {
        "append", "create", "make_directory", "remove", "rename", "sync", "sync_directory"
    }  # fmt: skip
    assert life.told == life.asked


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4])
def test_a_power_cut_at_every_point_loses_nothing_told(seed: int | None) -> None:
    for point in range(1, POINTS + 1):
        life = cut_life(point)
        life.files.crash(None if seed is None else Random(f"{seed} {point}"))

        found = life.open()

        assert found[: len(life.told)] == life.told, point
        assert found == life.asked[: len(found)], point
        life.asked, life.told = list(found), list(found)
        life.work(3, Random(2))
        assert life.told == life.asked
        life.files.crash(None)
        assert life.open() == life.told


@pytest.mark.parametrize("seed", [1, 2])
def test_a_power_cut_during_every_point_of_recovery_loses_nothing(seed: int) -> None:
    choice = Random(seed)
    for first in range(1, POINTS + 1, 9):
        second = 1
        while True:
            life = cut_life(first)
            life.files.crash(Random(f"{seed} {first}"))
            life.files.power.cut_at = life.files.power.points + second
            try:
                life.open()
            except PowerCutError:
                life.files.crash(choice)
                found = life.open()
                assert found[: len(life.told)] == life.told, (first, second)
                assert found == life.asked[: len(found)], (first, second)
                second += 1
            else:
                break


# A member of a group: votes, terms, conflicts, snapshots of a leader.


class Seen(NamedTuple):
    """What a log holds."""

    hard_state: HardState
    snapshot_index: int
    entries: tuple[Entry, ...]


def seen(log: RaftLog) -> Seen:
    meta = log.snapshot_meta
    assert log.first_index <= meta.last_index + 1 <= log.last_index + 1
    behind = tuple(entry for entry in held(log) if entry.entry_index > meta.last_index)
    return Seen(log.hard_state(), meta.last_index, behind)


class Steps:
    """Ready after ready of a follower whose leaders change.

    Attributes:
        durable: What is held since the last sync that ended.
        possible: All states that writing since then can leave, by prefixes of the writes.
    """

    def __init__(self, files: MemoryFiles, random: Random) -> None:
        self.files = files
        self.random = random
        self.durable = Seen(HardState(0, None, 0), 0, ())
        self.possible = [self.durable]

    def run(self, count: int) -> None:
        log = opened(self.files)
        for _ in range(count):
            choice = self.random.random()
            if choice < 0.1:
                self._install(log)
            elif choice < 0.25 and log.hard_state().commit > log.snapshot_meta.last_index:
                self._snapshot(log)
            else:
                self._ready(log)

    def _ready(self, log: RaftLog) -> None:
        """Some entries, perhaps in the place of others, and a hard state."""
        state, snapshot_index, entries = self.durable
        term = state.term + self.random.randint(0, 1)
        low = max(state.commit, snapshot_index)
        first = self.random.randint(low, snapshot_index + len(entries)) + 1
        kept = entries[: first - snapshot_index - 1]
        new = [
            Entry(first + place, term, EntryKind.COMMAND, self.random.randbytes(20))
            for place in range(self.random.randint(0, 3))
        ]
        if not new:
            kept = entries
        commit = self.random.randint(low, snapshot_index + len(kept) + len(new))
        vote = self.random.choice((None, ME, OTHER))
        written = HardState(term, vote, commit)
        for count in range(len(new) + 1):
            if new:
                self.possible.append(Seen(state, snapshot_index, (*kept, *new[:count])))
        after = Seen(written, snapshot_index, (*kept, *new))
        self.possible.append(after)
        log.append(new, written)
        log.submit_sync(SYNC_TOKEN)
        for event in self.files.calls.pump():
            assert event.error is None
            log.on_synced()
        assert seen(log) == after
        self._settle(after)
        log.mark(commit)

    def _snapshot(self, log: RaftLog) -> None:
        """The member takes a snapshot itself; no promise depends on it."""
        state, snapshot_index, entries = self.durable
        after = Seen(state, state.commit, entries[state.commit - snapshot_index :])
        self.possible.append(after)
        assert log.save_snapshot(state.commit, b"state")
        self._settle(after)

    def _install(self, log: RaftLog) -> None:
        """A leader's snapshot takes the place of everything."""
        state, snapshot_index, entries = self.durable
        index = snapshot_index + len(entries) + self.random.randint(1, 3)
        term = max(state.term, 1)
        after = Seen(state._replace(commit=max(index, state.commit)), index, ())
        self.possible.append(after)
        log.install(snapshot_of(index, term, ALONE, b"theirs"))
        self._settle(after)

    def _settle(self, after: Seen) -> None:
        self.durable = after
        self.possible = [after]


@pytest.mark.parametrize("seed", range(6))
def test_a_member_finds_what_it_promised_and_nothing_else(seed: int) -> None:
    whole = Steps(MemoryFiles(), Random(seed))
    whole.run(12)
    points = whole.files.power.points
    assert seen(opened(whole.files)) == whole.durable
    for point in range(1, points + 1):
        files = MemoryFiles()
        files.power.cut_at = point
        steps = Steps(files, Random(seed))
        with pytest.raises(PowerCutError):
            steps.run(12)
        files.crash(Random(f"{seed} {point}") if point % 3 else None)
        found = seen(opened(files))
        assert found in steps.possible, (point, found, steps.possible)


@pytest.mark.parametrize("seed", range(20))
def test_power_cut_while_a_start_removes_what_snapshots_cover(seed: int) -> None:
    """A snapshot that comes back asks for no log file that does not."""
    point = 0
    is_whole = False
    while not is_whole:
        point += 1
        files = MemoryFiles()
        log = opened(files)
        for number in range(1, 5):
            append(files, log, number)
            log.save_snapshot(number, b"state")
        append(files, log, 5)
        files.kill()
        files.power.cut_at = files.power.points + point
        try:
            opened(files)
            is_whole = True
            files.power.cut_at = 0
        except PowerCutError:
            files.crash(Random(f"{seed} {point}"))
        files.kill()
        again = opened(files)
        assert (again.snapshot_meta.last_index, again.last_index) == (4, 5)
    assert point > 5

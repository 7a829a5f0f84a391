"""Power cut at every write point of the metadata log: nothing told is lost, nothing is made up."""

from random import Random

import pytest

from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.ports.files import Token
from liftbridge_broker.ports.metadata import Committed, ProposalToken, Urgency
from liftbridge_broker.storage.metadata_log import MetadataLog
from liftbridge_testkit.memory_files import MemoryFiles, PowerCutError

SYNC = Token(1)
ENTRIES = 24
SNAPSHOT_EVERY = 5
SEPARATOR = b"\n"


class Run:
    """One life of a log: what it was asked, what it told, and what a restart gives back."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.asked: list[bytes] = []
        self.told: list[bytes] = []
        self.log: MetadataLog | None = None

    def open(self) -> list[bytes]:
        """Open the log; returns everything it holds, the snapshot included."""
        known = MetadataIndex(len(self.told))
        self.log, recovered = MetadataLog.open(self.files, sync_token=SYNC, index_min=known)
        held = recovered.snapshot.split(SEPARATOR) if recovered.snapshot else []
        return held + [entry.command for entry in recovered.entries]

    def work(self, count: int, sizes: Random) -> None:
        """Propose commands in groups of one to three, with snapshots now and then."""
        assert self.log is not None
        for _ in range(count):
            for _ in range(sizes.randint(1, 3)):
                command = b"%d-" % len(self.asked) + b"x" * sizes.randint(0, 700)
                self.asked.append(command)
                self.log.propose(ProposalToken(len(self.asked)), command, Urgency.ORDINARY)
            while self.files.submitted_count:
                for event in self.files.pump(1):
                    self.log.on_file_event(event)
                    self._take()

    def _take(self) -> None:
        assert self.log is not None
        for event in self.log.take_events():
            assert isinstance(event, Committed)
            self.told.append(event.command)
            assert event.entry_index == len(self.told)
        if len(self.told) - self.log.snapshot_index >= SNAPSHOT_EVERY:
            self.log.snapshot(MetadataIndex(len(self.told)), SEPARATOR.join(self.told))


def whole_life(run: Run) -> None:
    run.open()
    run.work(ENTRIES, Random(1))


def count_points() -> int:
    run = Run(MemoryFiles())
    whole_life(run)
    return run.files.points


POINTS = count_points()


def cut_life(point: int) -> Run:
    files = MemoryFiles()
    files.cut_power_at(point)
    run = Run(files)
    with pytest.raises(PowerCutError):
        whole_life(run)
    return run


def test_a_life_passes_every_kind_of_write_point() -> None:
    files = MemoryFiles()
    files.log = type(files.log)(maxlen=10_000)
    run = Run(files)
    whole_life(run)

    assert {operation for operation, _ in files.log} == {
        "append", "create", "make_directory", "remove", "rename", "sync", "sync_directory"
    }  # fmt: skip
    assert run.told == run.asked


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4])
def test_a_power_cut_at_every_point_loses_nothing_told(seed: int | None) -> None:
    for point in range(1, POINTS + 1):
        run = cut_life(point)
        run.files.crash(None if seed is None else Random(f"{seed} {point}"))

        held = run.open()

        assert held[: len(run.told)] == run.told, point
        assert held == run.asked[: len(held)], point
        run.asked, run.told = list(held), list(held)
        run.work(3, Random(2))
        assert run.told == run.asked
        run.files.crash(None)
        assert run.open() == run.told


@pytest.mark.parametrize("seed", [1, 2])
def test_a_power_cut_during_every_point_of_recovery_loses_nothing(seed: int) -> None:
    choice = Random(seed)
    for first in range(1, POINTS + 1, 7):
        second = 1
        while True:
            run = cut_life(first)
            run.files.crash(Random(f"{seed} {first}"))
            run.files.cut_power_at(run.files.points + second)
            try:
                run.open()
            except PowerCutError:
                run.files.crash(choice)
                held = run.open()
                assert held[: len(run.told)] == run.told, (first, second)
                assert held == run.asked[: len(held)], (first, second)
                second += 1
            else:
                break


def test_a_killed_process_loses_nothing_asked() -> None:
    for point in range(1, POINTS + 1):
        run = cut_life(point)
        run.files.kill()

        held = run.open()

        assert held[: len(run.told)] == run.told
        assert held == run.asked[: len(held)]

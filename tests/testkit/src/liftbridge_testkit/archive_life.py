"""A random life of an archive: runners that get into each other's way, and faults at any step.

Partition 0 is compacted, and begins at 5; nothing of partition 1 was removed.
"""

from collections.abc import Mapping
from random import Random
from typing import Final

from liftbridge_testkit.archive_runs import Fault, Source, Turns, archive, archived
from pyspark_liftbridge.archive import reading, verify
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.stores.store import Below
from pyspark_liftbridge.plan.unified import Held

OFFSETS: Final[Mapping[int, list[int]]] = {
    0: [5, 6, 9, 10, 15, 16, 17, 30],
    1: list(range(12)),
}
ENDS: Final[Mapping[int, int]] = {0: 31, 1: 12}
SOURCE: Final = Source(OFFSETS, ENDS, {0: 5})
RUNNERS_MAX: Final = 3
STEPS_MAX: Final = 60
"""Calls of a runner that may meet a fault."""


def play(seed: int, runners: int, faults: Mapping[tuple[int, int], Fault]) -> Turns:
    """Have so many runners archive all that there is."""
    turns = Turns(seed, faults)
    turns.play([archive(SOURCE)] * runners)
    return turns


def check(turns: Turns) -> None:
    """See that every record is there once, and that the log says so by itself."""
    assert archived(turns.store) == OFFSETS
    table = Below(turns.store, "orders/")
    snapshot = log.load(table)
    assert reading.held_of(snapshot) == {0: Held(5, 31), 1: Held(0, 12)}
    history = verify._read_history(table, snapshot)
    assert history.findings == []
    assert history.ends == ENDS
    assert replayed(table) == (snapshot.files, snapshot.ends, snapshot.metadata)


def replayed(table: Below) -> tuple[object, ...]:
    """Return a copy without any checkpoint."""
    entries = [log.read_entry(table, version) or () for version in log.versions_there(table)]
    whole = log.Snapshot().after(entries)
    return whole.files, whole.ends, whole.metadata


def faults_of(random: Random, runners: int) -> dict[tuple[int, int], Fault]:
    """Any faults at any steps."""
    return {
        (runner, step): random.choice(list(Fault))
        for runner in range(runners)
        for step in range(STEPS_MAX)
        if random.random() < 0.12
    }


def life(seed: int) -> int:
    """Play one life and check what came of it; its calls of the store."""
    random = Random(seed)
    runners = random.randint(2, RUNNERS_MAX)
    turns = play(seed, runners, faults_of(random, runners))
    check(turns)
    return sum(turns.calls.values())

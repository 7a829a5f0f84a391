"""Subjects of all streams: the table grows in turns, and answers are right at any time."""

import itertools
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from liftbridge_broker.model.ids import Instant, StreamId
from liftbridge_broker.node.partition.stream_subjects import ADD_WEIGHT, StreamSubjects
from liftbridge_broker.node.scheduling.chores import SLICE_WEIGHT, TURN_WEIGHT_MAX, Chores

COUNT = 3_000
TURN_MAX = (TURN_WEIGHT_MAX + SLICE_WEIGHT) // ADD_WEIGHT


class Bench:
    """Streams on subjects of their own, and a table of them."""

    def __init__(self) -> None:
        self.streams: dict[StreamId, Any] = {}
        self.chores = Chores(lambda: Instant(0), lambda: None)
        self.subjects = StreamSubjects(lambda: self.streams, self.chores)
        self.created = 0

    def create(self) -> None:
        self.created += 1
        number = StreamId(self.created)
        self.streams[number] = SimpleNamespace(subject=f"s.x{number}", partitions=(0, 1))

    def check(self, random: Random) -> None:
        number = StreamId(random.randrange(1, self.created + 2))
        is_there = number in self.streams
        assert self.subjects.are_stored(f"s.x{number}") is is_there
        assert self.subjects.are_stored(f"s.x{number}.1") is is_there
        assert not self.subjects.are_stored(f"s.x{number}.2")


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    for _ in range(COUNT):
        made.create()
    return made


def test_table_is_built_in_turns_and_once(bench: Bench) -> None:
    bench.subjects.prepare()
    sizes = [0, len(bench.subjects._known)]
    while bench.chores.is_waiting:
        bench.chores.go_on()
        sizes.append(len(bench.subjects._known))
    assert sizes[-1] == COUNT
    assert max(after - before for before, after in itertools.pairwise(sizes)) <= TURN_MAX
    bench.subjects.prepare()
    assert not bench.chores.is_waiting


@pytest.mark.parametrize("seed", range(5))
def test_answers_are_right_while_it_is_built_and_streams_come_and_go(
    bench: Bench, seed: int
) -> None:
    random = Random(seed)
    bench.subjects.prepare()
    for _ in range(200):
        match random.randrange(4):
            case 0:
                bench.create()
            case 1:
                del bench.streams[random.choice(list(bench.streams))]
            case 2 if bench.chores.is_waiting:
                bench.chores.go_on()
            case _ if random.random() < 0.2:
                bench.check(random)
    while bench.chores.is_waiting:
        bench.chores.go_on()
    for _ in range(200):
        bench.check(random)
    assert len(bench.subjects._known) == len(bench.streams)

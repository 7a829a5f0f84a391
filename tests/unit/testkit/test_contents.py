"""The invariant of contents: one record for each offset of a leader epoch, on all disks."""

import pytest

from liftbridge_testkit.batches import Batches
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.invariants.contents import Contents
from liftbridge_testkit.sim.trace import Trace
from liftbridge_testkit.sim.world import World

LOG = "streams/s/0/00000000000000000000.log"
FIRST = Batches().make(4, [b"a", b"b", b"c"], publisher=(7, 1, 20))
OTHER_VALUE = Batches().make(4, [b"a", b"X", b"c"], publisher=(7, 1, 20))
OTHER_STAMP = Batches().make(4, [b"a", b"b", b"c"], publisher=(7, 1, 21))


@pytest.fixture
def world():
    world = World(1, Trace())
    world.watchers.append(Contents())
    for name in "ab":
        world.add_machine(name, make=None)
    return world


def write(world, name, *batches, path=LOG):
    files = world.machines[name].files
    directory = path.rpartition("/")[0]
    files.make_directory(directory)
    handle = files.open(path, create=True)
    files.append(handle, b"".join(batches))
    files.close(handle)


def expect_another():
    return pytest.raises(BrokenInvariantError, match="I14")


def test_copies_and_what_cuts_leave_are_the_same_records(world):
    write(world, "a", FIRST, Batches().make(7, [b"d"]))
    write(world, "b", FIRST)
    write(world, "b", Batches().make(4, [b"a"], publisher=(7, 1, 20)))
    write(world, "b", Batches().make(5, [b"b", b"c"], publisher=(7, 1, 21)))
    with expect_another():
        write(world, "b", Batches().make(6, [b"X"], publisher=(7, 1, 22)))


@pytest.mark.parametrize("other", [OTHER_VALUE, OTHER_STAMP])
@pytest.mark.parametrize("writer", ["a", "b"])
def test_another_record_in_its_place_is_noticed_wherever_it_is_written(world, other, writer):
    write(world, "a", FIRST)
    with expect_another():
        write(world, writer, Batches().make(0, [b"x"]), other)


def test_another_epoch_or_another_file_is_another_place(world):
    write(world, "a", FIRST)
    write(world, "b", Batches().make(4, [b"a", b"X"], epoch=2))
    write(world, "b", OTHER_VALUE, path="streams/s/0/00000000000000000000.log.cut")
    with expect_another():
        write(world, "b", Batches().make(5, [b"Y"], epoch=2))


def test_what_the_disk_refused_was_not_written(world):
    files = world.machines["a"].files
    files.capacity_bytes = 1
    with pytest.raises(Exception, match="No space left"):
        write(world, "a", FIRST)
    files.enlarge()
    write(world, "a", OTHER_VALUE)
    with expect_another():
        write(world, "a", FIRST)

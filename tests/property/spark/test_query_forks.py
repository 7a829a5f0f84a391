"""Tell a query of an unclean election, against replicas whose records are known."""

from hypothesis import event, given, settings

from liftbridge_testkit.forked_log import STEPS, ForkedLog
from pyspark_liftbridge.plan.histories import divergences, with_histories
from pyspark_liftbridge.plan.offsets import Offsets, PartitionId, StreamOffsets, parse
from pyspark_liftbridge.plan.places import Known

ONE = PartitionId("s", 0)


class World(ForkedLog):
    """A partition, and a query whose checkpoint has nothing but its offsets."""

    def __init__(self):
        super().__init__()
        self.offsets = at(0)

    def bounds(self):
        leader = self.leader
        return {
            ONE: Known(7, leader.start, len(leader.records), 0, self.unclean, tuple(leader.told()))
        }

    def take(self, count):
        """A micro-batch; the offsets go through their text."""
        taken = super().take(count)
        end = with_histories(at(len(self.read)), self.offsets, self.bounds())
        assert (end == self.offsets) == (not taken)
        self.offsets = parse(end.as_json())
        assert self.offsets == end
        return taken

    def begin_anew(self):
        super().begin_anew()
        self.offsets = at(len(self.read))


def at(offset):
    return Offsets({"s": StreamOffsets(7, {0: offset})})


@settings(max_examples=2_000)
@given(STEPS)
def test_query_is_told_when_records_gave_way(steps):
    world, removed = World(), False
    for name, *how in steps:
        removed = removed or name == "remove"
        if name == "take":
            told = list(divergences(world.offsets, world.bounds()))
            differing = world.differing()
            # Of what retention removed nobody can say that it is the same.
            assert told or differing is None
            assert removed or differing is not None or not told
            event(f"told: {bool(told)}, differing: {differing is not None}")
            if told:
                world.begin_anew()
        getattr(world, name)(*how)

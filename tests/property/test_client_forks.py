"""What a reader is told of an unclean election, against replicas whose records are known."""

from hypothesis import event, given, settings

from liftbridge_client.core.history import ReadHistory, cut_at
from liftbridge_testkit.forked_log import STEPS, ForkedLog


class World(ForkedLog):
    """A partition, and a reader that keeps the leader epochs of what it was given."""

    def __init__(self):
        super().__init__()
        self.given = ReadHistory()

    def look(self):
        """The look that a reader has after each change of leaders."""
        return cut_at(self.leader.told(), self.unclean, self.given, len(self.read))

    def take(self, count):
        start = len(self.read)
        taken = super().take(count)
        for offset, record in enumerate(taken, start):
            if record[0] < self.given.latest:
                self.first = offset  # another history, and nothing is left to compare
            self.given.note(record[0], offset)
        return taken

    def begin_anew(self):
        super().begin_anew()
        self.given = ReadHistory()


@settings(max_examples=2_000)
@given(STEPS)
def test_reader_is_told_exactly_when_records_gave_way(steps):
    world = World()
    for name, *how in steps:
        if name == "take":
            cut = world.look()
            assert cut == world.differing()
            event(f"cut: {cut is not None}")
            if cut is not None:
                world.begin_anew()
        getattr(world, name)(*how)

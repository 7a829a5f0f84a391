"""What a reader is told of an unclean election, against replicas whose records are known."""

from hypothesis import event, given, settings
from hypothesis import strategies as st

from liftbridge_client.core.history import ReadHistory, cut_at

REPLICAS = 3


class Replica:
    """A log of records, each with its leader epoch, and the epochs that it knows by itself."""

    def __init__(self):
        self.records = []
        self.epochs = []
        self.start = 0

    def enter(self, epoch):
        """An epoch begins at the end of the log."""
        while self.epochs and self.epochs[-1][1] >= len(self.records):
            self.epochs.pop()
        self.epochs.append((epoch, len(self.records)))

    def follow(self, leader, count):
        """Take over records of a leader; what differs from its log goes first."""
        self.start = max(self.start, leader.start)
        same = 0
        for mine, its in zip(self.records, leader.records, strict=False):
            if mine != its:
                break
            same += 1
        if len(self.records) > same:
            del self.records[same:]
            self.epochs = [one for one in self.epochs if one[1] < same]
        for record in leader.records[same : same + count]:
            if not self.epochs or self.epochs[-1][0] != record[0]:
                self.enter(record[0])
            self.records.append(record)

    def told(self):
        """Epochs as they are told: those in force from the start of the log on."""
        behind = [one for one in self.epochs if one[1] > self.start]
        before = [one for one in self.epochs if one[1] <= self.start]
        return [(before[-1][0], self.start), *behind] if before else behind


class World:
    """A partition, and a reader of it that follows whoever leads."""

    def __init__(self):
        self.replicas = [Replica() for _ in range(REPLICAS)]
        self.leader = self.replicas[0]
        self.epoch = 1
        self.unclean = 0
        self.serial = 0
        self.leader.enter(1)
        self.given = ReadHistory()
        self.read = []
        self.first = 0

    def write(self, count):
        for _ in range(count):
            self.serial += 1
            self.leader.records.append((self.epoch, self.serial))

    def copy(self, number, count):
        one = self.replicas[number]
        if one is not self.leader:
            one.follow(self.leader, count)

    def elect(self, number, is_unclean):
        """A replica with all that the reader has, or, uncleanly, any."""
        chosen = self.replicas[number]
        keeps = chosen.records[: len(self.read)] == self.read
        if not is_unclean and not keeps:
            return
        self.epoch += 1
        self.unclean = self.epoch if is_unclean else self.unclean
        self.leader = chosen
        chosen.enter(self.epoch)

    def remove(self, count):
        """Retention removes what is oldest, at each replica by itself."""
        for one in self.replicas:
            one.start = min(one.start + count, len(one.records))

    def look(self):
        return cut_at(self.leader.told(), self.unclean, self.given, len(self.read))

    def take(self, count):
        """Read on, with the look before that a reader has after each change of leaders."""
        start = len(self.read)
        for offset, record in list(enumerate(self.leader.records))[start : start + count]:
            if record[0] < self.given.latest:
                self.first = offset  # another history, and nothing is left to compare
            self.given.note(record[0], offset)
            self.read.append(record)

    def begin_anew(self):
        self.given, self.read = ReadHistory(), list(self.leader.records[: self.leader.start])
        self.first = len(self.read)


def differing(world):
    """First offset that is kept and at which the reader has another record than the log."""
    log = world.leader.records
    start = max(world.first, world.leader.start)
    kept = list(enumerate(world.read))[start:]
    return next((at for at, mine in kept if at >= len(log) or log[at] != mine), None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("copy"), st.integers(0, REPLICAS - 1), st.integers(1, 4)),
        st.tuples(st.just("elect"), st.integers(0, REPLICAS - 1), st.booleans()),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("remove"), st.integers(1, 2)),
    ),
    max_size=40,
)


@settings(max_examples=2_000)
@given(STEPS)
def test_reader_is_told_exactly_when_records_gave_way(steps):
    world = World()
    for name, *how in steps:
        if name == "take":
            cut = world.look()
            assert cut == differing(world)
            event(f"cut: {cut is not None}")
            if cut is not None:
                world.begin_anew()
        getattr(world, name)(*how)

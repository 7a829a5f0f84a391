"""Whether a log still has what was archived of it: exact, over any clean and unclean elections."""

from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

import pytest

from pyspark_liftbridge.plan.histories import Read, has_diverged, read_of
from pyspark_liftbridge.plan.places import Known

REPLICAS = 3
Record = tuple[int, int]
"""Leader epoch, and a number that no other record has."""

STEPS: Final = ("append", "copy", "commit", "archive") * 2 + ("elect", "elect_unclean")


@dataclass
class Partition:
    """Logs of a partition, record by record, and what was archived of it in one history."""

    logs: list[list[Record]] = field(default_factory=lambda: [[] for _ in range(REPLICAS)])
    leader: int = 0
    epoch: int = 1
    epoch_start: int = 0
    unclean_epoch: int = 0
    committed: int = 0
    archived: list[Record] = field(default_factory=list)
    read: Read | None = None
    _numbers: "count[int]" = field(default_factory=count)

    @property
    def log(self) -> list[Record]:
        return self.logs[self.leader]

    def step(self, random: Random) -> None:
        """Anything that may happen next."""
        replica, amount = random.randrange(REPLICAS), random.randint(1, 4)
        match random.choice(STEPS):
            case "append":
                self.append(amount)
            case "copy":
                self.copy(replica, amount)
            case "commit":
                self.committed = max(self.committed, self.common(replica))
            case "elect":
                if self.common(replica) >= self.committed:
                    self.lead(replica)
            case "elect_unclean":
                self.lead(replica)
                self.unclean_epoch, self.committed = self.epoch, len(self.log)
            case "archive":
                self.archive()

    def common(self, replica: int) -> int:
        """How many first records leader and replica share."""
        both = enumerate(zip(self.log, self.logs[replica], strict=False))
        shorter = min(len(self.log), len(self.logs[replica]))
        return next((at for at, (one, other) in both if one != other), shorter)

    def append(self, amount: int) -> None:
        """The leader appends what nobody else has."""
        self.log.extend((self.epoch, next(self._numbers)) for _ in range(amount))

    def copy(self, replica: int, amount: int) -> None:
        """A follower cuts what the leader has not, and takes some more."""
        if replica != self.leader:
            self.logs[replica] = self.log[: self.common(replica) + amount]

    def lead(self, replica: int) -> None:
        """The replica begins a leader epoch where its log ends."""
        self.leader, self.epoch = replica, self.epoch + 1
        self.epoch_start = len(self.log)

    def archive(self) -> None:
        """As a run does: of what is noted, only what is the same is gone on with."""
        known = self.known(0)
        if self.committed and not (self.read and has_diverged(self.read, known)):
            self.archived = self.log[: self.committed]
            self.read = read_of(known, self.committed)

    def known(self, earliest: int) -> Known:
        """As the leader tells it whose log begins there."""
        starts: dict[int, int] = {}
        for at, (epoch, _) in enumerate(self.log):
            starts.setdefault(epoch, at)
        starts.setdefault(self.epoch, self.epoch_start)
        entries = list(starts.items())
        behind = sum(start <= earliest for _, start in entries)
        if behind:
            entries = [(entries[behind - 1][0], earliest), *entries[behind:]]
        return Known(7, earliest, self.committed, 0, self.unclean_epoch, tuple(entries))


@pytest.mark.parametrize("seed", range(20))
def test_log_is_parted_exactly_if_it_has_other_records_than_the_archive(seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        partition = Partition()
        for _ in range(40):
            partition.step(random)
            read, archived = partition.read, partition.archived
            if read is None:
                continue
            is_same = partition.log[: len(archived)] == archived
            assert has_diverged(read, partition.known(0)) == (not is_same)
            # What retention has removed nobody may be able to tell; then it is not "the same".
            known = partition.known(min(random.randint(0, 20), len(partition.log)))
            assert is_same or has_diverged(read, known)


def test_without_an_unclean_election_a_log_is_never_parted() -> None:
    """Whatever of it retention removed, and whatever an old broker leaves out."""
    read = Read(4, 5, 9)
    for unclean_epoch in (None, 0, 4):
        assert not has_diverged(read, Known(7, 30, 40, 0, unclean_epoch, ((9, 30),)))
    assert has_diverged(read, Known(7, 30, 40, 0, 8, ((9, 30),)))
    assert not has_diverged(read, Known(7, 30, 40, 0, 8, ((5, 30), (9, 35))))
    assert read_of(Known(7, 0, 9, 0), 9) is None
    assert read_of(Known(7, 0, 9, 0, 4), 9) == Read(4, 0, 9)

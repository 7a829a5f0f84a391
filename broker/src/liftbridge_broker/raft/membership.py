"""Which configuration was in force where: the newest in the log counts, committed or not.

A configuration takes effect when its entry is appended and is undone when that entry is truncated
(Diss. 4.1). While it is not committed, the one before matters too: who was a member there may
still be needed to elect a leader (Diss. 4.2.2).
"""

from bisect import bisect_right

from liftbridge_broker.raft.types import Configuration, Peer


class Membership:
    """Configurations of a log by the index of their entries, rising; never empty.

    Attributes:
        latest: The one in force.
        latest_index: Index of its entry.
    """

    __slots__ = ("_configurations", "_indexes", "latest", "latest_index")

    def __init__(self, index: int, configuration: Configuration) -> None:
        """Begin with what a snapshot or the bootstrap says."""
        self.reset(index, configuration)

    def reset(self, index: int, configuration: Configuration) -> None:
        """Forget everything before a snapshot that takes the place of the log."""
        self._indexes = [index]
        self._configurations = [configuration]
        self._use_newest()

    def add(self, index: int, configuration: Configuration) -> None:
        """An entry with `configuration` was appended at `index`."""
        assert index > self.latest_index
        self._indexes.append(index)
        self._configurations.append(configuration)
        self._use_newest()

    def truncate(self, index: int) -> None:
        """Entries from `index` on are gone."""
        if index > self.latest_index:
            return
        keep = max(bisect_right(self._indexes, index - 1), 1)
        del self._indexes[keep:], self._configurations[keep:]
        self._use_newest()

    def forget(self, index: int) -> None:
        """Nobody asks for a configuration below `index` any more: the log begins there."""
        drop = bisect_right(self._indexes, index) - 1
        if drop > 0:
            del self._indexes[:drop], self._configurations[:drop]

    def at(self, index: int) -> Configuration:
        """The configuration that was in force at `index`."""
        found = bisect_right(self._indexes, index) - 1
        return self._configurations[max(found, 0)]

    def is_member(self, peer: Peer, commit: int) -> bool:
        """Whether `peer` belongs to the newest configuration or to the one committed last."""
        if peer in self.latest.voters or peer in self.latest.learners:
            return True
        if self.latest_index <= commit:
            return False
        voters, learners = self.at(commit)
        return peer in voters or peer in learners

    def may_lead(self, peer: Peer, commit: int) -> bool:
        """Whether `peer` votes in the newest configuration, or did until one that may be undone."""
        if peer in self.latest.voters:
            return True
        return self.latest_index > commit and peer in self.at(commit).voters

    def _use_newest(self) -> None:
        self.latest = self._configurations[-1]
        self.latest_index = self._indexes[-1]

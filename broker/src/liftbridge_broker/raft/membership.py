"""Configurations by log index: the newest in the log is in force, committed or not.

A configuration takes effect when its entry is appended and is undone when that entry is truncated
(Diss. 4.1). While it is not committed, the previous one matters too: its members may still be
needed to elect a leader (Diss. 4.2.2).
"""

from bisect import bisect_right

from liftbridge_broker.model.metadata_log import Configuration, Peer


class Membership:
    """Configurations of a log by ascending index of their entries; never empty.

    Attributes:
        latest: The configuration in force.
        latest_index: Index of its entry.
    """

    __slots__ = ("_configurations", "_indexes", "latest", "latest_index")

    def __init__(self, index: int, configuration: Configuration) -> None:
        """Start with the configuration of a snapshot or the bootstrap."""
        self.reset(index, configuration)

    def reset(self, index: int, configuration: Configuration) -> None:
        """Forget all configurations before a snapshot that replaces the log."""
        self._indexes = [index]
        self._configurations = [configuration]
        self._use_newest()

    def add(self, index: int, configuration: Configuration) -> None:
        """Add the configuration of an entry appended at `index`."""
        assert index > self.latest_index
        self._indexes.append(index)
        self._configurations.append(configuration)
        self._use_newest()

    def truncate(self, index: int) -> None:
        """Drop configurations of truncated entries from `index` on."""
        if index > self.latest_index:
            return
        keep = max(bisect_right(self._indexes, index - 1), 1)
        del self._indexes[keep:], self._configurations[keep:]
        self._use_newest()

    def forget(self, index: int) -> None:
        """Forget configurations below `index`, where the log begins."""
        drop = bisect_right(self._indexes, index) - 1
        if drop > 0:
            del self._indexes[:drop], self._configurations[:drop]

    def at(self, index: int) -> Configuration:
        """Return the configuration in force at `index`."""
        found = bisect_right(self._indexes, index) - 1
        return self._configurations[max(found, 0)]

    def is_member(self, peer: Peer, commit: int) -> bool:
        """Return whether `peer` belongs to the newest configuration or the last committed one."""
        if peer in self.latest.voters or peer in self.latest.learners:
            return True
        if self.latest_index <= commit:
            return False
        voters, learners = self.at(commit)
        return peer in voters or peer in learners

    def may_lead(self, peer: Peer, commit: int) -> bool:
        """Return whether `peer` votes in the newest configuration, or in the last committed one."""
        if peer in self.latest.voters:
            return True
        return self.latest_index > commit and peer in self.at(commit).voters

    def _use_newest(self) -> None:
        self.latest = self._configurations[-1]
        self.latest_index = self._indexes[-1]

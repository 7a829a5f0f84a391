"""Placement of replicas: on live brokers, in different zones, least loaded first.

The command carries the load of brokers, because the log does not hold it. Brokers of equal load are
chosen in turn, in the order of their registration.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from liftbridge_broker.controller.commands import BrokerLoad
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.errors import LimitError
from liftbridge_broker.model.ids import BrokerId

NAMED_MAX: Final = 5
"""Maximum number of full brokers named in a refusal."""


def placeable(brokers: Mapping[BrokerId, BrokerState]) -> tuple[BrokerId, ...]:
    """Return brokers that take new replicas, in order of their registration."""
    return tuple(broker.broker for broker in brokers.values() if broker.takes_replicas)


def no_room(
    brokers: Mapping[BrokerId, BrokerState], replica_counts: Mapping[BrokerId, int], count: int
) -> str:
    """Build the refusal when fewer than `count` brokers have room; it names full brokers."""
    takers = [brokers[one] for one in placeable(brokers)]
    full = [taker for taker in takers if not taker.has_room(replica_counts[taker.broker])]
    named = ", ".join(f"{one.broker} has {one.replicas_max}" for one in full[:NAMED_MAX])
    more = ", ..." if len(full) > NAMED_MAX else ""
    return (
        f"{len(takers) - len(full)} of {count} brokers needed have room for another replica: "
        f"{named}{more}, as many as the open files, the memory and the disk of its system allow; "
        "raise these limits and restart it, add brokers, or delete streams"
    )


class Placement:
    """Placement choices of one command; earlier choices count for later ones.

    Args:
        brokers: All brokers.
        load: Their current load; 0 for missing brokers.
        replica_counts: Replicas of each broker, for brokers with a limit.
        turn: Number of the first choice, which selects among equals in rotation.
    """

    def __init__(
        self,
        brokers: Mapping[BrokerId, BrokerState],
        load: Iterable[BrokerLoad],
        replica_counts: Mapping[BrokerId, int],
        turn: int,
    ) -> None:
        self._brokers = brokers
        self._replica_counts = Counter(replica_counts)
        self._zones = {one.broker: one.zone for one in brokers.values()}
        self._candidates = placeable(brokers)
        loads = dict(load)
        self._leaders = {broker: loads.get(broker, 0) for broker in self._candidates}
        self._replicas = dict(self._leaders)
        self._turn = turn

    def place(self, count: int) -> tuple[BrokerId, ...]:
        """Return brokers for a new partition, the leader first; `count` is at most those placeable.

        Raises:
            LimitError: Fewer have room for another replica.
        """
        self._drop_full()
        if len(self._candidates) < count:
            raise LimitError(no_room(self._brokers, self._replica_counts, count))
        order = self._in_turn(self._candidates, self._turn % len(self._candidates))
        leader = min(order, key=lambda one: self._leaders[one])
        self._leaders[leader] += 1
        self._take(leader)
        self._turn += 1
        after = self._in_turn(self._candidates, self._candidates.index(leader) + 1)
        return (leader, *self._chosen((leader,), after, count - 1))

    def extend(self, replicas: tuple[BrokerId, ...], count: int) -> tuple[BrokerId, ...]:
        """Add replicas to a partition up to `count`, or as many as can be added."""
        self._drop_full()
        order = self._in_turn(self._candidates, self._turn % max(1, len(self._candidates)))
        self._turn += 1
        return (*replicas, *self._chosen(replicas, order, count - len(replicas)))

    def _chosen(
        self, taken: tuple[BrokerId, ...], order: Sequence[BrokerId], count: int
    ) -> list[BrokerId]:
        """Return the next `count` brokers, zones with fewest replicas of this partition first."""
        zones = [self._zones[one] for one in taken]
        left = [one for one in order if one not in taken]
        chosen: list[BrokerId] = []
        for _ in range(min(count, len(left))):
            best = min(left, key=lambda one: (zones.count(self._zones[one]), self._replicas[one]))
            left.remove(best)
            chosen.append(best)
            zones.append(self._zones[best])
            self._take(best)
        return chosen

    def _take(self, broker: BrokerId) -> None:
        self._replicas[broker] += 1
        self._replica_counts[broker] += 1

    def _drop_full(self) -> None:
        """Skip brokers without room in the rotation."""
        self._candidates = tuple(
            candidate
            for candidate in self._candidates
            if self._brokers[candidate].has_room(self._replica_counts[candidate])
        )

    @staticmethod
    def _in_turn(brokers: tuple[BrokerId, ...], first: int) -> tuple[BrokerId, ...]:
        return brokers[first:] + brokers[:first]

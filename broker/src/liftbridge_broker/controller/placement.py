"""Where replicas go: on brokers that are alive, in different zones, on those that carry least.

How much a broker carries is told by the command, because it is nothing that the log knows. With
equal loads brokers take turns in the order of their registration.
"""

from collections.abc import Iterable, Mapping, Sequence

from liftbridge_broker.controller.commands import BrokerLoad
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.model.ids import BrokerId


def placeable(brokers: Mapping[BrokerId, BrokerState]) -> tuple[BrokerId, ...]:
    """Brokers that take new replicas, in order of their registration."""
    return tuple(one.broker for one in brokers.values() if one.takes_replicas)


class Placement:
    """Choices of one command; what was given out before counts for the next choice.

    Args:
        brokers: All brokers.
        load: What they carry already; 0 for those not named.
        turn: Number of the first choice, which says whose turn it is among equals.
    """

    def __init__(
        self, brokers: Mapping[BrokerId, BrokerState], load: Iterable[BrokerLoad], turn: int
    ) -> None:
        self._zones = {one.broker: one.zone for one in brokers.values()}
        self._candidates = placeable(brokers)
        told = dict(load)
        self._leaders = {broker: told.get(broker, 0) for broker in self._candidates}
        self._replicas = dict(self._leaders)
        self._turn = turn

    def place(self, count: int) -> tuple[BrokerId, ...]:
        """Brokers of a new partition, the leader first; `count` is at most those that can."""
        order = self._in_turn(self._candidates, self._turn % len(self._candidates))
        leader = min(order, key=lambda one: self._leaders[one])
        self._leaders[leader] += 1
        self._replicas[leader] += 1
        self._turn += 1
        after = self._in_turn(self._candidates, self._candidates.index(leader) + 1)
        return (leader, *self._chosen((leader,), after, count - 1))

    def extend(self, replicas: tuple[BrokerId, ...], count: int) -> tuple[BrokerId, ...]:
        """Replicas of a partition with others added until there are `count` or no more to add."""
        order = self._in_turn(self._candidates, self._turn % max(1, len(self._candidates)))
        self._turn += 1
        return (*replicas, *self._chosen(replicas, order, count - len(replicas)))

    def _chosen(
        self, taken: tuple[BrokerId, ...], order: Sequence[BrokerId], count: int
    ) -> list[BrokerId]:
        """The next `count` brokers: a zone with fewest replicas of this partition goes first."""
        zones = [self._zones[one] for one in taken]
        left = [one for one in order if one not in taken]
        chosen: list[BrokerId] = []
        for _ in range(min(count, len(left))):
            best = min(left, key=lambda one: (zones.count(self._zones[one]), self._replicas[one]))
            left.remove(best)
            chosen.append(best)
            zones.append(self._zones[best])
            self._replicas[best] += 1
        return chosen

    @staticmethod
    def _in_turn(brokers: tuple[BrokerId, ...], first: int) -> tuple[BrokerId, ...]:
        return brokers[first:] + brokers[:first]

"""Seats of consumers in the partitions led here: who reads a partition for a group.

A consumer that subscribes takes the seat of its group, and ends the subscription of its
predecessor. It gets the seat if the metadata assign the partition to it, in a membership that its
epoch proves; where the metadata know no such group, epochs alone decide, as in the original. A seat
ends as soon as the metadata assign its partition to another member or to none.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import NotAssignedError
from liftbridge_broker.model.ids import PartitionId

NOT_ASSIGNED: Final = "Consumer is not currently assigned this partition"


class Consumer(NamedTuple):
    """A consumer that subscribes as a member of a group.

    Attributes:
        group_id: Name of the group.
        member_id: Name of the member.
        epoch: Group epoch that it knows; in an incremental group its member epoch.
    """

    group_id: str
    member_id: str
    epoch: int


@dataclass(slots=True, eq=False)
class Seat:
    """A consumer's present subscription to a partition.

    Attributes:
        partition: The partition.
        consumer: The consumer.
        end: Ends the subscription; called once, after the seat was given up.
        is_assigned: Whether the metadata assigned it the partition.
    """

    partition: PartitionId
    consumer: Consumer
    end: Callable[[], None]
    is_assigned: bool = False


@dataclass(slots=True)
class Seats:
    """Seats of all groups in the partitions led here; one for each group and partition.

    Attributes:
        state: Returns the applied metadata.
    """

    state: Callable[[], ClusterState]
    _seats: dict[str, dict[PartitionId, Seat]] = field(default_factory=dict)

    def check(self, partition: PartitionId, consumer: Consumer) -> None:
        """Refuse a consumer that may not read a partition; changes nothing.

        Raises:
            NotAssignedError: Another member is to read it, or a newer epoch already does.
        """
        is_assigned = self._is_assigned(partition, consumer)
        seat = self._seats.get(consumer.group_id, {}).get(partition)
        if is_assigned is False or (  # guard Group.assigned
            seat is not None and seat.consumer.epoch > consumer.epoch  # guard Group.fence
        ):
            raise NotAssignedError(NOT_ASSIGNED)

    def is_over(self, partition: PartitionId, consumer: Consumer) -> bool:
        """Return whether a member of a classic group lost a partition since the epoch it knows."""
        group = self.state().groups.get(consumer.group_id)
        member = None if group is None else group.member(consumer.member_id)
        return (
            group is not None
            and member is not None
            and not group.is_incremental
            and member.member_epoch <= consumer.epoch < group.group_epoch
            and partition not in member.held
        )

    def _is_assigned(self, partition: PartitionId, consumer: Consumer) -> bool | None:
        """Return whether the metadata assign a partition; `None` for a group they do not know."""
        group = self.state().groups.get(consumer.group_id)
        if group is None:
            return None
        member = group.member(consumer.member_id)
        return (
            member is not None
            and consumer.epoch >= member.member_epoch  # guard Group.membership
            and partition in member.held
        )

    def take(self, partition: PartitionId, consumer: Consumer, end: Callable[[], None]) -> Seat:
        """Give the seat to a consumer that `check` allowed in this turn; end its predecessor's."""
        seat = Seat(partition, consumer, end)
        seat.is_assigned = bool(self._is_assigned(partition, consumer))
        former = self._seats.setdefault(consumer.group_id, {}).get(partition)
        self._seats[consumer.group_id][partition] = seat
        if former is not None:
            former.end()
        return seat

    def leave(self, seat: Seat) -> None:
        """Give up a seat; no-op when another consumer has it already."""
        seats = self._seats.get(seat.consumer.group_id, {})
        if seats.get(seat.partition) is seat:
            del seats[seat.partition]
            if not seats:
                del self._seats[seat.consumer.group_id]

    def on_groups(self, group_ids: Iterable[str]) -> None:
        """End the subscriptions of members that lost their partitions."""
        for group_id in group_ids:
            for seat in list(self._seats.get(group_id, {}).values()):
                is_assigned = self._is_assigned(seat.partition, seat.consumer)
                if is_assigned:
                    seat.is_assigned = True
                elif is_assigned is False or seat.is_assigned:  # guard Group.lost
                    self.leave(seat)
                    seat.end()

    def on_state(self) -> None:
        """Check all seats, after the whole state was replaced."""
        self.on_groups(list(self._seats))

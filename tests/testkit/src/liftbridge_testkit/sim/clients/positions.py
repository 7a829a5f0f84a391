"""Where positions of groups are kept, for the clients that store them."""

from typing import NamedTuple

from liftbridge_broker.groups.cursors import cursor_key, cursors_partition
from liftbridge_broker.model.groups import CURSOR_PREFIX
from liftbridge_broker.model.ids import PartitionId, number_of, stream_of
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import World


class Place(NamedTuple):
    """Who stores a position.

    Attributes:
        stream: Name of the stream that the position is in.
        keeper: Machine of the leader of the partition of `__cursors`.
    """

    stream: str
    keeper: Machine


def place_of(
    world: World, directory: Directory, group_id: str, partition: PartitionId
) -> Place | None:
    """Return who stores the position of a group in a partition; `None` if nobody is known."""
    state = directory.state()
    stream = None if state is None else state.streams.get(stream_of(partition))
    cursors = None if state is None else state.stream(CURSORS_STREAM)
    if stream is None or cursors is None:
        return None
    key = cursor_key(stream.name, number_of(partition), CURSOR_PREFIX + group_id)
    leader = cursors.partitions[cursors_partition(key, len(cursors.partitions))].leader
    machine = None if leader is None else world.machines.get(leader)
    return None if machine is None else Place(stream.name, machine)

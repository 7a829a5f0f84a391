"""Look-up of partitions by client-visible names, with refusals where no partition fits."""

from liftbridge_broker.errors import NotFoundError, NotLeaderError
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.partition import NOT_LEADER_TEXT, Partition
from liftbridge_broker.node.publishing.remote_partition import RemotePartition, remote_partition
from liftbridge_broker.node.reading.answers import not_leader


class PartitionNames:
    """Replicas held here by stream and number."""

    def __init__(self, context: NodeContext) -> None:
        """Start empty."""
        self._context = context
        self._found: dict[tuple[str, int], Partition] = {}

    def add(self, partition: Partition) -> None:
        """Add a replica held here."""
        self._found[partition.stream, partition.number] = partition

    def remove(self, partition: Partition) -> None:
        """Remove a replica; one of a recreated stream of the same name may be present already."""
        key = partition.stream, partition.number
        if self._found.get(key) is partition:
            del self._found[key]

    def led(self, stream: str, number: int) -> Partition:
        """Return a partition that this broker leads.

        Raises:
            NotFoundError: The stream or partition does not exist.
            NotLeaderError: Another broker leads it.
        """
        partition = self._found.get((stream, number))
        if partition is not None and partition.is_led:
            return partition
        stream_state = self._context.state.stream(stream)
        if stream_state is None or stream_state.partition(number) is None:
            raise NotFoundError(f"no such partition: {stream}/{number}")
        raise NotLeaderError(NOT_LEADER_TEXT)

    def replica(self, stream: str, number: int) -> Partition:
        """Return a partition of which this broker has a replica, with the errors of `led`."""
        partition = self._found.get((stream, number))
        return partition if partition is not None else self.led(stream, number)

    def for_publish(self, stream: str, number: int) -> Partition | RemotePartition:
        """Return a partition to publish to, led by any broker; errors have the texts of `Publish`.

        Raises:
            NotFoundError: `no such stream: <name>` or `no such partition: <n>`.
        """
        partition = self._found.get((stream, number))
        if partition is not None and partition.is_led:
            return partition
        stream_state = self._context.state.stream(stream)
        if stream_state is None:
            raise NotFoundError(f"no such stream: {stream}")
        state = stream_state.partition(number)
        if state is None:
            raise NotFoundError(f"no such partition: {number}")
        return remote_partition(self._context, stream_state, state)

    def led_for_publish(self, stream: str, number: int) -> Partition:
        """Return a partition for an operation that only its leader performs.

        Raises:
            NotFoundError: As in `for_publish`.
            NotLeaderError: Another broker leads it.
        """
        partition = self.for_publish(stream, number)
        if isinstance(partition, RemotePartition):
            stream_state = self._context.state.stream(stream)
            state = None if stream_state is None else stream_state.partition(number)
            leader = "" if state is None else state.leader or ""
            raise not_leader(f"{stream}/{number}", leader)
        return partition

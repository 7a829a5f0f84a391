"""Look-up of partitions by client-visible names, and the refusals where none serves."""

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
        found = self._context.state.stream(stream)
        if found is None or found.partition(number) is None:
            raise NotFoundError(f"no such partition: {stream}/{number}")
        raise NotLeaderError(NOT_LEADER_TEXT)

    def replica(self, stream: str, number: int) -> Partition:
        """Do as `led`, also where this broker has a replica and another one leads."""
        partition = self._found.get((stream, number))
        return partition if partition is not None else self.led(stream, number)

    def for_publish(self, stream: str, number: int) -> Partition | RemotePartition:
        """Return a partition to publish to, whoever leads it; errors use the texts of `Publish`.

        Raises:
            NotFoundError: `no such stream: <name>` or `no such partition: <n>`.
        """
        partition = self._found.get((stream, number))
        if partition is not None and partition.is_led:
            return partition
        found = self._context.state.stream(stream)
        if found is None:
            raise NotFoundError(f"no such stream: {stream}")
        state = found.partition(number)
        if state is None:
            raise NotFoundError(f"no such partition: {number}")
        return remote_partition(self._context, found, state)

    def led_for_publish(self, stream: str, number: int) -> Partition:
        """Do as `for_publish`, for operations that only the leader performs.

        Raises:
            NotFoundError: As there.
            NotLeaderError: Another broker leads it.
        """
        partition = self.for_publish(stream, number)
        if isinstance(partition, RemotePartition):
            found = self._context.state.stream(stream)
            state = None if found is None else found.partition(number)
            leader = "" if state is None else state.leader or ""
            raise not_leader(f"{stream}/{number}", leader)
        return partition

"""Partitions of which this broker holds a replica: opens them, assigns their roles, closes them."""

from liftbridge_broker.controller.commands import PauseStream
from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import FilesError, LiftbridgeError
from liftbridge_broker.model.ids import Instant, PartitionId, stream_of
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.listening import Listening
from liftbridge_broker.node.partition.opening import open_partition, renew_publishers
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.node.partition.stream_subjects import StreamSubjects
from liftbridge_broker.node.partition_names import PartitionNames
from liftbridge_broker.node.reading.cursors import CursorTables
from liftbridge_broker.node.refusals import leader_changed
from liftbridge_broker.node.replicas.replicas import Replicas
from liftbridge_broker.node.upkeep.auto_pause import AutoPause


class HeldPartitions:
    """Partitions of which this broker holds a replica.

    Attributes:
        context: State and ports that the parts of the node share.
        partitions: The partitions by id, in order of creation.
        listening: Receives the messages of those led here.
        replicas: Roles for replicated partitions; `None` for a sole broker.
        names: The partitions by stream and number.
        cursors: Finds cursors in partitions of `__cursors` that are led here.
        stream_subjects: Subjects that streams store, to which no ack goes.
    """

    replicas: Replicas | None = None

    def __init__(
        self,
        context: NodeContext,
        partitions: dict[PartitionId, Partition],
        listening: Listening,
    ) -> None:
        """Start without partitions; `partitions` is empty."""
        self.context = context
        self.partitions = partitions
        self.listening = listening
        self.names = PartitionNames(context)
        self.cursors = CursorTables(context)
        self.stream_subjects = StreamSubjects(lambda: context.state.streams, context.chores)
        self._idle = AutoPause()
        context.data_keys.on_locked = self._on_locked

    # -- opening and closing ------------------------------------------------------------------

    def open(self, stream: StreamState, state: PartitionState, now: Instant) -> None:
        """Open a replica and take the role that the metadata assign.

        Raises:
            FilesError: The files of a new partition cannot be created.
        """
        partition = self.partitions.get(state.partition_id)
        if partition is None:
            partition = open_partition(
                self.context,
                stream,
                state,
                now,
                others=self.listening.others,
                subjects=self.stream_subjects,
            )
            self.partitions[state.partition_id] = partition
            self.names.add(partition)
            self._idle.watch(partition, now)
        self.assign_role(partition, stream, state, now)

    def open_or_report(self, stream: StreamState, state: PartitionState, now: Instant) -> None:
        """Call `open`, and report a partition whose files cannot be created."""
        try:
            self.open(stream, state, now)
        except FilesError as error:
            self.context.transition(
                "partition_offline",
                {"stream": stream.name, "partition": state.number, "reason": error.text},
            )

    def close(self, partition_id: PartitionId, error: LiftbridgeError) -> None:
        """Stop serving a partition; its log stays open until the store releases it."""
        partition = self.partitions.pop(partition_id, None)
        if partition is None:
            return
        self.listening.stop(partition)
        if self.replicas is not None:
            self.replicas.drop(partition, self.context.now)
        self.names.remove(partition)
        self.cursors.forget(partition_id)
        self._idle.forget(partition_id)
        self.context.data_keys.release(partition_id)
        partition.close(error)

    def remove(self, partition_id: PartitionId, now: Instant, wall_ns: int) -> None:
        """Close a partition, and delete its log."""
        self.close(partition_id, leader_changed())
        self.context.store.delete((partition_id,), now, wall_ns)

    # -- roles and settings -------------------------------------------------------------------

    def assign_role(
        self, partition: Partition, stream: StreamState, state: PartitionState, now: Instant
    ) -> None:
        """Lead or follow a partition, as the metadata assign."""
        context = self.context
        if self.replicas is not None and self.replicas.takes(partition, stream, state, now):
            return
        if state.replicas != (context.broker,):
            self.listening.stop(partition)
            partition.follow(None)
        elif partition.role is not Role.LEADER or state.leader == context.broker:
            # A sole replica leads even while its broker is fenced: no other replica has records.
            log = partition.log
            if not partition.offline_reason:
                log.epochs.assign(state.leader_epoch, log.log_end_offset)
            partition.lead(None, state.leader_epoch, now, context.wall_ns)
            partition.commit_alone(context.wall_ns)
            self.listening.start(partition)

    def set_options(self, partition: Partition, options: StreamOptions, now: Instant) -> None:
        """Apply settings of a stream to one of its partitions."""
        partition.set_options(options, self.context.wall_ns)
        self.context.store.set_options(partition.partition_id, options, now)
        self.watch_idle(partition, now)

    def renew_options(self, now: Instant) -> None:
        """Apply the settings in force to all partitions."""
        for stream, state in self.context.state.partitions():
            partition = self.partitions.get(state.partition_id)
            if partition is not None:
                self.set_options(partition, self.context.options_of(stream), now)

    # -- idle partitions ----------------------------------------------------------------------

    def watch_idle(self, partition: Partition, now: Instant) -> None:
        """Check the partition again when it may have been idle for its auto-pause time."""
        self._idle.watch(partition, now)

    def take_idle(self, now: Instant) -> list[PauseStream]:
        """Return proposals to pause partitions that were idle for their auto-pause time."""
        return self._idle.take_due(self.partitions, now)

    def next_idle(self) -> Instant | None:
        """Time of the next `take_idle` call, `None` for never."""
        return self._idle.next_deadline()

    def _on_locked(self, partition_id: PartitionId, error: LiftbridgeError) -> None:
        """End the readers of a partition whose stream was locked."""
        partition = self.partitions.get(partition_id)
        if partition is not None:
            partition.readers.end(error)

    # -- changes of logs ----------------------------------------------------------------------

    def on_cut(self, partition: Partition) -> None:
        """Rebuild publisher state after a follower's log was truncated."""
        self._renew(partition, is_cut=True)

    def on_readable(self, partition: Partition) -> None:
        """Rebuild publisher state after a log is readable again."""
        self._renew(partition, is_cut=False)

    def _renew(self, partition: Partition, *, is_cut: bool) -> None:
        self.cursors.forget(partition.partition_id)
        stream = self.context.state.stream(partition.stream)
        if (stream is not None and stream.publishers) or len(partition.writer.publishers):
            renew_publishers(self.context, partition, self.context.now, is_cut=is_cut)

    def replace_log(self, partition_id: PartitionId) -> None:
        """Set a damaged log aside and start an empty one; no commit depends on it any more."""
        context = self.context
        state = context.state.partition(partition_id)
        if state is None or context.broker not in state.replicas:
            return
        self.remove(partition_id, context.now, context.wall_ns)
        self.open_or_report(context.state.streams[stream_of(partition_id)], state, context.now)

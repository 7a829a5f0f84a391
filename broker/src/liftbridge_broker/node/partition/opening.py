"""Opens a partition: its log, its publisher state and its intake."""

from collections.abc import Callable, Mapping

from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.cipher import BatchCipher
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.model.ids import OFFSET_MAX, Instant, Offset, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.subjects import partition_subject
from liftbridge_broker.node.context import NodeContext
from liftbridge_broker.node.partition.ack_inboxes import AckInboxes
from liftbridge_broker.node.partition.activity import Activity
from liftbridge_broker.node.partition.intake import Intake
from liftbridge_broker.node.partition.partition import OtherListeners, Partition
from liftbridge_broker.node.partition.publishers import history_of
from liftbridge_broker.node.partition.sealing import LogWriter, RunSealer
from liftbridge_broker.node.partition.stream_subjects import StreamSubjects
from liftbridge_broker.replication.publisher_history import PublisherHistory
from liftbridge_broker.replication.publishers import PublisherTable
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.wire.acks import AckEncoder
from liftbridge_broker.wire.publish_acks import PublishAckEncoder


def newest_timestamp(partitions: Mapping[PartitionId, Partition]) -> int:
    """Return the latest timestamp of all records in these partitions, below 1 for none."""
    return max((partition.log.largest_timestamp for partition in partitions.values()), default=0)


def open_partition(
    context: NodeContext,
    stream: StreamState,
    state: PartitionState,
    now: Instant,
    *,
    others: OtherListeners,
    subjects: StreamSubjects,
) -> Partition:
    """Open the log of a replica, which gets its role later.

    Args:
        context: State and ports that the parts of the node share.
        stream: Its stream.
        state: Its state in the metadata.
        now: Time now.
        others: Reaches the other listeners of its subject.
        subjects: Subjects of all streams, to which no ack goes.

    Raises:
        FilesError: The files of a new partition cannot be created.
    """
    partition_id, options = state.partition_id, context.options_of(stream)
    log, reason = context.store.open(partition_id, stream.name, options, now)
    cipher = _cipher(context, stream, partition_id, now)
    acks = AckEncoder(stream.name, stream.subject)
    partition = Partition(
        context=context,
        others=others,
        log=log,
        partition_id=partition_id,
        stream=stream.name,
        number=state.number,
        subject=partition_subject(stream.subject, state.number),
        group=stream.group,
        options=options,
        leader_epoch=state.leader_epoch,
        writer=LogWriter(
            context,
            log,
            RunSealer(RecordEncoder(stream.name, state.number), partition_id, cipher),
            new_publishers(context, log),
        ),
        acks=acks,
        intake=Intake(
            acks,
            context.send_acks,
            partition_id=partition_id,
            record_bytes_max=context.options.record_bytes_max,
            options=options,
            inboxes=AckInboxes(context.options.namespace, context.options.keyring, subjects),
            ack_times=context.ack_times,
            replies=PublishAckEncoder(stream.name, state.number),
        ),
        is_readonly=state.readonly,
        activity=Activity(last_active=now),
    )
    partition.pause.is_paused, partition.pause.is_auto = state.paused, state.auto_paused
    context.store.set_damage_listener(partition_id, partition.on_unreadable)
    is_alone = len(state.replicas) == 1
    if is_alone:
        log.compacted_everywhere = Offset(OFFSET_MAX)
    if reason:
        partition.go_offline(reason)
    elif not is_alone:
        # The role that it gets later decides whether it may move the log start.
        context.store.set_leader(partition_id, is_leader=False)
    if stream.publishers and context.is_caught_up:
        take_up_publishers(context, partition)
    return partition


def _cipher(
    context: NodeContext, stream: StreamState, partition_id: PartitionId, now: Instant
) -> BatchCipher | None:
    """Return the cipher of an open log, for its leader, its readers and compaction."""
    cipher = context.data_keys.cipher(stream, partition_id, now)
    if cipher is not None:
        context.store.set_cipher(partition_id, cipher)
    return cipher


def new_publishers(context: NodeContext, log: PartitionLog) -> PublisherHistory:
    """Return an empty state of idempotent publishers."""

    def make_table() -> PublisherTable:
        return PublisherTable(
            publishers_max=context.options.publishers_max,
            ttl_ns=context.options.publisher_ttl_ns,
            registered=lambda: context.state,
        )

    return history_of(make_table, log)


def take_up_publishers(context: NodeContext, partition: Partition) -> None:
    """Rebuild the state of publishers from its snapshot and the log; keep it from then on.

    Call it once the metadata show whether the stream has any: earlier, the table would miss
    publishers in the log of an earlier process. An unreadable log takes the partition offline.
    """
    if partition.offline_reason:
        return

    def take_up() -> None:
        publishers = new_publishers(context, partition.log)
        publishers.take_up(context.store.notes.read_snapshot(partition.partition_id))
        partition.writer.publishers = publishers

    if _is_read(partition, take_up):
        watch_publishers(context, partition)


def watch_publishers(context: NodeContext, partition: Partition) -> None:
    """Have the store keep snapshots of the state of publishers, from the first one on."""
    if context.is_caught_up and not partition.offline_reason:

        def snapshot() -> bytes:
            _is_read(partition, partition.writer.publishers.settle)
            return partition.writer.publishers.snapshot()

        context.store.notes.set_snapshot_source(partition.partition_id, snapshot)


def renew_publishers(
    context: NodeContext, partition: Partition, now: Instant, *, is_cut: bool
) -> None:
    """Update the state of publishers after a log was truncated, or is readable again."""
    if is_cut:
        _cut_publishers(context, partition, now)
    else:
        take_up_publishers(context, partition)


def _cut_publishers(context: NodeContext, partition: Partition, now: Instant) -> None:
    """Roll the state of publishers back to the end of a truncated or restarted log.

    A truncation undoes the removed batches, but no effect of committed records. After one below the
    settled offset, by an unclean election, the state is rebuilt from the snapshot and the
    remaining headers.
    """
    log = partition.log
    is_exact = False

    def roll_back() -> None:
        nonlocal is_exact
        is_exact = partition.writer.publishers.roll_back()

    if not _is_read(partition, roll_back):
        return
    if not is_exact:
        partition.writer.publishers = new_publishers(context, log)
        # The snapshot of an empty log may be of another history: no header is left to compare.
        if log.log_end_offset > log.log_start_offset:
            take_up_publishers(context, partition)
    if partition.offline_reason:
        # Keep the saved snapshot: the log cannot be read, so a new one would hold less.
        context.store.notes.set_snapshot_source(partition.partition_id, None)
        return
    context.store.notes.write_snapshot(partition.partition_id, now)


def _is_read(partition: Partition, read: Callable[[], None]) -> bool:
    """Read a log and return whether that succeeded; if not, take its partition offline."""
    try:
        read()
    except (CorruptionError, FilesError) as error:
        partition.on_unreadable(error)
    else:
        return True
    return False

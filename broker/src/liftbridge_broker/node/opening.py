"""Opening a partition: its log, its publishers, and what takes its messages."""

from collections.abc import Callable, Mapping
from typing import Protocol

from liftbridge_broker.controller.state import ClusterState, StreamState
from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import OFFSET_MAX, Instant, Offset
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.subjects import RESERVED_STREAMS, partition_subject
from liftbridge_broker.node.intake import Intake
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.partition import Partition, PartitionHost
from liftbridge_broker.node.publishers import restored_publishers, snapshot_of
from liftbridge_broker.replication.publishers import PublisherTable
from liftbridge_broker.storage.store import LogStore
from liftbridge_broker.wire.acks import AckEncoder
from liftbridge_broker.wire.subjects import ReservedSubjects


class WatchingHost(Protocol):
    """The node, as far as keeping snapshots of publishers needs it."""

    store: LogStore

    @property
    def is_caught_up(self) -> bool:
        """Whether the metadata hold all that was decided before this process began."""
        ...


class OpeningHost(PartitionHost, WatchingHost, Protocol):
    """The node, as far as opening a partition needs it."""

    options: NodeOptions
    ack_times: Mapping[int, Histogram]

    @property
    def state(self) -> ClusterState:
        """Applied metadata."""
        ...

    @property
    def send_acks(self) -> Callable[[list[bytes]], None]:
        """Publishes acks."""
        ...


def open_partition(
    host: OpeningHost,
    stream: StreamState,
    state: PartitionState,
    options: StreamOptions,
    now: Instant,
) -> Partition:
    """Open the log of a replica; it has no role yet.

    Raises:
        FilesError: The files of a new partition cannot be made.
    """
    partition_id = state.partition_id
    log, reason = host.store.open(partition_id, stream.name, options, now)
    acks = AckEncoder(stream.name, stream.subject)
    partition = Partition(
        host=host,
        log=log,
        partition_id=partition_id,
        stream=stream.name,
        number=state.number,
        stream_subject=stream.subject,
        subject=partition_subject(stream.subject, state.number),
        group=stream.group,
        options=options,
        leader_epoch=state.leader_epoch,
        is_replicated=len(state.replicas) > 1,
        publishers=new_publishers(host),
        acks=acks,
        intake=Intake(
            acks,
            host.send_acks,
            partition_id=partition_id,
            record_bytes_max=host.options.record_bytes_max,
            takes_singles=options.optimistic_concurrency,
            reserved=ReservedSubjects(host.options.namespace),
            takes_reserved=stream.name in RESERVED_STREAMS,
            ack_times=host.ack_times,
        ),
        is_paused=state.paused,
        is_auto_paused=state.auto_paused,
        is_readonly=state.readonly,
        last_active=now,
    )
    if not partition.is_replicated:
        log.compacted_everywhere = Offset(OFFSET_MAX)
    if reason:
        partition.go_offline(reason)
    elif partition.is_replicated:
        # Whether it may move the log start shows when it takes a role.
        host.store.set_leader(partition_id, is_leader=False)
    if stream.publishers and host.is_caught_up:
        take_up_publishers(host, partition)
    return partition


def new_publishers(host: OpeningHost) -> PublisherTable:
    """State of idempotent publishers that never published."""
    return PublisherTable(
        publishers_max=host.options.publishers_max,
        ttl_ns=host.options.publisher_ttl_ns,
        registered=lambda: host.state,
    )


def take_up_publishers(host: OpeningHost, partition: Partition) -> None:
    """Rebuild the state of publishers by its snapshot and the log; from here on it is kept.

    To be called when the metadata tell whether there are any: before, a table would lack what the
    log of a former life holds. A log that cannot be read takes the partition offline.
    """
    partition_id, log = partition.partition_id, partition.log
    if partition.offline_reason:
        return
    try:
        snapshot = host.store.read_snapshot(partition_id)
        partition.publishers = restored_publishers(lambda: new_publishers(host), log, snapshot)
    except FilesError as error:
        partition.go_offline(error.text)
    except CorruptionError as error:
        partition.on_corruption(error)
    else:
        watch_publishers(host, partition)


def watch_publishers(host: WatchingHost, partition: Partition) -> None:
    """Have the store keep snapshots of the state of publishers, from the first one on."""
    if host.is_caught_up and not partition.offline_reason:

        def snapshot() -> bytes:
            return snapshot_of(partition.publishers, partition.log)

        host.store.set_snapshot_source(partition.partition_id, snapshot)


def cut_publishers(host: OpeningHost, partition: Partition, now: Instant) -> None:
    """Rebuild the state of publishers after the log was cut, or began anew and is empty."""
    log = partition.log
    if log.log_end_offset > log.log_start_offset:
        take_up_publishers(host, partition)
    else:
        # What the snapshot tells may be of another branch, and there is nothing to compare with.
        partition.publishers = new_publishers(host)
    host.store.write_snapshot(partition.partition_id, now)

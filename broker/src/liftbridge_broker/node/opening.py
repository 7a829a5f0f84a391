"""Opening a partition: its log, its publishers, and what takes its messages."""

from collections.abc import Callable, Mapping
from typing import Protocol

from liftbridge_broker.controller.state import ClusterState, StreamState
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import Instant, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.subjects import RESERVED_STREAMS, partition_subject
from liftbridge_broker.node.intake import Intake
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.partition import Partition, PartitionHost
from liftbridge_broker.node.publishers import restored_publishers
from liftbridge_broker.replication.publishers import PublisherTable
from liftbridge_broker.storage.log import PartitionLog
from liftbridge_broker.storage.store import LogStore
from liftbridge_broker.wire.acks import AckEncoder
from liftbridge_broker.wire.subjects import ReservedSubjects


class OpeningHost(PartitionHost, Protocol):
    """The node, as far as opening a partition needs it."""

    options: NodeOptions
    store: LogStore
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
    is_internal = stream.name in RESERVED_STREAMS
    publishers = new_publishers(host)
    if stream.publishers and not reason:
        publishers = rebuilt_publishers(host, partition_id, log)
        host.store.set_snapshot_source(partition_id, publishers.snapshot)
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
        publishers=publishers,
        acks=acks,
        intake=Intake(
            acks,
            host.send_acks,
            partition_id=partition_id,
            record_bytes_max=host.options.record_bytes_max,
            takes_singles=options.optimistic_concurrency,
            reserved=None if is_internal else ReservedSubjects(host.options.namespace),
            ack_times=host.ack_times,
        ),
        is_paused=state.paused,
        is_auto_paused=state.auto_paused,
        is_readonly=state.readonly,
        last_active=now,
    )
    if reason:
        partition.go_offline(reason)
    elif partition.is_replicated:
        # Whether it may move the log start shows when it takes a role.
        host.store.set_leader(partition_id, is_leader=False)
    return partition


def new_publishers(host: OpeningHost) -> PublisherTable:
    """State of idempotent publishers that never published."""
    return PublisherTable(
        publishers_max=host.options.publishers_max,
        ttl_ns=host.options.publisher_ttl_ns,
        registered=lambda: host.state,
    )


def rebuilt_publishers(
    host: OpeningHost, partition_id: PartitionId, log: PartitionLog
) -> PublisherTable:
    """State of idempotent publishers by the snapshot and what the log holds behind it.

    Raises:
        FilesError: The disk refused to read.
    """
    snapshot = host.store.read_snapshot(partition_id)
    return restored_publishers(lambda: new_publishers(host), log, snapshot)

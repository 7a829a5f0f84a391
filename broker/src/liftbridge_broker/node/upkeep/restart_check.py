"""Checks whether a broker may restart, and whether it recovered fully; only reads the state.

Before: every other replica of its partitions is in sync, so that each partition has all replicas
but one during the restart; the metadata group keeps a majority; no other broker is stopping. After:
the broker is a new process on the same directory, in the same in-sync sets, and holds the records
committed then. A partition that was deleted, moved away or recovered uncleanly since is left out.
"""

from collections.abc import Callable, Generator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from liftbridge_broker.controller.state import (
    BrokerState,
    ClusterState,
    StreamState,
    effective_min_isr,
)
from liftbridge_broker.model.ids import (
    BrokerId,
    Offset,
    PartitionId,
    stream_of,
)
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.metadata.group import is_alive
from liftbridge_broker.node.scheduling.steps import STEP, all_partitions, in_steps
from liftbridge_broker.ports.metadata import MetadataConsensus
from liftbridge_broker.wire.restart import HeldReplica, RestartRecord

LAG_ENTRIES_MAX: Final = 100
"""Entries that another voter may lack and still count towards the majority."""


class BlockerKind(IntEnum):
    """Kinds of blockers; numbers as in `liftbridge.ext.v1.RestartBlocker.Kind`."""

    OUT_OF_SYNC = 1
    UNREPLICATED = 2
    NO_MAJORITY = 3
    OTHER_STOPPING = 4
    NATS = 5
    DISK_FULL = 6
    NOT_RESTARTED = 7
    FENCED = 8
    BEHIND = 9
    OTHER_DIRECTORY = 10
    MEMBER_BEHIND = 11


ACCEPTABLE: Final = frozenset({BlockerKind.UNREPLICATED, BlockerKind.NO_MAJORITY})
"""Blockers that an operator may accept: they cost availability during the restart, not data."""


class Blocker(NamedTuple):
    """A reason against a restart, or a deficit after it.

    Attributes:
        kind: Its kind.
        text: Human-readable description.
        brokers: Brokers it is about.
        stream: Stream of the partition it is about, empty for none.
        partition: Its number.
    """

    kind: BlockerKind
    text: str
    brokers: tuple[BrokerId, ...] = ()
    stream: str = ""
    partition: int = 0


def restart_blockers(
    state: ClusterState, broker: BrokerId, group: MetadataConsensus, *, needs_full_isr: bool
) -> Generator[None, None, list[Blocker]]:
    """Find the blockers in the cluster against the restart of a broker; in steps.

    Args:
        state: Applied metadata, confirmed.
        broker: The broker.
        group: The metadata group.
        needs_full_isr: Whether all other replicas must be in sync, or just the minimum.
    """
    found = [
        Blocker(BlockerKind.OTHER_STOPPING, f"broker {one.broker} is about to stop", (one.broker,))
        for one in state.brokers.values()
        if one.broker != broker and one.in_controlled_shutdown and not one.removed
    ]

    def add(one: tuple[StreamState, PartitionState]) -> None:
        stream, partition = one
        if broker in partition.replicas:
            blocker = _partition_blocker(stream, partition, broker, needs_full_isr=needs_full_isr)
            if blocker is not None:
                found.append(blocker)

    yield from in_steps(all_partitions(state), add)
    return found + _group_blockers(state, broker, group)


def _partition_blocker(
    stream: StreamState, partition: PartitionState, broker: BrokerId, *, needs_full_isr: bool
) -> Blocker | None:
    name = f"partition {partition.number} of stream {stream.name}"
    others = tuple(replica for replica in partition.replicas if replica != broker)
    if not others:
        text = f"{name} has its only replica here"
        return Blocker(
            BlockerKind.UNREPLICATED, text, (broker,), stream.name, int(partition.number)
        )
    behind = tuple(replica for replica in others if replica not in partition.isr)
    in_sync, needed = len(others) - len(behind), effective_min_isr(stream, partition)
    # If all replicas are in sync but it cannot commit meanwhile, it was configured so.
    if not behind or (not needs_full_isr and in_sync >= needed):
        return None
    text = f"{name} is not in sync on {', '.join(behind)}"
    if not needs_full_isr:
        text += f": it would have {in_sync} replicas in sync, needs {needed}"
    return Blocker(BlockerKind.OUT_OF_SYNC, text, behind, stream.name, int(partition.number))


def _group_blockers(
    state: ClusterState, broker: BrokerId, group: MetadataConsensus
) -> list[Blocker]:
    voters = group.voters
    if all(peer.broker != broker for peer in voters):
        return []
    majority = len(voters) // 2 + 1
    others = [peer for peer in voters if peer.broker != broker and is_alive(state, peer)]
    if len(others) < majority:
        text = (
            f"the metadata group would have {len(others)} of {len(voters)} voters, needs {majority}"
        )
        return [Blocker(BlockerKind.NO_MAJORITY, text)]
    near = [peer for peer in others if _is_near(state, group, peer)]
    if len(near) >= majority:
        return []
    behind = tuple(peer.broker for peer in others if peer not in near)
    text = f"voters {', '.join(behind)} lack more than {LAG_ENTRIES_MAX} entries of metadata"
    return [Blocker(BlockerKind.MEMBER_BEHIND, text, behind)]


def _is_near(state: ClusterState, group: MetadataConsensus, peer: Peer) -> bool:
    """Return whether a voter is up to date; known to the leader only, assumed elsewhere."""
    match = group.match(peer)
    return match is None or match + LAG_ENTRIES_MAX >= state.applied_index


def record_of(
    state: ClusterState,
    own: BrokerState,
    high_watermark_of: Callable[[PartitionId], Offset | None],
    expires: int,
) -> Generator[None, None, RestartRecord]:
    """Build the record of a broker's current replicas; in steps.

    Args:
        state: Applied metadata.
        own: The broker.
        high_watermark_of: Returns the high watermark here; `None` for a log that is not open.
        expires: Latest time for the restart to begin.
    """
    held: list[HeldReplica] = []

    def add(one: tuple[StreamState, PartitionState]) -> None:
        partition = one[1]
        if own.broker in partition.replicas:
            end = high_watermark_of(partition.partition_id)
            held.append(
                HeldReplica(
                    partition.partition_id,
                    Offset(0) if end is None else end,
                    own.broker in partition.isr,
                    partition.unclean_epoch,
                )
            )

    yield from in_steps(all_partitions(state), add)
    return RestartRecord(
        state.cluster_id,
        own.broker,
        own.data_dir_id,
        own.incarnation_id,
        own.broker_epoch,
        expires,
        tuple(held),
    )


class Verification(NamedTuple):
    """Outcome of the comparison after a restart.

    Attributes:
        blockers: Deficits found.
        compared: Partitions compared.
        excluded: Partitions that were deleted, moved away or recovered uncleanly since.
    """

    blockers: tuple[Blocker, ...]
    compared: int
    excluded: int


def verify_restart(
    state: ClusterState,
    own: BrokerState,
    record: RestartRecord,
    log_ends: Mapping[PartitionId, Offset],
    wall_ns: int,
) -> Generator[None, None, Verification]:
    """Compare a broker with its record from before the restart; in steps.

    Args:
        state: Applied metadata, confirmed.
        own: The broker.
        record: Its record from before the restart.
        log_ends: Ends of the logs it serves or follows now.
        wall_ns: Wall clock.
    """
    blockers = _process_blockers(own, record, wall_ns)
    compared = excluded = 0
    for number, held in enumerate(record.replicas, 1):
        if number % STEP == 0:
            yield
        partition = state.partition(held.partition_id)
        if (
            partition is None
            or own.broker not in partition.replicas
            or partition.unclean_epoch != held.unclean_epoch
        ):
            excluded += 1
            continue
        compared += 1
        blocker = _replica_blocker(state, own.broker, partition, held, log_ends)
        if blocker is not None:
            blockers.append(blocker)
    return Verification(tuple(blockers), compared, excluded)


def _process_blockers(own: BrokerState, record: RestartRecord, wall_ns: int) -> list[Blocker]:
    found: list[Blocker] = []
    if own.incarnation_id == record.start_id or own.broker_epoch <= record.broker_epoch:
        text = f"broker {own.broker} was not restarted"
        if wall_ns >= record.expires:
            text += ", and the token has expired: check again"
        found.append(Blocker(BlockerKind.NOT_RESTARTED, text, (own.broker,)))
    if own.data_dir_id != record.data_dir_id:
        text = f"broker {own.broker} has another data directory than before"
        found.append(Blocker(BlockerKind.OTHER_DIRECTORY, text, (own.broker,)))
    if own.fenced:
        found.append(Blocker(BlockerKind.FENCED, f"broker {own.broker} is fenced", (own.broker,)))
    return found


def _replica_blocker(
    state: ClusterState,
    broker: BrokerId,
    partition: PartitionState,
    held: HeldReplica,
    log_ends: Mapping[PartitionId, Offset],
) -> Blocker | None:
    stream = state.streams[stream_of(held.partition_id)].name
    name = f"partition {partition.number} of stream {stream}"
    end = log_ends.get(held.partition_id)
    if end is None:
        text = f"{name} is not open"
    elif end < held.high_watermark:
        text = f"{name} ends at {end}, was committed to {held.high_watermark}"
    elif held.was_in_sync and broker not in partition.isr:
        text = f"{name} is not in sync here, as it was"
        return Blocker(BlockerKind.OUT_OF_SYNC, text, (broker,), stream, int(partition.number))
    else:
        return None
    return Blocker(BlockerKind.BEHIND, text, (broker,), stream, int(partition.number))

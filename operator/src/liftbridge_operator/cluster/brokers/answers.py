"""Convert messages of the Admin service into the planner's values."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from liftbridge_operator.cluster.brokers.port import Consent, ProcessReport, Verified
from liftbridge_operator.cluster.planning.observation import (
    BrokerReport,
    Member,
    MemberReport,
    Metadata,
    Partition,
    SelfReport,
)
from liftbridge_operator.model.units import MILLISECOND_NS
from liftbridge_proto.ext.v1 import admin_pb2

BLOCKERS_MAX: Final = 20


def process_of(start_id: str) -> str:
    """Return the pod UID in a start id, which is the UID, a dot, and random text."""
    return start_id.partition(".")[0]


def process_report(
    identity: admin_pb2.IdentityResponse, status: admin_pb2.BrokerStatusResponse | None
) -> ProcessReport:
    """Build a process' report; its connections are not queried before it has a cluster."""
    report = SelfReport(
        broker=identity.broker,
        start_id=process_of(identity.start_id),
        data_dir_id=identity.data_dir_id,
        cluster_id=identity.cluster_id,
        has_metadata=identity.has_metadata,
        is_retired=identity.is_retired,
        is_nats_connected=status is None
        or (status.is_nats_connected and status.are_peers_connected),
        is_disk_full=status is not None and status.is_disk_full,
        **({} if status is None else _details(status)),
    )
    return ProcessReport(report, identity.metadata_leader)


def _details(status: admin_pb2.BrokerStatusResponse) -> dict[str, Any]:
    """Return the report fields for status messages and for certificates."""
    damage = [
        f"{one.partition.stream}/{one.partition.partition}: {one.reason}" for one in status.offline
    ]
    return {
        "nats_servers": len(status.nats_cluster) or 1,
        "damage": damage[0] if damage else "",
        "clock_ms": status.time // MILLISECOND_NS,
        "certificates": tuple(
            (certificate.setting, certificate.fingerprint) for certificate in status.certificates
        ),
        "peer_keys": tuple(status.peer_keys),
    }


def metadata(
    group: admin_pb2.ClusterStatusResponse,
    brokers: admin_pb2.ListBrokersResponse,
    partitions: Sequence[admin_pb2.PartitionStatus],
) -> Metadata:
    """Build the metadata from several answers of one leader."""
    return Metadata(
        cluster_id=group.cluster_id,
        leader=group.metadata_leader,
        term=group.term,
        members=tuple(_member(member) for member in group.members),
        brokers=tuple(_broker(broker) for broker in brokers.brokers),
        partitions=tuple(_partition(partition) for partition in partitions),
        feature_level=group.feature_level,
        known_level=group.feature_level_available,
        catch_up_rate=group.catch_up_rate,
    )


def _member(one: admin_pb2.MemberStatus) -> MemberReport:
    return MemberReport(
        Member(one.member.broker, one.member.data_dir_id),
        is_voter=one.is_voter,
        is_alive=one.is_alive,
        match_index=one.match_index if one.HasField("match_index") else None,
    )


def _broker(one: admin_pb2.BrokerDescription) -> BrokerReport:
    return BrokerReport(
        broker=one.broker,
        data_dir_id=one.data_dir_id,
        start_id=process_of(one.start_id),
        broker_epoch=one.broker_epoch,
        is_fenced=one.is_fenced,
        is_cordoned=one.is_cordoned,
        is_draining=one.is_draining,
        is_stopping=one.is_stopping,
    )


def _partition(one: admin_pb2.PartitionStatus) -> Partition:
    return Partition(
        stream=one.partition.stream,
        number=one.partition.partition,
        leader=one.leader,
        partition_epoch=one.partition_epoch,
        replicas=tuple(replica.broker for replica in one.replicas),
        isr=tuple(one.isr),
        min_isr=one.min_isr,
        target=tuple(one.target),
    )


def consent(answer: admin_pb2.CheckRestartResponse) -> Consent:
    """Build a restart consent: a token, or blockers."""
    return Consent(
        token=answer.token,
        expires_ms=answer.expires // MILLISECOND_NS,
        partitions=answer.partitions,
        blockers=_texts(answer.blockers),
    )


def verified(answer: admin_pb2.VerifyRestartResponse) -> Verified:
    """Build the verification of a restart."""
    kinds = {blocker.kind for blocker in answer.blockers}
    return Verified(
        is_complete=answer.is_complete,
        is_other_directory=admin_pb2.RestartBlocker.KIND_OTHER_DIRECTORY in kinds,
        blockers=_texts(answer.blockers),
    )


def _texts(blockers: Iterable[admin_pb2.RestartBlocker]) -> tuple[str, ...]:
    found = [
        blocker.text or admin_pb2.RestartBlocker.Kind.Name(blocker.kind).removeprefix("KIND_")
        for blocker in blockers
    ]
    return tuple(found[:BLOCKERS_MAX])

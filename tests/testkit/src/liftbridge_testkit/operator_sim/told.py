"""Answers of the model's brokers, as values of the planner."""

from liftbridge_operator.cluster.planning.observation import (
    BrokerReport,
    MemberReport,
    Metadata,
    Partition,
    SelfReport,
)
from liftbridge_testkit.operator_sim.stage import Stage


def reports_of(world: Stage) -> tuple[SelfReport, ...]:
    """Return the reports of the processes that answer."""
    return tuple(
        SelfReport(
            process.broker,
            process.start_id,
            process.disk.dir_id,
            process.disk.cluster_id,
            process.disk.has_metadata,
            process.disk.is_retired,
            is_nats_connected=process.broker not in world.without_nats,
            is_disk_full=process.broker in world.full,
        )
        for process in sorted(world.brokers.processes.values(), key=lambda one: one.broker)
        if not world.hides(process.broker)
    )


def metadata_of(world: Stage) -> Metadata | None:
    """Return the report of the leader of the metadata group; None without one."""
    brokers = world.brokers
    if not brokers.has_quorum or not brokers.leader:
        return None
    return Metadata(
        cluster_id=brokers.cluster_id,
        leader=brokers.leader,
        term=brokers.term,
        members=tuple(
            MemberReport(
                one,
                votes,
                brokers.is_alive(one) and brokers.is_up(one.broker),
                brokers.match.get(one, 0),
            )
            for one, votes in brokers.members.items()
        ),
        brokers=tuple(
            BrokerReport(
                name,
                one.dir_id,
                one.start_id,
                one.epoch,
                one.is_fenced,
                one.is_cordoned,
                one.is_draining,
                one.is_stopping,
            )
            for name, one in brokers.registered.items()
        ),
        partitions=tuple(
            Partition(
                partition.key[0],
                partition.key[1],
                partition.leader,
                partition.epoch,
                partition.replicas,
                partition.isr,
                partition.min_isr,
                partition.target,
            )
            for partition in brokers.partitions.values()
        ),
        feature_level=brokers.feature_level,
        known_level=brokers.known_level(),
        catch_up_rate=brokers.catch_up_rate,
    )

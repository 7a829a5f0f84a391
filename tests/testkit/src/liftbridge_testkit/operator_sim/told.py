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
            one.broker,
            one.start_id,
            one.disk.dir_id,
            one.disk.cluster_id,
            one.disk.has_metadata,
            one.disk.is_retired,
            is_nats_connected=one.broker not in world.without_nats,
            is_disk_full=one.broker in world.full,
        )
        for one in sorted(world.brokers.processes.values(), key=lambda one: one.broker)
        if not world.hides(one.broker)
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
                one.key[0],
                one.key[1],
                one.leader,
                one.epoch,
                one.replicas,
                one.isr,
                one.min_isr,
                one.target,
            )
            for one in brokers.partitions.values()
        ),
        feature_level=brokers.feature_level,
        known_level=brokers.known_level(),
        catch_up_rate=brokers.catch_up_rate,
    )

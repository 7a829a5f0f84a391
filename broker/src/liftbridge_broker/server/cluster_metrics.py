"""Cluster samples of `/metrics`, by this broker's metadata: members, brokers, replicas."""

from collections.abc import Mapping

from liftbridge_broker.adapters.nats.peers import NatsTransport
from liftbridge_broker.adapters.observe.metrics import Sample
from liftbridge_broker.controller.state import effective_min_isr
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.node.assembly.core import Core


def cluster_samples(core: Core, transport: NatsTransport, now: Instant) -> Mapping[str, Sample]:
    """Return the samples of the cluster."""
    consensus = core.consensus
    return {
        "raft_term": consensus.term,
        "raft_leader": int(consensus.is_leader),
        "raft_leader_known": int(consensus.leader is not None),
        "raft_leader_changes_total": core.elections.metadata,
        "raft_commit_index": consensus.core.log.commit,
        "raft_voters": len(consensus.voters),
        "raft_learners": len(consensus.learners),
        "metadata_proposals_pending": core.node.context.metadata.pending_count,
        "partition_elections_total": core.elections.partitions,
        "peers_connected": int(transport.is_connected),
        "peers_authenticated": int(not core.sessions.keys.accepts_unsigned),
        "peer_frames_refused_total": {
            reason.value: count for reason, count in core.sessions.refused.items()
        },
        **_broker_samples(core, now),
        **_replica_samples(core),
        **_dropped(core, transport),
    }


def _broker_samples(core: Core, now: Instant) -> Mapping[str, Sample]:
    brokers = [broker for broker in core.node.state.brokers.values() if not broker.removed]
    fenced = sum(broker.fenced for broker in brokers)
    own, cluster = core.registration, core.node.cluster
    is_self_fenced = cluster is not None and cluster.is_self_fenced(now)
    date_ns = core.node.context.clock.time_for_age(now)
    return {
        "broker_clock_off_seconds": 0 if date_ns is None else core.clock.wall_ns() - date_ns,
        "cluster_time_known": int(date_ns is not None),
        "brokers": {"live": len(brokers) - fenced, "fenced": fenced},
        "brokers_ended_total": 0 if cluster is None else cluster.ended_count,
        "broker_fenced": int(own is None or own.fenced or is_self_fenced),
    }


def _replica_samples(core: Core) -> Mapping[str, Sample]:
    """Return counts of partitions that this broker leads, or holds if they have no leader."""
    me, state = core.node.broker, core.node.state
    led = under_replicated = under_min_isr = leaderless = 0
    for stream, partition in state.partitions():
        if partition.leader is None:
            leaderless += me in partition.replicas
        elif partition.leader == me:
            led += 1
            in_sync = len(partition.isr)
            under_replicated += in_sync < len(partition.replicas)
            under_min_isr += in_sync < effective_min_isr(stream, partition)
    return {
        "partitions_led": led,
        "partitions_under_replicated": under_replicated,
        "partitions_under_min_isr": under_min_isr,
        "partitions_leaderless": leaderless,
    }


def _dropped(core: Core, transport: NatsTransport) -> Mapping[str, Sample]:
    cluster = core.node.cluster
    reasons = {"link": transport.dropped_count}
    if cluster is not None:
        reasons["malformed"] = cluster.link.malformed_count + core.consensus.malformed_count
        reasons["foreign"] = cluster.peers.foreign_count
        reasons["impostor"] = cluster.impostor_count
    return {"peer_dropped_messages_total": reasons}

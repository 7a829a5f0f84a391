"""Settings of the cluster: identity, founding, metadata group, sessions, replication."""

from typing import Final

from liftbridge_broker.config.settings import Kind, Setting, Status
from liftbridge_broker.model.units import MIB, MILLISECOND_NS, MINUTE_NS

VOTERS_MAX: Final = 9

CLUSTERING: Final = (
    Setting(
        "clustering.server.id",
        Kind.TEXT,
        "",
        "Id of this broker.",
        derived="the id stored in the data directory, which always takes precedence, otherwise a "
        "new one",
        flags=("--server-id", "--id"),
    ),
    Setting(
        "clustering.namespace",
        Kind.TEXT,
        "liftbridge-default",
        "Prefix of all subjects that the brokers use among themselves; all brokers of a cluster "
        "have the same one.",
        flags=("--namespace", "--ns"),
    ),
    Setting(
        "clustering.start.id",
        Kind.TEXT,
        "",
        "Prefix of the name of each start of this broker, such as the uid of its pod; a dot and "
        "random text follow.",
        is_original=False,
    ),
    Setting(
        "clustering.zone",
        Kind.TEXT,
        "",
        "Zone or rack that this broker is in; the replicas of a partition are placed in different "
        "ones.",
        is_original=False,
    ),
    Setting(
        "clustering.secret.file",
        Kind.TEXT,
        "",
        "File with the keys with which the brokers of a cluster authenticate each other, one per "
        "line: the first signs, all verify. It is read again when it changes. Without it, anyone "
        "who may publish on NATS can pose as a broker.",
        is_original=False,
    ),
    Setting(
        "clustering.raft.snapshot.retain",
        Kind.INTEGER,
        "2",
        "Metadata snapshots to keep.",
        minimum=1,
        maximum=1_000,
    ),
    Setting(
        "clustering.raft.snapshot.threshold",
        Kind.INTEGER,
        "8192",
        "Metadata entries between two snapshots; 0 for 8192.",
    ),
    Setting(
        "clustering.raft.cache.size",
        Kind.INTEGER,
        "512",
        "Metadata entries the original keeps in memory.",
        status=Status.NO_EFFECT,
        reason="entries are kept in memory until a snapshot covers them",
    ),
    Setting(
        "clustering.raft.bootstrap.seed",
        Kind.BOOLEAN,
        "false",
        "Whether this broker founds a cluster when its data directory is empty and no other broker "
        "knows a cluster, even if others are looking for one too. Only one broker of a cluster may "
        "be the seed.",
        flags=("--raft-bootstrap-seed",),
    ),
    Setting(
        "clustering.raft.bootstrap.peers",
        Kind.LIST,
        "",
        "Ids of the brokers that found the cluster together when the data directories of all of "
        "them are empty; this broker need not be listed. Requires `clustering.server.id`, and "
        "takes precedence over the seed.",
        flags=("--raft-bootstrap-peers",),
    ),
    Setting(
        "clustering.raft.bootstrap.wait",
        Kind.BOOLEAN,
        "false",
        "Whether this broker never founds a cluster and waits until it finds one to join.",
        is_original=False,
    ),
    Setting(
        "clustering.raft.max.quorum.size",
        Kind.INTEGER,
        "0",
        "Largest number of brokers that vote on metadata; other brokers only follow. 0 for 5.",
        maximum=VOTERS_MAX,
    ),
    Setting(
        "clustering.raft.heartbeat.interval",
        Kind.DURATION,
        "100ms",
        "Time between two heartbeats of the metadata leader.",
        minimum=MILLISECOND_NS,
        maximum=10 * MINUTE_NS,
        is_original=False,
    ),
    Setting(
        "clustering.raft.election.timeout",
        Kind.DURATION,
        "500ms",
        "Silence of the metadata leader after which another one is elected; a random time of up to "
        "half of it is added.",
        minimum=10 * MILLISECOND_NS,
        maximum=10 * MINUTE_NS,
        is_original=False,
    ),
    Setting(
        "clustering.broker.heartbeat.interval",
        Kind.DURATION,
        "150ms",
        "Time between two heartbeats of a broker to the metadata leader.",
        minimum=MILLISECOND_NS,
        maximum=10 * MINUTE_NS,
        is_original=False,
    ),
    Setting(
        "clustering.broker.session.timeout",
        Kind.DURATION,
        "1500ms",
        "Silence after which a broker is fenced: it loses its leaderships and its places in "
        "in-sync sets. It fences itself equally fast.",
        minimum=10 * MILLISECOND_NS,
        maximum=10 * MINUTE_NS,
        is_original=False,
    ),
    Setting(
        "clustering.leader.balance.interval",
        Kind.DURATION,
        "5m",
        "Time between two checks for leaderships to return to the first replica; 0 for never.",
        is_original=False,
    ),
    Setting(
        "clustering.replica.max.lag.time",
        Kind.DURATION,
        "700ms",
        "Time after which a replica that is behind leaves the in-sync set if enough others stay in "
        "it; if too few would stay, the time is 10s, or this time if it is longer. The original "
        "has 15s.",
        minimum=MILLISECOND_NS,
        maximum=60 * MINUTE_NS,
    ),
    Setting(
        "clustering.replica.max.leader.timeout",
        Kind.DURATION,
        "600ms",
        "Silence of the leader of a partition after which a replica reports it; 0.2ms more for "
        "each partition of the replica's broker that it leads. The original has 15s.",
        minimum=10 * MILLISECOND_NS,
        maximum=60 * MINUTE_NS,
    ),
    Setting(
        "clustering.replica.max.idle.wait",
        Kind.DURATION,
        "300ms",
        "Longest time that a leader holds the fetch of a replica that has everything; never longer "
        "than half of `clustering.replica.max.leader.timeout`. The original has 10s.",
        minimum=MILLISECOND_NS,
        maximum=60 * MINUTE_NS,
    ),
    Setting(
        "clustering.replica.fetch.timeout",
        Kind.DURATION,
        "1500ms",
        "Time after which the fetch of a replica counts as lost. The original has 3s.",
        minimum=10 * MILLISECOND_NS,
        maximum=60 * MINUTE_NS,
    ),
    Setting(
        "clustering.min.insync.replicas",
        Kind.INTEGER,
        "0",
        "In-sync replicas that a partition needs to commit. With 0, two if there are three "
        "replicas or more, otherwise one; the original needs one.",
        minimum=0,
        maximum=1_000,
        is_reloadable=True,
    ),
    Setting(
        "clustering.replication.max.bytes",
        Kind.SIZE,
        "1MiB",
        "Largest size of a stored message.",
        minimum=1_024,
        maximum=256 * MIB,
    ),
)

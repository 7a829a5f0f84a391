"""Settings of the cluster: who this broker is, whom it founds a cluster with, how it replicates."""

from typing import Final

from liftbridge_broker.config.settings import Kind, Setting, Status

_MILLISECOND: Final = 1_000_000
_SECOND: Final = 1_000 * _MILLISECOND
_MINUTE: Final = 60 * _SECOND
_MIB: Final = 1 << 20

VOTERS_MAX: Final = 9

CLUSTERING: Final = (
    Setting(
        "clustering.server.id",
        Kind.TEXT,
        "",
        "Id of this broker.",
        derived="the id stored in the data directory, which always wins, otherwise a new one",
        flags=("--server-id", "--id"),
    ),
    Setting(
        "clustering.namespace",
        Kind.TEXT,
        "liftbridge-default",
        "Prefix of all subjects that belong to the brokers themselves; brokers of one cluster have "
        "the same.",
        flags=("--namespace", "--ns"),
    ),
    Setting(
        "clustering.start.id",
        Kind.TEXT,
        "",
        "What the name of each start of this broker begins with, such as the uid of its pod; "
        "random text follows after a dot.",
        is_original=False,
    ),
    Setting(
        "clustering.zone",
        Kind.TEXT,
        "",
        "Zone or rack this broker stands in; the replicas of a partition go to different ones.",
        is_original=False,
    ),
    Setting(
        "clustering.secret.file",
        Kind.TEXT,
        "",
        "File with the keys by which the brokers of a cluster recognise one another, one a line: "
        "the first signs, all verify. It is read again when it changes. Without it, whoever may "
        "publish on NATS may speak as a broker.",
        is_original=False,
    ),
    Setting(
        "clustering.raft.snapshot.retain",
        Kind.INTEGER,
        "2",
        "Metadata snapshots that are kept.",
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
        "Whether this broker, when its data directory is empty and nobody knows a cluster, founds "
        "one although others look for one too. One broker of a cluster may be the seed.",
        flags=("--raft-bootstrap-seed",),
    ),
    Setting(
        "clustering.raft.bootstrap.peers",
        Kind.LIST,
        "",
        "Ids of the brokers that found the cluster together, when the data directories of all of "
        "them are empty; this broker need not be named. Needs `clustering.server.id`, and goes "
        "before the seed.",
        flags=("--raft-bootstrap-peers",),
    ),
    Setting(
        "clustering.raft.bootstrap.wait",
        Kind.BOOLEAN,
        "false",
        "Whether this broker founds no cluster and waits until it finds one to join.",
        is_original=False,
    ),
    Setting(
        "clustering.raft.max.quorum.size",
        Kind.INTEGER,
        "0",
        "Most brokers that vote on metadata; the others only follow. 0 for 5.",
        maximum=VOTERS_MAX,
    ),
    Setting(
        "clustering.raft.heartbeat.interval",
        Kind.DURATION,
        "100ms",
        "Time between two signs of life of the metadata leader.",
        minimum=_MILLISECOND,
        maximum=10 * _MINUTE,
        is_original=False,
    ),
    Setting(
        "clustering.raft.election.timeout",
        Kind.DURATION,
        "500ms",
        "Silence of the metadata leader before another is elected; up to half of it is added by "
        "chance.",
        minimum=10 * _MILLISECOND,
        maximum=10 * _MINUTE,
        is_original=False,
    ),
    Setting(
        "clustering.broker.heartbeat.interval",
        Kind.DURATION,
        "150ms",
        "Time between two signs of life of a broker to the metadata leader.",
        minimum=_MILLISECOND,
        maximum=10 * _MINUTE,
        is_original=False,
    ),
    Setting(
        "clustering.broker.session.timeout",
        Kind.DURATION,
        "1500ms",
        "Silence after which a broker is fenced: it loses its leaderships and its places in "
        "in-sync sets. It fences itself as fast.",
        minimum=10 * _MILLISECOND,
        maximum=10 * _MINUTE,
        is_original=False,
    ),
    Setting(
        "clustering.leader.balance.interval",
        Kind.DURATION,
        "5m",
        "Time between two looks for leaderships to give back to the first replica; 0 for never.",
        is_original=False,
    ),
    Setting(
        "clustering.replica.max.lag.time",
        Kind.DURATION,
        "700ms",
        "Time after which a replica that is behind leaves the in-sync set, where enough others "
        "stay in it; where too few would, it is 10s, or this time when it is longer. The original "
        "has 15s.",
        minimum=_MILLISECOND,
        maximum=60 * _MINUTE,
    ),
    Setting(
        "clustering.replica.max.leader.timeout",
        Kind.DURATION,
        "600ms",
        "Silence after which a replica reports the leader of its partition. The original has 15s.",
        minimum=10 * _MILLISECOND,
        maximum=60 * _MINUTE,
    ),
    Setting(
        "clustering.replica.max.idle.wait",
        Kind.DURATION,
        "300ms",
        "Longest time a leader holds the fetch of a replica that has everything; never longer than "
        "half of `clustering.replica.max.leader.timeout`. The original has 10s.",
        minimum=_MILLISECOND,
        maximum=60 * _MINUTE,
    ),
    Setting(
        "clustering.replica.fetch.timeout",
        Kind.DURATION,
        "1500ms",
        "Time after which the fetch of a replica counts as lost. The original has 3s.",
        minimum=10 * _MILLISECOND,
        maximum=60 * _MINUTE,
    ),
    Setting(
        "clustering.min.insync.replicas",
        Kind.INTEGER,
        "0",
        "In-sync replicas a partition needs to commit. With 0, two where there are three replicas "
        "or more, else one; the original needs one.",
        minimum=0,
        maximum=1_000,
        is_reloadable=True,
    ),
    Setting(
        "clustering.replication.max.bytes",
        Kind.SIZE,
        "1MiB",
        "Largest stored message.",
        minimum=1_024,
        maximum=256 * _MIB,
    ),
)

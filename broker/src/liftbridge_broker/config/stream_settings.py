"""Settings of stored data: streams, limits, activity, cursors, groups."""

from typing import Final

from liftbridge_broker.config.settings import Kind, Setting, Status
from liftbridge_broker.model.units import HOUR_NS, MIB, MILLISECOND_NS, SECOND_NS

STREAMS: Final = (
    Setting(
        "streams.retention.max.bytes",
        Kind.SIZE,
        "0",
        "Size that a partition may reach before its oldest segments are removed; 0 for no limit.",
        is_reloadable=True,
    ),
    Setting(
        "streams.retention.max.messages",
        Kind.INTEGER,
        "0",
        "Messages that a partition may hold before its oldest segments are removed; 0 for no "
        "limit.",
        is_reloadable=True,
    ),
    Setting(
        "streams.retention.max.age",
        Kind.DURATION,
        "168h",
        "Age after which segments are removed; 0 for no limit.",
        is_reloadable=True,
    ),
    Setting(
        "streams.cleaner.interval",
        Kind.DURATION,
        "5m",
        "Time between two passes of retention and compaction over a partition.",
        minimum=MILLISECOND_NS,
        is_reloadable=True,
    ),
    Setting(
        "streams.segment.max.bytes",
        Kind.SIZE,
        "256MiB",
        "Size at which a new segment begins; 0 means 1GiB, and more than 2GiB means 2GiB.",
        is_reloadable=True,
    ),
    Setting(
        "streams.segment.max.age",
        Kind.DURATION,
        "",
        "Age at which a new segment begins, at least 1s; 0 means not set.",
        derived="the value of `streams.retention.max.age`",
        is_reloadable=True,
    ),
    Setting(
        "streams.compact.enabled",
        Kind.BOOLEAN,
        "false",
        "Whether only the last message of each key is kept.",
        is_reloadable=True,
    ),
    Setting(
        "streams.compact.max.goroutines",
        Kind.INTEGER,
        "10",
        "Number of segments that the original compacts in parallel.",
        maximum=10_000,
        status=Status.NO_EFFECT,
        reason="compaction runs in one helper process",
    ),
    Setting(
        "streams.tombstone.retention",
        Kind.DURATION,
        "0",
        "Age after which compaction removes a tombstone, a message with a key and an empty value; "
        "0 keeps tombstones.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "streams.auto.pause.time",
        Kind.DURATION,
        "0",
        "Idle time after which a partition is paused; 0 for never.",
        is_reloadable=True,
    ),
    Setting(
        "streams.auto.pause.disable.if.subscribers",
        Kind.BOOLEAN,
        "false",
        "Whether a partition with subscribers is never paused for being idle.",
        is_reloadable=True,
    ),
    Setting(
        "streams.concurrency.control",
        Kind.BOOLEAN,
        "false",
        "Whether publishes state the offset they expect and are refused when the offset is another "
        "one.",
        is_reloadable=True,
    ),
    Setting(
        "streams.encryption",
        Kind.BOOLEAN,
        "false",
        "Whether messages of new streams are encrypted on disk, unless a request states otherwise. "
        "A stream stays as it was created.",
        is_reloadable=True,
    ),
    Setting(
        "encryption.key",
        Kind.TEXT,
        "",
        "Master key of 16 or 32 bytes, the text itself, as in the original; best given by the "
        "environment variable. Its id is `env-` and eight digits, which the log shows.",
        is_secret=True,
    ),
    Setting(
        "encryption.keys.file",
        Kind.TEXT,
        "",
        "File with the master keys of encrypted streams, one per line: an id, a blank, and 64 "
        "hexadecimal digits. The first one encrypts until the cluster has chosen another. It is "
        "read again when it changes.",
        is_original=False,
    ),
    Setting(
        "encryption.keys.command",
        Kind.TEXT,
        "",
        "Program that asks a key service, such as Vault, to encrypt and decrypt the keys of "
        "streams; it reads a request from its standard input and is run without arguments.",
        is_original=False,
    ),
    Setting(
        "streams.fsync.policy",
        Kind.CHOICE,
        "interval",
        "When appended messages are written to disk: whenever the system does it, within an "
        "interval, before the acknowledgement, or before it only while the in-sync set has no "
        "replica to spare. A stream keeps the policy of the broker that created it; AlterStream "
        "changes it.",
        choices=("never", "interval", "commit", "auto"),
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "streams.unclean.mode",
        Kind.CHOICE,
        "balanced",
        "Who may elect a replica that might lack acknowledged messages when no other is left: an "
        "operator, the brokers once all replicas that were last known to be complete have "
        "answered, or the brokers once some have. A stream keeps the mode of the broker that "
        "created it; AlterStream changes it.",
        choices=("manual", "balanced", "proactive"),
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "streams.fsync.interval",
        Kind.DURATION,
        "1s",
        "Longest time that messages wait to be synced to disk under policy `interval`.",
        minimum=MILLISECOND_NS,
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "streams.fsync.bytes",
        Kind.SIZE,
        "8MiB",
        "Most bytes of a partition that wait to be synced to disk under policy `interval`.",
        minimum=1,
        is_original=False,
        is_reloadable=True,
    ),
)

LIMITS: Final = (
    Setting(
        "streams.max.count",
        Kind.INTEGER,
        "100000",
        "Largest number of streams.",
        is_original=False,
        is_reloadable=True,
        minimum=1,
        maximum=10_000_000,
    ),
    Setting(
        "streams.max.partitions",
        Kind.INTEGER,
        "1000",
        "Largest number of partitions of one stream.",
        is_original=False,
        is_reloadable=True,
        minimum=1,
        maximum=1_000_000,
    ),
    Setting(
        "subscriptions.max",
        Kind.INTEGER,
        "10000",
        "Largest number of subscriptions open on this broker. A bulk read counts as one, and a "
        "call that waits for new records counts as one for each ten partitions.",
        is_original=False,
        is_reloadable=True,
        minimum=1,
        maximum=1_000_000,
    ),
    Setting(
        "publish.pending.max.bytes",
        Kind.SIZE,
        "64MiB",
        "Bytes that wait for acks, or for NATS to accept them; above it, publishers have to wait.",
        is_original=False,
        is_reloadable=True,
        minimum=MIB,
    ),
    Setting(
        "publishers.max",
        Kind.INTEGER,
        "1000",
        "Idempotent publishers that a partition remembers; above it, the one that has been silent "
        "the longest is forgotten.",
        is_original=False,
        is_reloadable=True,
        minimum=1,
        maximum=1_000_000,
    ),
    Setting(
        "publishers.ttl",
        Kind.DURATION,
        "168h",
        "Silence after which an idempotent publisher is forgotten.",
        is_original=False,
        is_reloadable=True,
        minimum=SECOND_NS,
    ),
)

FEATURES: Final = (
    Setting(
        "activity.stream.enabled",
        Kind.BOOLEAN,
        "false",
        "Whether this broker turns on the stream `__activity`, in which each change of a stream is "
        "an event. It is on while any broker of the cluster has this setting.",
    ),
    Setting(
        "activity.stream.publish.timeout",
        Kind.DURATION,
        "5s",
        "Time that storing an event in the activity stream may take; after it, the delay is "
        "reported, and the broker keeps trying.",
        minimum=MILLISECOND_NS,
    ),
    Setting(
        "activity.stream.publish.ack.policy",
        Kind.CHOICE,
        "all",
        "When an event of the activity stream counts as stored: `all` once every in-sync replica "
        "has it; `leader` and `none` once its leader has it, so that the loss of that broker loses "
        "the last events.",
        choices=("none", "leader", "all"),
    ),
    Setting(
        "cursors.stream.partitions",
        Kind.INTEGER,
        "0",
        "Partitions of the stream that stores cursors, fixed once it exists; 0 turns cursors off.",
        maximum=10_000,
    ),
    Setting(
        "cursors.stream.replication.factor",
        Kind.INTEGER,
        "-1",
        "Replicas of the stream that stores cursors; -1 for every broker.",
        minimum=-1,
        maximum=1_000,
    ),
    Setting(
        "cursors.stream.auto.pause.time",
        Kind.DURATION,
        "1m",
        "Idle time after which a partition of the stream that stores cursors is paused; 0 for "
        "never.",
    ),
    Setting(
        "groups.consumer.timeout",
        Kind.DURATION,
        "15s",
        "Silence after which a member leaves its consumer group; 1s to 1h.",
        minimum=SECOND_NS,
        maximum=HOUR_NS,
        is_reloadable=True,
    ),
    Setting(
        "groups.coordinator.timeout",
        Kind.DURATION,
        "15s",
        "Silence of the coordinator of a consumer group after which members report it, and time "
        "within which more than half of them must do so; 1s to 1h.",
        minimum=SECOND_NS,
        maximum=HOUR_NS,
        is_reloadable=True,
    ),
)

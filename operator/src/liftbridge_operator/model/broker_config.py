"""Settings of the broker: the common ones typed, all others by the names the broker has for them.

A typed field names its setting, so that the configuration of the broker, the settings that `extra`
may not repeat and the reference come from one place. Settings that the operator decides are refused
in `extra`, with the name of the field that determines them; all others in `extra` are checked with
a copy of the broker's own table before a pod changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from liftbridge_operator.model.base import Model, Rule, RuleReason, option, section
from liftbridge_operator.model.values import (
    INTEGER_MAX,
    Duration,
    Size,
    size_bytes,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """Marks a typed field.

    Attributes:
        key: Setting of the broker that it sets.
        is_size: Whether the value is an amount of bytes.
    """

    key: str
    is_size: bool = False


@dataclass(frozen=True, slots=True)
class Owned:
    """Settings that something else in the resource determines.

    Attributes:
        place: What determines them, as worded in a refusal.
        name: Part of the name of the rule.
        keys: Full names of settings.
        prefixes: Prefixes of the names of settings.
    """

    place: str
    name: str
    keys: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


OWNED: Final = (
    Owned(
        "spec.listeners",
        "listeners",
        ("listen", "listen.tls", "host", "port"),
        ("listeners",),
    ),
    Owned("spec.tls", "tls", prefixes=("tls.",)),
    Owned(
        "spec.access",
        "access",
        ("auth.methods", "auth.certificate.rules"),
        ("access.", "auth.jwt."),
    ),
    Owned("spec.encryption", "encryption", ("streams.encryption",), ("encryption.",)),
    Owned("spec.nats", "nats", ("clustering.namespace", "logging.nats"), ("nats.",)),
    Owned("spec.topology", "topology", ("clustering.zone",)),
    Owned("spec.disruption", "disruption", ("shutdown.handover.timeout",)),
    Owned(
        "the operator itself",
        "operator",
        (
            "data.dir",
            "clustering.server.id",
            "clustering.start.id",
            "clustering.secret.file",
            "metrics.listen",
            "logging.format",
        ),
        ("clustering.raft.bootstrap.", "admin."),
    ),
    Owned(
        "the number of brokers: 1, 2, 3, 3, 5 voters for 1, 2, 3, 4 and 5 or more",
        "voters",
        ("clustering.raft.max.quorum.size",),
    ),
)
"""Settings that `extra` may not hold."""


class LogLevel(StrEnum):
    """Lowest level of events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class FsyncPolicy(StrEnum):
    """When appended messages are written to disk."""

    NEVER = "never"
    INTERVAL = "interval"
    COMMIT = "commit"
    AUTO = "auto"


class UncleanMode(StrEnum):
    """Who may elect a replica that might lack acknowledged messages."""

    MANUAL = "manual"
    BALANCED = "balanced"
    PROACTIVE = "proactive"


class StreamDefaults(Model):
    """Defaults for streams."""

    retention_max_bytes: Annotated[
        Size | None, Setting("streams.retention.max.bytes", is_size=True)
    ] = option(
        "Size that a partition may reach before its oldest segments are removed; 0 for no limit."
    )
    retention_max_messages: Annotated[int | None, Setting("streams.retention.max.messages")] = (
        option(
            "Messages that a partition may hold before its oldest segments are removed; 0 for no "
            "limit.",
            ge=0,
            le=INTEGER_MAX,
        )
    )
    retention_max_age: Annotated[Duration | None, Setting("streams.retention.max.age")] = option(
        "Age after which segments are removed; 0 for no limit."
    )
    cleaner_interval: Annotated[Duration | None, Setting("streams.cleaner.interval")] = option(
        "Time between two passes of retention and compaction over a partition."
    )
    segment_max_bytes: Annotated[
        Size | None, Setting("streams.segment.max.bytes", is_size=True)
    ] = option("Size at which a new segment begins; 0 means 1GiB, and more than 2GiB means 2GiB.")
    segment_max_age: Annotated[Duration | None, Setting("streams.segment.max.age")] = option(
        "Age at which a new segment begins, at least 1s; 0 means not set."
    )
    compact_enabled: Annotated[bool | None, Setting("streams.compact.enabled")] = option(
        "Whether only the last message of each key is kept."
    )
    tombstone_retention: Annotated[Duration | None, Setting("streams.tombstone.retention")] = (
        option(
            "Age after which compaction removes a tombstone, a message with a key and an empty "
            "value; 0 keeps tombstones."
        )
    )
    auto_pause_time: Annotated[Duration | None, Setting("streams.auto.pause.time")] = option(
        "Idle time after which a partition is paused; 0 for never."
    )
    auto_pause_disable_if_subscribers: Annotated[
        bool | None, Setting("streams.auto.pause.disable.if.subscribers")
    ] = option("Whether a partition with subscribers is never paused for being idle.")
    min_isr: Annotated[int | None, Setting("clustering.min.insync.replicas")] = option(
        "In-sync replicas that a partition needs to commit. With 0, two if there are three "
        "replicas or more, otherwise one.",
        ge=0,
        le=100,
    )
    fsync_policy: Annotated[FsyncPolicy | None, Setting("streams.fsync.policy")] = option(
        "When appended messages are written to disk: whenever the system does it, within an "
        "interval, before the acknowledgement, or before it only while the in-sync set has no "
        "replica to spare. A stream keeps the policy of the broker that created it."
    )
    unclean_mode: Annotated[UncleanMode | None, Setting("streams.unclean.mode")] = option(
        "Who may elect a replica that might lack acknowledged messages when no other is left: an "
        "operator, the brokers once all replicas that were last known to be complete have "
        "answered, or the brokers once some have. A stream keeps the mode of the broker that "
        "created it."
    )


class Cursors(Model):
    """The stream that stores cursors of consumers."""

    partitions: Annotated[int | None, Setting("cursors.stream.partitions")] = option(
        "Partitions of the stream that stores cursors, fixed once it exists; 0 turns cursors off.",
        ge=0,
        le=10_000,
    )
    replication_factor: Annotated[int | None, Setting("cursors.stream.replication.factor")] = (
        option("Replicas of the stream that stores cursors; -1 for every broker.", ge=-1, le=100)
    )


class BrokerLimits(Model):
    """Limits of one broker."""

    streams: Annotated[int | None, Setting("streams.max.count")] = option(
        "Largest number of streams.", ge=1, le=1_000_000
    )
    stream_partitions: Annotated[int | None, Setting("streams.max.partitions")] = option(
        "Largest number of partitions of one stream.", ge=1, le=10_000
    )
    connections: Annotated[int | None, Setting("grpc.max.connections")] = option(
        "Open client connections. At the limit, a new one takes the place of one without an open "
        "call.",
        ge=1,
        le=1_000_000,
    )
    record_bytes: Annotated[
        Size | None, Setting("clustering.replication.max.bytes", is_size=True)
    ] = option("Largest size of a stored message.")


def owned_rules() -> Iterator[Rule]:
    """Yield for each place a rule that refuses its settings in `extra` and names the place.

    Messages do not say which setting was found: the API server knows no bound for names in `extra`,
    so it would refuse an expression with them as too costly.
    """
    for owned in OWNED:
        tests = [f"key in [{', '.join(map(_quoted, owned.keys))}]"] if owned.keys else []
        tests += [f"key.startsWith({_quoted(prefix)})" for prefix in owned.prefixes]
        test = " || ".join(tests)
        yield Rule(
            f"config-extra-{owned.name}",
            f"!has(self.extra) || !self.extra.exists(key, {test})",
            f"{_listed(owned)} are determined by {owned.place}",
            field=".extra",
            reason=RuleReason.FORBIDDEN,
        )


def _listed(owned: Owned) -> str:
    return ", ".join([*owned.keys, *(f"{prefix}*" for prefix in owned.prefixes)])


def _quoted(text: str) -> str:
    return f"'{text}'"


def typed_settings(model: type[Model], path: str = "") -> dict[str, str]:
    """Settings that have typed fields, with the paths of these fields."""
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}".lstrip(".")
        for mark in field.metadata:
            if isinstance(mark, Setting):
                found[mark.key] = here
        if isinstance(field.annotation, type) and issubclass(field.annotation, Model):
            found |= typed_settings(field.annotation, here)
    return found


def typed_rule(sections: dict[str, type[Model]], plain: dict[str, str]) -> Rule:
    """Return the rule that refuses settings in `extra` that have typed fields."""
    keys = dict(plain)
    for name, model in sections.items():
        keys |= typed_settings(model, name)
    listed = ", ".join(_quoted(key) for key in sorted(keys))
    test = f"key in [{listed}]"
    return Rule(
        "config-extra-typed",
        f"!has(self.extra) || !self.extra.exists(key, {test})",
        "these settings have their own fields outside extra",
        field=".extra",
        reason=RuleReason.FORBIDDEN,
    )


class BrokerConfig(Model):
    """Settings of the broker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *owned_rules(),
        typed_rule(
            {"streams": StreamDefaults, "cursors": Cursors, "limits": BrokerLimits},
            {"logging.level": "logLevel", "shutdown.timeout": "shutdownTimeout"},
        ),
        Rule(
            "config-extra-names",
            "!has(self.extra) || "
            "self.extra.all(key, size(key) <= 128 && key.matches('^[a-z]+([.][a-z]+)*$'))",
            "setting names are lower-case words separated by dots",
            field=".extra",
        ),
    )
    log_level: Annotated[LogLevel, Setting("logging.level")] = Field(
        default=LogLevel.INFO, description="Lowest level of events that are logged."
    )
    shutdown_timeout: Annotated[Duration | None, Setting("shutdown.timeout")] = option(
        "Time for draining after SIGTERM or SIGINT before open calls are cut off."
    )
    streams: StreamDefaults = section(StreamDefaults, "Defaults for streams.")
    cursors: Cursors = section(Cursors, "The stream that stores cursors of consumers.")
    limits: BrokerLimits = section(BrokerLimits, "Limits of one broker.")
    extra: Annotated[
        dict[str, Annotated[str, StringConstraints(max_length=1_024)]],
        Field(max_length=64),
    ] = Field(
        default={},
        description="Further settings of the broker by name, such as "
        "`clustering.replica.max.lag.time: 1s`. Settings determined by other fields are rejected; "
        "names and values of the others are checked before any pod changes. Settings that conflict "
        "only with each other fail in the first pod, which then gets the former settings back.",
    )


def broker_settings(config: BrokerConfig) -> dict[str, str]:
    """Settings of a configuration, by name, in the syntax of the broker's file."""
    given = dict(_given(config))
    given.update(config.extra)
    return dict(sorted(given.items()))


def _given(model: Model) -> Iterator[tuple[str, str]]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, Model):
            yield from _given(value)
        elif value is not None:
            for mark in field.metadata:
                if isinstance(mark, Setting):
                    yield mark.key, _text_of(value, mark)


def _text_of(value: object, setting: Setting) -> str:
    """Convert a value to the syntax of the broker, which lacks some units of Kubernetes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(size_bytes(str(value))) if setting.is_size else str(value)

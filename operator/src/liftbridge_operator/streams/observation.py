"""Observation of a stream, its resource and its cluster, as values.

Values from brokers are plain and small: an operator holds those of thousands of streams.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from liftbridge_operator.model.stream import StreamSpec
from liftbridge_operator.streams.settings import Settings


class ObservedPartition(NamedTuple):
    """One partition as stored in the metadata.

    Attributes:
        number: Its number.
        leader: Broker that leads it; empty without a leader.
        replicas: Brokers with a replica.
        in_sync: Number of in-sync replicas.
        min_isr: In-sync replicas that a commit needs.
        is_readonly: Whether publishes are refused.
        is_moving: Whether a reassignment is under way.
    """

    number: int
    leader: str
    replicas: tuple[str, ...]
    in_sync: int
    min_isr: int
    is_readonly: bool
    is_moving: bool


class ObservedStream(NamedTuple):
    """One stream as stored in the metadata.

    Attributes:
        stream_id: Unique id, never reused, not even for a new stream of its name.
        owner: Mark of the resource or program that manages it; empty for none.
        created_ns: Unix nanoseconds of its creation.
        settings: Settings in force, including defaults of the brokers.
    """

    stream_id: int
    name: str
    subject: str
    group: str
    factor: int
    partition_count: int
    owner: str
    created_ns: int
    settings: Settings
    partitions: tuple[ObservedPartition, ...]


class Snapshot(NamedTuple):
    """All streams of a cluster, by name.

    Attributes:
        streams: Streams without internal ones.
        now_s: Time of the request, by the monotonic clock of the operator.
        wall_ms: Time of the answer, in Unix milliseconds.
    """

    streams: dict[str, ObservedStream]
    now_s: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class PresentCondition:
    """A condition of the present status.

    Attributes:
        generation: Its `observedGeneration`.
        since: Its `lastTransitionTime`.
    """

    status: str
    reason: str
    message: str
    generation: int
    since: str


@dataclass(frozen=True, slots=True)
class Resource:
    """A `Stream` resource as read.

    Attributes:
        created: `metadata.creationTimestamp`.
        has_finalizer: Whether it has the finalizer of the operator.
        confirmed: Value of the annotation that confirms a deletion; empty for none.
        spec: None when it cannot be read.
        unread: Parse error of the specification; empty for none.
        creation_id: Id of the stream that the status names; empty for none.
        asked: Settings that the status lists as requested of that stream, now or before.
        conditions: Conditions of the status, by type.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    spec: StreamSpec | None
    unread: str = ""
    is_deleting: bool = False
    has_finalizer: bool = False
    confirmed: str = ""
    creation_id: str = ""
    is_adopted: bool = False
    asked: tuple[str, ...] = ()
    observed_generation: int = -1
    conditions: dict[str, PresentCondition] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Display name: `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def stream_name(self) -> str:
        """Name of its stream."""
        return (self.spec.stream_name if self.spec else None) or self.name

    @property
    def age(self) -> tuple[str, str]:
        """Sort key: creation time, then UID; the older of two resources has the lesser key."""
        return self.created, self.uid


class ClusterState(Enum):
    """State of a cluster; a hidden one may exist, but the operator may not read it."""

    MISSING = auto()
    HIDDEN = auto()
    DELETING = auto()
    PAUSED = auto()
    PRESENT = auto()


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """The cluster that a stream belongs to.

    Attributes:
        name: `namespace/name`.
        is_allowed: Whether it admits resources of the stream's namespace.
        answered: When brokers last answered, in RFC 3339; empty for never.
        is_heard: Whether that is recent enough for decisions.
    """

    name: str
    state: ClusterState
    is_allowed: bool = True
    answered: str = ""
    is_heard: bool = True


@dataclass(frozen=True, slots=True)
class Rival:
    """Another owner of the stream of a resource.

    Attributes:
        key: `namespace/name`, or the mark itself when it names no `Stream` resource.
        is_older: Whether it has precedence.
    """

    key: str
    is_older: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """Last refusal of a change.

    Attributes:
        what: The change, as `decide.change_of` names it.
        detail: Message of the refusal.
        is_due: Whether the change may be retried.
    """

    what: str
    detail: str
    is_due: bool


class Ask(Enum):
    """Fact that has to be looked up before a decision."""

    HOLDER = auto()
    MESSAGES = auto()
    NAMESPACE = auto()


class Unknown(Enum):
    """Marker of a fact that was not looked up yet."""

    UNKNOWN = auto()


UNKNOWN = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class Seen:
    """Observation of a pass, without the resource itself.

    Attributes:
        stream: None for no such stream.
        older: An older resource of the same stream that this process knows; empty for none.
        holder: Resource that the mark of the stream names; None when it no longer manages it.
        messages: Number of messages in the stream; None when not all leaders answered.
        is_ending: Whether the namespace of the resource is being deleted.
        is_namespaced: Whether the operator watches some namespaces only.
    """

    cluster: SeenCluster
    stream: ObservedStream | None
    is_namespaced: bool = False
    older: str = ""
    holder: Rival | Unknown | None = UNKNOWN
    messages: int | Unknown | None = UNKNOWN
    is_ending: bool | Unknown = UNKNOWN
    refused: Refused | None = None

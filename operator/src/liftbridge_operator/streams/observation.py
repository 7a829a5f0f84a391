"""What is known of a stream, of its resource and of its cluster, as values.

Values of the brokers are plain and small: an operator holds those of thousands of streams.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from liftbridge_operator.model.stream import StreamSpec
from liftbridge_operator.streams.settings import Settings


class ObservedPartition(NamedTuple):
    """One partition as the metadata says it is.

    Attributes:
        number: Its number.
        leader: Broker that leads it; empty for nobody.
        replicas: Brokers with a replica.
        in_sync: How many of them are in sync.
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
    """One stream as the metadata says it is.

    Attributes:
        stream_id: Never used again, also not for a new stream of its name.
        owner: Mark of whoever manages it; empty for nobody.
        created_ns: Unix nanoseconds of its creation.
        settings: In force, defaults of the brokers filled in.
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
        streams: Without those of the brokers themselves.
        now_s: When they were asked for, by the monotonic clock of the operator.
        wall_ms: When they answered, in Unix milliseconds.
    """

    streams: dict[str, ObservedStream]
    now_s: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Told:
    """A condition as the status has it.

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
    """A `Stream` as it was read.

    Attributes:
        created: `metadata.creationTimestamp`.
        has_finalizer: Whether our finalizer is on it.
        confirmed: Value of the annotation that confirms a deletion; empty for none.
        spec: None when it cannot be read.
        unread: Why it cannot.
        creation_id: Id of the stream that the status names; empty for none.
        asked: Settings that the status names as asked for of that stream, now or before.
        told: Conditions of the status, by type.
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
    told: dict[str, Told] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """For people: `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def stream_name(self) -> str:
        """Name of the stream it is about."""
        return (self.spec.stream_name if self.spec else None) or self.name

    @property
    def age(self) -> tuple[str, str]:
        """What the older of two resources has less of."""
        return self.created, self.uid


class ClusterState(Enum):
    """What is known of a cluster; one that is hidden may be there, and is not the operator's."""

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
        is_allowed: Whether it lets resources of the stream's namespace in.
        answered: When brokers last answered, in RFC 3339; empty for never.
        is_heard: Whether that is recent enough to go by.
    """

    name: str
    state: ClusterState
    is_allowed: bool = True
    answered: str = ""
    is_heard: bool = True


@dataclass(frozen=True, slots=True)
class Rival:
    """Another resource that stands in the way of one.

    Attributes:
        key: `namespace/name`, or the mark itself when no resource of ours made it.
        is_older: Whether it goes before.
    """

    key: str
    is_older: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """What the cluster said against a change the last time.

    Attributes:
        what: The change, as `decide.change_of` names it.
        detail: What it said.
        is_due: Whether it may be asked again.
    """

    what: str
    detail: str
    is_due: bool


class Ask(Enum):
    """What has to be looked up before it can be decided."""

    HOLDER = auto()
    MESSAGES = auto()
    NAMESPACE = auto()


class Unknown(Enum):
    """Whatever was not looked up yet."""

    UNKNOWN = auto()


UNKNOWN = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a pass has seen beside the resource.

    Attributes:
        stream: None for no such stream.
        older: An older resource of the same stream that is known in this process.
        holder: Resource that the mark of the stream names; None when it is gone, or lets go.
        messages: In the stream; None when not all partitions tell.
        is_ending: Whether the namespace of the resource is being deleted.
        is_namespaced: Whether the operator looks after some namespaces only.
    """

    cluster: SeenCluster
    stream: ObservedStream | None
    is_namespaced: bool = False
    older: str = ""
    holder: Rival | Unknown | None = UNKNOWN
    messages: int | Unknown | None = UNKNOWN
    is_ending: bool | Unknown = UNKNOWN
    refused: Refused | None = None

"""Values that Admin calls take and return. Log ends are exclusive."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple

from liftbridge_client.model import EPOCH
from liftbridge_proto.ext.v1 import admin_pb2, tokens_pb2

Role = Literal["leader", "voter", "learner", ""]

_ROLES: Final[dict[int, Role]] = {
    admin_pb2.BrokerDescription.ROLE_LEADER: "leader",
    admin_pb2.BrokerDescription.ROLE_VOTER: "voter",
    admin_pb2.BrokerDescription.ROLE_LEARNER: "learner",
}


class PartitionName(NamedTuple):
    """Name of a partition: its stream and its number."""

    stream: str
    partition: int


class Member(NamedTuple):
    """A member of the metadata group: a broker with its data directory."""

    broker: str
    data_dir_id: str


class Identity(NamedTuple):
    """Identity of a broker; without a cluster it has no cluster id and no metadata."""

    broker: str
    data_dir_id: str
    cluster_id: str
    has_metadata: bool
    is_retired: bool
    start_id: str
    metadata_leader: str


class MemberStatus(NamedTuple):
    """A member of the metadata group; only the metadata leader knows `match_index`."""

    broker: str
    data_dir_id: str
    is_voter: bool
    is_leader: bool
    is_alive: bool
    match_index: int | None


class ClusterStatus(NamedTuple):
    """The metadata group, the feature level and the catch-up rate.

    `catch_up_rate` is the limit, in bytes per second, for what each leader sends to replicas added
    by reassignments; 0 for no limit.
    """

    cluster_id: str
    metadata_leader: str
    term: int
    applied_index: int
    applied_hash: int
    feature_level: int
    feature_level_available: int
    members: Sequence[MemberStatus]
    catch_up_rate: int


class Restart(NamedTuple):
    """A start of a broker.

    `is_clean` is true if the previous process on the same data directory stopped cleanly.
    """

    start_id: str
    time: datetime
    is_clean: bool
    version: str


class ApiToken(NamedTuple):
    """An API token, without its secret.

    Attributes:
        id: Public part, which names the token.
        principal: Whom its bearer acts for.
        groups: Groups of the principal.
        created: When it was created.
        expires: When it ends; `None` for never.
        created_by: Principal that created it; empty if unknown.
    """

    id: str
    principal: str
    groups: Sequence[str]
    created: datetime
    expires: datetime | None
    created_by: str


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just created.

    Attributes:
        secret: The whole token, for its bearer; it cannot be retrieved again.
        token: Its description.
    """

    secret: str = field(repr=False)
    token: ApiToken


class Setting(NamedTuple):
    """A setting of a broker.

    Secrets are masked, and `source` is empty if the value is the default.
    """

    key: str
    value: str
    source: str
    is_dynamic: bool
    needs_restart: bool


class Reloaded(NamedTuple):
    """Changed settings: those now in effect, and those that take effect at a restart."""

    applied: Sequence[str]
    restart_needed: Sequence[str]


class Listener(NamedTuple):
    """Address of an additional listener of a broker, for clients."""

    name: str
    host: str
    port: int


class BrokerDescription(NamedTuple):
    """A broker: its role in the metadata group, its session, its load.

    `applied_index` is the metadata index that it last reported, `None` if unknown; `restarts` are
    its most recent starts, the current one last; `listeners` are those in addition to the first,
    which has `host` and `port`; `replicas_max` is how many replicas its open files and memory
    allow, 0 if unknown.
    """

    broker: str
    role: Role
    host: str
    port: int
    zone: str
    version: str
    feature_level: int
    start_id: str
    data_dir_id: str
    broker_epoch: int
    is_fenced: bool
    is_cordoned: bool
    is_draining: bool
    is_stopping: bool
    replicas: int
    leaders: int
    out_of_sync: int
    applied_index: int | None
    restarts: Sequence[Restart]
    listeners: Sequence[Listener] = ()
    replicas_max: int = 0


class BrokerStatus(NamedTuple):
    """Report of a broker about itself: connections, disk, configuration.

    `offline` maps each partition that it does not serve to the reason. `certificates` maps each
    setting that names a certificate file to the SHA-256 of that file. `nats_cluster` lists the
    connected NATS server and the servers that it has routes to; it is empty without a NATS cluster.
    `peer_keys` lists the ids of the keys that authenticate other brokers. The broker signs with the
    first key. The entry `open` means that it also accepts unsigned messages.
    """

    broker: str
    version: str
    time: datetime
    configuration_hash: str
    restart_needed: Sequence[str]
    is_nats_connected: bool
    are_peers_connected: bool
    is_disk_full: bool
    free_bytes: int
    log_bytes: int
    replicas: int
    leaders: int
    offline: dict[str, str]
    certificates: dict[str, str]
    nats_server: str
    nats_cluster: Sequence[str]
    peer_keys: Sequence[str]


class ReplicaStatus(NamedTuple):
    """A replica of a partition; fields that the answering broker does not know are `None`."""

    broker: str
    replica_epoch: int
    is_in_sync: bool
    log_end: int | None
    high_watermark: int | None
    flushed: int | None
    lag_ms: int | None


class PartitionStatus(NamedTuple):
    """A partition in the metadata, with its replicas."""

    stream: str
    partition: int
    stream_id: int
    leader: str
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[str]
    elr: Sequence[str]
    last_known_elr: Sequence[str]
    min_isr: int
    is_recovering: bool
    unclean_epoch: int
    is_paused: bool
    is_readonly: bool
    target: Sequence[str]
    replicas: Sequence[ReplicaStatus]


class Blocker(NamedTuple):
    """A reason why a restart is refused or not yet verified; `stream` may be empty."""

    kind: str
    stream: str
    partition: int
    brokers: Sequence[str]
    text: str


class RestartCheck(NamedTuple):
    """Result of a restart check; `token` is empty if the broker may not be restarted."""

    token: bytes
    expires: datetime | None
    blockers: Sequence[Blocker]
    accepted: Sequence[Blocker]
    partitions: int
    leaders: int


class RestartVerification(NamedTuple):
    """Result of verifying a restarted broker against the state that its token recorded."""

    is_complete: bool
    blockers: Sequence[Blocker]
    partitions: int
    excluded: int


class PartitionOutcome(NamedTuple):
    """Result for a partition of a request; `code` and `text` are empty on success."""

    stream: str
    partition: int
    code: str
    text: str


class Election(NamedTuple):
    """A newly elected leader."""

    leader: str
    leader_epoch: int
    partition_epoch: int


class Reassignment(NamedTuple):
    """A reassignment in progress."""

    stream: str
    partition: int
    replicas: Sequence[str]
    target: Sequence[str]
    adding: Sequence[str]
    removing: Sequence[str]
    caught_up: Sequence[str]
    partition_epoch: int


class MasterKeyStatus(NamedTuple):
    """A master key of encrypted streams.

    Attributes:
        key_id: Its id.
        is_current: Whether it wraps data keys from now on.
        streams: Streams whose data keys it wraps.
        brokers: Brokers that have reported it.
    """

    key_id: str
    is_current: bool
    streams: int
    brokers: tuple[str, ...]


class RewrappedKeys(NamedTuple):
    """Result of a rewrap: data keys rewrapped, and those still wrapped by another master key."""

    rewrapped: int
    left: int


def identity_of(found: admin_pb2.IdentityResponse) -> Identity:
    """Convert the API message of an identity."""
    return Identity(
        found.broker,
        found.data_dir_id,
        found.cluster_id,
        found.has_metadata,
        found.is_retired,
        found.start_id,
        found.metadata_leader,
    )


def cluster_of(found: admin_pb2.ClusterStatusResponse) -> ClusterStatus:
    """Convert the API message of a cluster."""
    members = tuple(
        MemberStatus(
            member.member.broker,
            member.member.data_dir_id,
            member.is_voter,
            member.is_leader,
            member.is_alive,
            member.match_index if member.HasField("match_index") else None,
        )
        for member in found.members
    )
    return ClusterStatus(
        found.cluster_id,
        found.metadata_leader,
        found.term,
        found.applied_index,
        found.applied_hash,
        found.feature_level,
        found.feature_level_available,
        members,
        found.catch_up_rate,
    )


def broker_of(one: admin_pb2.BrokerDescription) -> BrokerDescription:
    """Convert the API message of a broker."""
    return BrokerDescription(
        one.broker,
        _ROLES.get(one.role, ""),
        one.host,
        one.port,
        one.zone,
        one.version,
        one.feature_level,
        one.start_id,
        one.data_dir_id,
        one.broker_epoch,
        one.is_fenced,
        one.is_cordoned,
        one.is_draining,
        one.is_stopping,
        one.replicas,
        one.leaders,
        one.out_of_sync,
        one.applied_index if one.HasField("applied_index") else None,
        tuple(
            Restart(start.start_id, _time(start.time), start.is_clean, start.version)
            for start in one.restarts
        ),
        tuple(Listener(each.name, each.host, each.port) for each in one.listeners),
        one.replicas_max,
    )


def token_of(found: tokens_pb2.Token) -> ApiToken:
    """Convert the API message of a token."""
    expires = found.expires_seconds
    return ApiToken(
        found.id,
        found.principal,
        tuple(found.groups),
        EPOCH + timedelta(seconds=found.created_seconds),
        EPOCH + timedelta(seconds=expires) if expires else None,
        found.created_by,
    )


def settings_of(found: admin_pb2.ListSettingsResponse) -> Sequence[Setting]:
    """Convert the API messages of settings."""
    return tuple(
        Setting(
            setting.key, setting.value, setting.source, setting.is_dynamic, setting.needs_restart
        )
        for setting in found.settings
    )


def status_of(found: admin_pb2.BrokerStatusResponse) -> BrokerStatus:
    """Convert the API message of a broker's status."""
    return BrokerStatus(
        found.broker,
        found.version,
        _time(found.time),
        found.configuration_hash,
        tuple(found.restart_needed),
        found.is_nats_connected,
        found.are_peers_connected,
        found.is_disk_full,
        found.free_bytes,
        found.log_bytes,
        found.replicas,
        found.leaders,
        {f"{one.partition.stream}/{one.partition.partition}": one.reason for one in found.offline},
        {certificate.setting: certificate.fingerprint for certificate in found.certificates},
        found.nats_server,
        tuple(found.nats_cluster),
        tuple(found.peer_keys),
    )


def partition_of(one: admin_pb2.PartitionStatus) -> PartitionStatus:
    """Convert the API message of a partition."""
    return PartitionStatus(
        one.partition.stream,
        one.partition.partition,
        one.stream_id,
        one.leader,
        one.leader_epoch,
        one.partition_epoch,
        tuple(one.isr),
        tuple(one.elr),
        tuple(one.last_known_elr),
        one.min_isr,
        one.is_recovering,
        one.unclean_epoch,
        one.is_paused,
        one.is_readonly,
        tuple(one.target),
        tuple(_replica_of(replica) for replica in one.replicas),
    )


def _replica_of(one: admin_pb2.ReplicaStatus) -> ReplicaStatus:
    return ReplicaStatus(
        one.broker,
        one.replica_epoch,
        one.is_in_sync,
        one.log_end if one.HasField("log_end") else None,
        one.high_watermark if one.HasField("high_watermark") else None,
        one.flushed if one.HasField("flushed") else None,
        one.lag_ms if one.HasField("lag_ms") else None,
    )


def check_of(found: admin_pb2.CheckRestartResponse) -> RestartCheck:
    """Convert the API message of a restart check."""
    return RestartCheck(
        found.token,
        _time(found.expires) if found.token else None,
        _blockers(found.blockers),
        _blockers(found.accepted),
        found.partitions,
        found.leaders,
    )


def verification_of(found: admin_pb2.VerifyRestartResponse) -> RestartVerification:
    """Convert the API message of a restart verification."""
    return RestartVerification(
        found.is_complete, _blockers(found.blockers), found.partitions, found.excluded
    )


def _blockers(found: Iterable[admin_pb2.RestartBlocker]) -> tuple[Blocker, ...]:
    return tuple(
        Blocker(
            _kind(one.kind),
            one.partition.stream,
            one.partition.partition,
            tuple(one.brokers),
            one.text,
        )
        for one in found
    )


def _kind(number: int) -> str:
    """Name a kind of blocker; an unknown kind, from a later version, is named by its number."""
    known = admin_pb2.RestartBlocker.Kind.DESCRIPTOR.values_by_number.get(number)
    return f"kind-{number}" if known is None else known.name.removeprefix("KIND_").lower()


def outcomes_of(found: Iterable[admin_pb2.PartitionOutcome]) -> tuple[PartitionOutcome, ...]:
    """Convert the API messages of outcomes."""
    return tuple(
        PartitionOutcome(one.partition.stream, one.partition.partition, one.code, one.text)
        for one in found
    )


def reassignments_of(
    found: Iterable[admin_pb2.Reassignment],
) -> tuple[Reassignment, ...]:
    """Convert the API messages of reassignments."""
    return tuple(
        Reassignment(
            one.partition.stream,
            one.partition.partition,
            tuple(one.replicas),
            tuple(one.target),
            tuple(one.adding),
            tuple(one.removing),
            tuple(one.caught_up),
            one.partition_epoch,
        )
        for one in found
    )


def keys_of(found: admin_pb2.KeysStatusResponse) -> tuple[MasterKeyStatus, ...]:
    """Convert the API message of master keys."""
    return tuple(
        MasterKeyStatus(one.key_id, one.key_id == found.master_key, one.streams, tuple(one.brokers))
        for one in found.keys
    )


def _time(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)

"""Configuration of the broker: frozen values, complete and checked.

In the shipped program only `config.load.load` creates them; tests create them directly, since every
field has the shipped default. Times are nanoseconds (`_ns`), sizes bytes, as integers.
Secrets stay out of every `repr`.
"""

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from liftbridge_broker.access.options import IdentityOptions
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.units import HOUR_NS, MIB, MILLISECOND_NS, MINUTE_NS, SECOND_NS

NAMESPACE_DEFAULT: Final = "liftbridge-default"
PORT_DEFAULT: Final = 9292


class LogLevel(StrEnum):
    """Lowest level of events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of log events: for people, or one JSON object a line."""

    CONSOLE = "console"
    JSON = "json"


class TlsVersion(StrEnum):
    """Lowest version of TLS that clients may speak."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


class Origin(StrEnum):
    """Source of a value; later members win over earlier ones."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """An effective setting.

    Attributes:
        key: Dotted name.
        text: Canonical text of the value; secrets are masked.
        origin: Kind of its source.
        source: Exact source: `broker.yaml:12`, `LIFTBRIDGE_PORT`, `--port`; empty for defaults.
        is_reloadable: Whether SIGHUP applies a new value.
        has_effect: Whether the value does anything at all.
    """

    key: str
    text: str
    origin: Origin = Origin.DEFAULT
    source: str = ""
    is_reloadable: bool = False
    has_effect: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Address for clients, and the one that they receive in metadata.

    Attributes:
        host: Address the gRPC port binds to.
        port: Port it binds to; 0 lets the operating system choose.
        advertised_host: Host that metadata answers name.
        advertised_port: Port that metadata answers name; 0 means the port that was bound.
        has_tls: Whether it speaks TLS, by the certificates of `TlsOptions`.
    """

    host: str = "0.0.0.0"  # noqa: S104 - the original's default: brokers serve other machines
    port: int = PORT_DEFAULT
    advertised_host: str = "localhost"
    advertised_port: int = PORT_DEFAULT
    has_tls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions:
    """An additional listener for clients.

    Attributes:
        name: Name, the same on every broker.
        host: Address it binds to.
        port: Port it binds to; 0 lets the operating system choose.
        has_tls: Whether it speaks TLS, by the certificates of `TlsOptions`.
        advertised: Host and port that its clients receive; port 0 means the port that was bound.
    """

    name: str
    host: str
    port: int
    has_tls: bool = False
    advertised: tuple[str, int] = ("localhost", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """The data directory.

    Attributes:
        directory: Path; holds everything that must survive a restart.
        trash_grace_ns: Time for which deleted data stays in `trash/` before it is purged.
        scrub_interval_ns: Time in which all stored data is read once; 0 = never.
        reserve_bytes: Size of the file that is removed when the disk is full; 0 = none.
        free_bytes_min: Publishes are refused while less than this is free; 0 = no limit.
    """

    directory: str = "/tmp/liftbridge/" + NAMESPACE_DEFAULT  # noqa: S108 - the original's default
    trash_grace_ns: int = 24 * HOUR_NS
    scrub_interval_ns: int = 14 * 24 * HOUR_NS
    reserve_bytes: int = 64 * MIB
    free_bytes_min: int = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingOptions:
    """Log output.

    Attributes:
        level: Lowest level that is logged.
        format: Console or JSON.
        shows_nats: Whether the embedded NATS server's own lines are passed on.
    """

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.CONSOLE
    shows_nats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS of the gRPC port; on when `cert` is set (then `key` is too).

    Attributes:
        cert: PEM file with the server's certificate chain.
        key: PEM file with its private key.
        version_min: Lowest TLS version accepted.
        requires_client_cert: Whether clients must present a certificate that verifies.
        client_ca: PEM file with the authorities for client certificates; empty = the system's.
    """

    cert: str = ""
    key: str = ""
    version_min: TlsVersion = TlsVersion.TLS_1_2
    requires_client_cert: bool = False
    client_ca: str = ""

    @property
    def is_enabled(self) -> bool:
        """Return whether the gRPC port speaks TLS; there is no plaintext beside it."""
        return self.cert != ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """The link to NATS. At most one way of authentication is set.

    Attributes:
        servers: URLs, tried in order.
        user: User name, empty for none.
        password: Its password when given directly.
        password_file: File with the password, read at each connection.
        token: Authentication token when given directly.
        token_file: File with the token, read at each connection.
        nkey_seed_file: File with an nkey seed.
        credentials_file: File with a JWT and an nkey seed (`.creds`).
        tls_cert: PEM certificate presented to NATS, with `tls_key`.
        tls_key: PEM private key.
        tls_ca: PEM authorities for the NATS server's certificate; empty = the system's.
        is_embedded: Whether the broker runs its own nats-server as a child process.
        embedded_config: Configuration file for it, empty for the built-in one.
    """

    servers: tuple[str, ...] = field(default=("nats://127.0.0.1:4222",), repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    nkey_seed_file: str = ""
    credentials_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    is_embedded: bool = False
    embedded_config: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsyncOptions:
    """Bounds of fsync policy `interval`; the policy itself is `BrokerOptions.streams`.

    Attributes:
        interval_ns: Longest time that appended records wait to be synced.
        bytes_max: Most bytes of a partition that wait to be synced.
    """

    interval_ns: int = SECOND_NS
    bytes_max: int = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorsOptions:
    """The stream that stores cursors.

    Attributes:
        partitions: Partitions of `__cursors`, fixed when it is created; 0 = cursors are off.
        replication_factor: Replicas of it; -1 = every broker.
        auto_pause_ns: Idle time after which one of its partitions pauses; 0 = never.
    """

    partitions: int = 0
    replication_factor: int = -1
    auto_pause_ns: int = MINUTE_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityOptions:
    """The stream that stores events about changes of streams.

    Attributes:
        is_enabled: Whether this broker turns `__activity` on.
        timeout_ns: Time after which an event that is not stored is reported.
        ack_policy: When an event counts as stored: `all`, `leader` or `none`.
    """

    is_enabled: bool = False
    timeout_ns: int = 5 * SECOND_NS
    ack_policy: str = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOptions:
    """Start of a broker with an empty data directory; at most one attribute is set.

    Attributes:
        is_seed: Whether it founds a cluster even while other brokers look for one.
        peers: Brokers that found the cluster together.
        waits: Whether it never founds a cluster, only joins one.
    """

    is_seed: bool = False
    peers: tuple[str, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    """Time limits of replication, for leaders and followers.

    Attributes:
        lag_ns: A replica that is behind for longer leaves the in-sync set if enough others stay.
        leader_silence_ns: Silence after which a replica reports its leader.
        idle_wait_ns: Time for which a leader holds the fetch of a replica that has everything.
        fetch_timeout_ns: Time after which a fetch counts as lost.
    """

    lag_ns: int = 700 * MILLISECOND_NS
    leader_silence_ns: int = 600 * MILLISECOND_NS
    idle_wait_ns: int = 300 * MILLISECOND_NS
    fetch_timeout_ns: int = 1_500 * MILLISECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringOptions:
    """Identity, metadata group, and membership in the cluster.

    Attributes:
        server_id: Id of this broker; empty = the one stored in the data directory, or a new one.
            A stored id wins over this one.
        start_id: Prefix of the name of this start; empty for random text alone.
        namespace: Prefix of all internal NATS subjects.
        zone: Zone or rack of the broker; empty when unknown.
        secret_file: File with the keys of the cluster; empty for none.
        snapshot_retain: Metadata snapshots kept.
        snapshot_threshold: Metadata entries between two snapshots; 0 = the built-in 8192.
        record_bytes_max: Largest stored record, and largest answer to a replica.
        bootstrap: Start of the broker with an empty data directory.
        voters_max: Largest number of voters in the metadata group.
        raft_heartbeat_ns: Time between two heartbeats of the metadata leader.
        raft_election_ns: Silence of the metadata leader before an election.
        heartbeat_ns: Time between two heartbeats of this broker.
        session_ns: Silence after which a broker is fenced.
        balance_ns: Time between two checks for leaderships to return to the first replica; 0 =
            never.
        replication: Time limits of replication.
    """

    server_id: str = ""
    start_id: str = ""
    namespace: str = NAMESPACE_DEFAULT
    zone: str = ""
    secret_file: str = ""
    snapshot_retain: int = 2
    snapshot_threshold: int = 8192
    record_bytes_max: int = MIB
    bootstrap: BootstrapOptions = BootstrapOptions()
    voters_max: int = 5
    raft_heartbeat_ns: int = 100 * MILLISECOND_NS
    raft_election_ns: int = 500 * MILLISECOND_NS
    heartbeat_ns: int = 150 * MILLISECOND_NS
    session_ns: int = 1_500 * MILLISECOND_NS
    balance_ns: int = 5 * MINUTE_NS
    replication: ReplicationOptions = ReplicationOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcOptions:
    """Bounds of the gRPC port.

    Attributes:
        message_bytes_max: Largest request message; always holds a record of the largest size.
        concurrent_streams_max: Open calls on one connection (SETTINGS_MAX_CONCURRENT_STREAMS).
        connections_max: Open connections; a further one takes the place of one without a call.
        header_bytes_max: Size of the header list of a request (SETTINGS_MAX_HEADER_LIST_SIZE).
        pending_bytes_max: Bytes of answers waiting to be sent on one connection.
        receive_bytes_max: Bytes of open calls and incomplete requests of all connections.
        send_bytes_max: Bytes of answers waiting to be sent on all connections.
        idle_timeout_ns: A connection without calls is closed after this time; 0 = never.
        keepalive_ns: A silent connection is pinged after this time; 0 = never.
        keepalive_timeout_ns: A ping must be answered within this time.
        has_reflection: Whether server reflection is served.
    """

    message_bytes_max: int = 4 * MIB
    concurrent_streams_max: int = 10_000
    connections_max: int = 10_000
    header_bytes_max: int = 16_384
    pending_bytes_max: int = 64 * MIB
    receive_bytes_max: int = 256 * MIB
    send_bytes_max: int = 256 * MIB
    idle_timeout_ns: int = 30 * MINUTE_NS
    keepalive_ns: int = MINUTE_NS
    keepalive_timeout_ns: int = 20 * SECOND_NS
    has_reflection: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """The port for metrics and health.

    Attributes:
        is_enabled: Whether it is served at all.
        host: Address it binds to; loopback by default, since it is not authenticated.
        port: Port it binds to; 0 lets the operating system choose.
        streams_max: Streams that get series of their own on `/metrics`; the others are summed.
        is_given: Whether the address was configured and is not the default.
    """

    is_enabled: bool = True
    host: str = "127.0.0.1"
    port: int = 9393
    streams_max: int = 100
    is_given: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions:
    """The port for operators.

    Attributes:
        is_enabled: Whether it is served at all.
        host: Address it binds to.
        port: Port it binds to; 0 lets the operating system choose.
        tls: TLS of the port; it always requires client certificates.
    """

    is_enabled: bool = False
    host: str = ""
    port: int = 0
    tls: TlsOptions = TlsOptions(requires_client_cert=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """Access control of calls.

    Attributes:
        is_enabled: Whether the rules of the cluster are enforced, and turned on in the cluster.
        super_users: Principals with every right on the port for operators, and everywhere if nobody
            may change the rules when access control is turned on.
        admin_super_users: Principals with every right on the port for operators alone.
        has_policy: Whether a policy of this broker alone is enforced, too.
        model_file: Its Casbin model.
        policy_file: Its lines.
    """

    is_enabled: bool = False
    super_users: tuple[str, ...] = ()
    admin_super_users: tuple[str, ...] = ()
    has_policy: bool = False
    model_file: str = ""
    policy_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Consumer groups.

    Attributes:
        consumer_timeout_ns: Silence after which a member leaves its group.
        coordinator_timeout_ns: Silence after which members report their coordinator.
    """

    consumer_timeout_ns: int = 15 * SECOND_NS
    coordinator_timeout_ns: int = 15 * SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Bounds that keep one client from taking the broker down.

    Attributes:
        streams_max: Streams of the cluster.
        stream_partitions_max: Partitions of one stream.
        subscriptions_max: Subscriptions open on this broker.
        publish_pending_bytes_max: Bytes of unanswered publishes of all clients.
        publishers_max: Idempotent publishers that a partition remembers; above it, the one silent
            the longest is forgotten.
        publisher_ttl_ns: Silence after which an idempotent publisher is forgotten.
    """

    streams_max: int = 100_000
    stream_partitions_max: int = 1_000
    subscriptions_max: int = 10_000
    publish_pending_bytes_max: int = 64 * MIB
    publishers_max: int = 1_000
    publisher_ttl_ns: int = 168 * HOUR_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionOptions:
    """Where the master keys of encrypted streams are; empty for none.

    Attributes:
        key: Key of the original's environment variable.
        file: File with keys by id.
        command: Program that asks a key service.
    """

    key: str = field(default="", repr=False)
    file: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """The whole configuration of the broker, frozen.

    Attributes:
        listeners: Additional listeners for clients.
        advertised_file: File with the addresses that their clients receive; empty for none.
        streams: Defaults of stream settings, for what a stream does not override.
        shutdown_timeout_ns: Time for draining at SIGTERM and SIGINT before open calls are cut off.
        hand_over_timeout_ns: Time before draining in which other brokers take over leaderships.
        effective: Every setting with its origin, in order of the table; for `check-config`.
        notices: Notices to log once at the start (settings without effect and so on).
    """

    listen: ListenOptions = ListenOptions()
    listeners: tuple[ListenerOptions, ...] = ()
    advertised_file: str = ""
    data: DataOptions = DataOptions()
    logging: LoggingOptions = LoggingOptions()
    tls: TlsOptions = TlsOptions()
    identity: IdentityOptions = field(default_factory=IdentityOptions)
    nats: NatsOptions = NatsOptions()
    streams: StreamOptions = field(default_factory=StreamOptions)
    encryption: EncryptionOptions = EncryptionOptions()
    fsync: FsyncOptions = FsyncOptions()
    cursors: CursorsOptions = CursorsOptions()
    groups: GroupOptions = GroupOptions()
    activity: ActivityOptions = ActivityOptions()
    clustering: ClusteringOptions = ClusteringOptions()
    grpc: GrpcOptions = GrpcOptions()
    metrics: MetricsOptions = MetricsOptions()
    admin: AdminOptions = AdminOptions()
    access: AccessOptions = AccessOptions()
    limits: LimitOptions = LimitOptions()
    shutdown_timeout_ns: int = 10 * SECOND_NS
    hand_over_timeout_ns: int = 10 * SECOND_NS
    effective: tuple[EffectiveSetting, ...] = field(default=(), repr=False, compare=False)
    notices: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def fingerprint(self) -> str:
        """Hash of the settings that change only by a restart, as 16 hexadecimal digits.

        Two brokers with equal fingerprints need no restart to agree. Origins, reloadable settings
        and those without effect do not count; secrets are masked before hashing, since the hash
        is published.
        """
        static = [(s.key, s.text) for s in self.effective if s.has_effect and not s.is_reloadable]
        return hashlib.sha256(json.dumps(static).encode()).hexdigest()[:16]

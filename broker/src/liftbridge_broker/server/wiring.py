"""Options of each part of the broker, derived from the options of the process."""

import secrets
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Final

from liftbridge_broker.adapters.nats.embedded import EmbeddedOptions
from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.adapters.secret_file import read_secret
from liftbridge_broker.api.grpc.tls import ServerTls, TlsFiles
from liftbridge_broker.config.options import (
    BootstrapOptions,
    BrokerOptions,
    ClusteringOptions,
    GrpcOptions,
    ReplicationOptions,
    TlsOptions,
    TlsVersion,
)
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.subjects import internal_subject
from liftbridge_broker.node.control import ControlOptions
from liftbridge_broker.node.metadata.bootstrap import Role
from liftbridge_broker.node.metadata.opening import METADATA_DIRECTORY
from liftbridge_broker.node.options import ActivityOptions, NodeOptions
from liftbridge_broker.node.replicas.role_context import ReplicationLimits
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.replication.fetch_sessions import LeaderSessionLimits, SessionLimits
from liftbridge_broker.replication.follower import FollowerLimits
from liftbridge_broker.replication.isr import LeaderLimits
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.reserve import SpaceLimits
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_broker.wire.acks import AckPolicy

_TLS_VERSIONS: Final = {
    TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2,
    TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3,
}


def store_options(options: BrokerOptions) -> StoreOptions:
    """Return the options of the store."""
    return StoreOptions(
        label=options.data.directory,
        flush=FlushLimits(interval_ns=options.fsync.interval_ns, bytes_max=options.fsync.bytes_max),
        space=SpaceLimits(options.data.reserve_bytes, options.data.free_bytes_min),
        trash_grace_ns=options.data.trash_grace_ns,
        known_names=(METADATA_DIRECTORY,),
    )


def embedded_options(options: BrokerOptions) -> EmbeddedOptions:
    """Return the options of the embedded NATS server, with a password for brokers.

    Raises:
        ConfigError: The file with the password cannot be read.
    """
    nats = options.nats
    password = nats.password
    if nats.password_file:
        # Read at each connection, also for other brokers that connect to this server.
        password = read_secret(nats.password_file, "nats.password.file").rstrip("\r\n")
    return EmbeddedOptions(
        server=nats.servers[0],
        config=nats.embedded_config,
        user=nats.user or "broker",
        password=password if nats.user else secrets.token_hex(32),
        shows_log=options.logging.shows_nats,
    )


def nats_options(
    options: BrokerOptions, broker: BrokerId, embedded: EmbeddedOptions | None = None
) -> NatsOptions:
    """Return the options of the NATS links; for an embedded server, with its user and password."""
    found = _nats_options(options, broker)
    if embedded is None or embedded.config:
        return found
    return replace(
        found,
        user=embedded.user,
        password=embedded.password,
        password_file="",
        token="",
        token_file="",
        nkey_seed_file="",
        credentials_file="",
    )


def _nats_options(options: BrokerOptions, broker: BrokerId) -> NatsOptions:
    nats = options.nats
    return NatsOptions(
        server_id=broker,
        namespace=options.clustering.namespace,
        servers=nats.servers,
        user=nats.user,
        password="" if nats.password_file else nats.password,
        password_file=nats.password_file,
        token="" if nats.token_file else nats.token,
        token_file=nats.token_file,
        nkey_seed_file=nats.nkey_seed_file,
        credentials_file=nats.credentials_file,
        tls_cert=nats.tls_cert,
        tls_key=nats.tls_key,
        tls_ca=nats.tls_ca,
        pending_bytes_max=options.limits.publish_pending_bytes_max,
    )


def node_options(options: BrokerOptions, broker: BrokerId) -> NodeOptions:
    """Return the options of the node; the ack inbox is unique to this process."""
    return NodeOptions(
        broker=broker,
        namespace=options.clustering.namespace,
        inbox=internal_subject(options.clustering.namespace, "ack", secrets.token_hex(16)),
        ack_secret=secrets.token_bytes(32),
        defaults=options.streams,
        record_bytes_max=options.clustering.record_bytes_max,
        publishers_max=options.limits.publishers_max,
        publisher_ttl_ns=options.limits.publisher_ttl_ns,
        unanswered_bytes_max=options.limits.publish_pending_bytes_max,
        consumer_timeout_ns=options.groups.consumer_timeout_ns,
        coordinator_timeout_ns=options.groups.coordinator_timeout_ns,
        activity=ActivityOptions(
            is_enabled=options.activity.is_enabled,
            timeout_ns=options.activity.timeout_ns,
            policy=AckPolicy[options.activity.ack_policy.upper()],
        ),
    )


def role_of(bootstrap: BootstrapOptions) -> Role:
    """Return the role of a broker with an empty directory if no other broker knows a cluster."""
    if bootstrap.peers:
        return Role.PEER
    if bootstrap.waits:
        return Role.WAITER
    return Role.SEED if bootstrap.is_seed else Role.ALONE


def raft_options(clustering: ClusteringOptions) -> RaftOptions:
    """Return times and bounds of the metadata group."""
    return RaftOptions(
        heartbeat_ns=clustering.raft_heartbeat_ns,
        election_ns=clustering.raft_election_ns,
        election_spread_ns=clustering.raft_election_ns // 2,
    )


def control_options(clustering: ClusteringOptions) -> ControlOptions:
    """Return times and bounds of broker sessions and of the metadata leader's duties."""
    return ControlOptions(
        heartbeat_ns=clustering.heartbeat_ns,
        session_ns=clustering.session_ns,
        balance_ns=clustering.balance_ns,
        voters_max=clustering.voters_max,
    )


def replication_limits(replication: ReplicationOptions) -> ReplicationLimits:
    """Return the times of leaders and followers."""
    lag_hard_ns = max(LeaderLimits().lag_hard_ns, replication.lag_ns)
    return ReplicationLimits(
        leader=LeaderLimits(lag_ns=replication.lag_ns, lag_hard_ns=lag_hard_ns),
        follower=FollowerLimits(silence_ns=replication.leader_silence_ns),
        session=SessionLimits(timeout_ns=replication.fetch_timeout_ns),
        leader_session=LeaderSessionLimits(hold_ns=replication.idle_wait_ns),
    )


def grpc_limits(grpc: GrpcOptions) -> Limits:
    """Return the bounds of each client connection."""
    return Limits(
        streams_max=grpc.concurrent_streams_max,
        header_list_bytes_max=grpc.header_bytes_max,
        message_bytes_max=grpc.message_bytes_max,
        queued_bytes_max=grpc.pending_bytes_max,
        idle_ns=grpc.idle_timeout_ns,
        keepalive_ns=grpc.keepalive_ns,
        keepalive_timeout_ns=grpc.keepalive_timeout_ns,
    )


def server_tls(tls: TlsOptions, setting: str) -> ServerTls:
    """Create the TLS context of a gRPC port.

    Args:
        tls: Names of the files.
        setting: Prefix of the settings that name them.

    Raises:
        ConfigError: A file cannot be read, or its content is invalid.
    """
    files = TlsFiles(
        certificate=Path(tls.cert),
        key=Path(tls.key),
        client_ca=Path(tls.client_ca) if tls.client_ca else None,
        needs_client_certificate=tls.requires_client_cert,
        version_min=_TLS_VERSIONS[tls.version_min],
        setting=setting,
    )
    return ServerTls(files)

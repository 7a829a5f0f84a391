"""Builds `BrokerOptions` from values: derived defaults, rules between settings, conversion."""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from liftbridge_broker.config.build_cluster import check_clustering, clustering_options
from liftbridge_broker.config.build_identity import identity_options
from liftbridge_broker.config.given import Given, Values
from liftbridge_broker.config.listeners import WILDCARDS, listener_options
from liftbridge_broker.config.options import (
    AccessOptions,
    ActivityOptions,
    AdminOptions,
    BrokerOptions,
    CursorsOptions,
    DataOptions,
    EncryptionOptions,
    FsyncOptions,
    GroupOptions,
    GrpcOptions,
    LimitOptions,
    ListenOptions,
    LogFormat,
    LoggingOptions,
    LogLevel,
    MetricsOptions,
    NatsOptions,
    TlsOptions,
    TlsVersion,
)
from liftbridge_broker.config.settings import OFF, mask_url
from liftbridge_broker.config.values import Address
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions, UncleanMode
from liftbridge_broker.model.units import SECOND_NS

_EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - the original's default
_DATA_ROOT: Final = "/tmp/liftbridge/"  # noqa: S108 - the original's default
_PORT_DEFAULT: Final = 9292
_MESSAGE_BYTES_DEFAULT: Final = 4 << 20
_HELD_BYTES_DEFAULT: Final = 256 << 20
_CALL_BYTES_DEFAULT: Final = 4 << 10
_MESSAGE_OVERHEAD_BYTES: Final = 64 << 10
_SEGMENT_BYTES_OF_ZERO: Final = 1 << 30
_SEGMENT_BYTES_MAX: Final = 2 << 30
_SNAPSHOT_THRESHOLD_DEFAULT: Final = 8192
_NATS_SCHEMES: Final = frozenset({"nats", "tls"})


def build_options(given: Mapping[str, Given], notices: Sequence[str]) -> BrokerOptions:
    """Complete the given values with defaults, check them, and freeze them.

    Raises:
        ConfigError: Settings contradict each other or a text breaks a rule of its setting.
    """
    values = Values(given)
    _derive(values)
    check_clustering(values)
    _check_tls(values)
    _check_access(values)
    _check_encryption(values)
    _check_nats(values)
    listeners = listener_options(values)
    return BrokerOptions(
        listen=_listen(values),
        listeners=listeners,
        advertised_file=values.text("listeners.advertised.file"),
        data=DataOptions(
            directory=values.text("data.dir"),
            trash_grace_ns=values.number("data.trash.grace"),
            scrub_interval_ns=values.number("data.scrub.interval"),
            reserve_bytes=values.number("data.reserve.bytes"),
            free_bytes_min=values.number("data.free.min.bytes"),
        ),
        logging=LoggingOptions(
            level=LogLevel(values.text("logging.level")),
            format=LogFormat(values.text("logging.format")),
            shows_nats=values.flag("logging.nats"),
        ),
        tls=_tls(values),
        identity=identity_options(values, listeners),
        nats=_nats(values),
        streams=_streams(values),
        encryption=EncryptionOptions(
            key=values.text("encryption.key"),
            file=values.text("encryption.keys.file"),
            command=values.text("encryption.keys.command"),
        ),
        fsync=FsyncOptions(
            interval_ns=values.number("streams.fsync.interval"),
            bytes_max=values.number("streams.fsync.bytes"),
        ),
        groups=GroupOptions(
            consumer_timeout_ns=values.number("groups.consumer.timeout"),
            coordinator_timeout_ns=values.number("groups.coordinator.timeout"),
        ),
        cursors=CursorsOptions(
            partitions=values.number("cursors.stream.partitions"),
            replication_factor=values.number("cursors.stream.replication.factor"),
            auto_pause_ns=values.number("cursors.stream.auto.pause.time"),
        ),
        activity=ActivityOptions(
            is_enabled=values.flag("activity.stream.enabled"),
            timeout_ns=values.number("activity.stream.publish.timeout"),
            ack_policy=values.text("activity.stream.publish.ack.policy"),
        ),
        clustering=clustering_options(values),
        grpc=_grpc(values),
        metrics=_metrics(values),
        admin=_admin(values),
        access=_access(values),
        limits=_limits(values),
        shutdown_timeout_ns=values.number("shutdown.timeout"),
        hand_over_timeout_ns=values.number("shutdown.handover.timeout"),
        effective=values.effective(),
        notices=tuple(notices),
    )


def _derive(values: Values) -> None:
    """Fill in the defaults that depend on other settings."""
    host = values.text("host")
    if values.is_given("listen"):
        listen = values.address("listen")
        values.fill("port", listen.port)
        values.fill("host", "localhost" if listen.host in WILDCARDS else listen.host)
    else:
        values.fill("port", _PORT_DEFAULT)
        values.fill("listen", Address(host or _EVERY_ADDRESS, values.number("port")))
        values.fill("host", "localhost")
    values.fill("listen.tls", values.is_given("tls.cert"))
    values.fill("data.dir", _DATA_ROOT + values.text("clustering.namespace"))
    values.fill("nats.embedded", values.is_given("nats.embedded.config"))
    record_bytes_max = values.number("clustering.replication.max.bytes")
    values.fill(
        "grpc.max.message.bytes",
        max(_MESSAGE_BYTES_DEFAULT, record_bytes_max + _MESSAGE_OVERHEAD_BYTES),
    )
    if values.number("grpc.max.message.bytes") < record_bytes_max + _MESSAGE_OVERHEAD_BYTES:
        raise values.refusal(
            "grpc.max.message.bytes", "is less than clustering.replication.max.bytes + 64KiB"
        )
    _derive_held(values)
    _derive_segments(values)
    if values.number("clustering.raft.snapshot.threshold") == 0:
        values.put("clustering.raft.snapshot.threshold", _SNAPSHOT_THRESHOLD_DEFAULT)


def _derive_held(values: Values) -> None:
    """Derive the bytes that all connections may hold: several largest messages, and all calls."""
    size = max(_HELD_BYTES_DEFAULT, 4 * values.number("grpc.max.message.bytes"))
    values.fill("grpc.send.max.bytes", size)
    call_bytes = _CALL_BYTES_DEFAULT * values.number("subscriptions.max")
    values.fill("grpc.receive.max.bytes", max(size, call_bytes))


def _derive_segments(values: Values) -> None:
    size = values.number("streams.segment.max.bytes") or _SEGMENT_BYTES_OF_ZERO
    values.put("streams.segment.max.bytes", min(size, _SEGMENT_BYTES_MAX))
    values.fill("streams.segment.max.age", 0)
    age_ns = values.number("streams.segment.max.age")
    age_ns = age_ns or values.number("streams.retention.max.age")
    values.put("streams.segment.max.age", max(age_ns, SECOND_NS) if age_ns else 0)


def _check_tls(values: Values) -> None:
    """Refuse incomplete TLS settings: half of a protection must not pass for all of it."""
    _check_pair(values, "tls.cert", "tls.key")
    _check_pair(values, "admin.tls.cert", "admin.tls.key")
    _check_pair(values, "admin.tls.cert", "admin.tls.ca")
    _check_pair(values, "nats.tls.cert", "nats.tls.key")
    if values.flag("listen.tls") and not values.is_given("tls.cert"):
        raise values.refusal("listen.tls", "needs tls.cert and tls.key")
    if values.flag("tls.client.auth.enabled") and not values.is_given("tls.cert"):
        raise values.refusal("tls.client.auth.enabled", "needs tls.cert and tls.key")
    if values.is_given("tls.client.auth.ca") and not values.is_given("tls.cert"):
        raise values.refusal("tls.client.auth.ca", "needs tls.cert and tls.key")
    if values.flag("tls.client.auth.enabled") and not values.is_given("tls.client.auth.ca"):
        # Not the authorities of the system: they issue certificates to anyone.
        raise values.refusal("tls.client.auth.enabled", "needs tls.client.auth.ca")


def _check_pair(values: Values, first: str, second: str) -> None:
    if values.is_given(first) and not values.is_given(second):
        raise values.refusal(first, f"needs {second}")
    if values.is_given(second) and not values.is_given(first):
        raise values.refusal(second, f"needs {first}")


def _check_encryption(values: Values) -> None:
    sources = ("encryption.key", "encryption.keys.file", "encryption.keys.command")
    if values.flag("streams.encryption") and not any(map(values.is_given, sources)):
        raise values.refusal(
            "streams.encryption",
            f"needs a master key: set {sources[1]}, {sources[2]} or LIFTBRIDGE_ENCRYPTION_KEY",
        )


def _check_nats(values: Values) -> None:
    if not values.items("nats.servers"):
        raise values.refusal("nats.servers", "is empty")
    for server in values.items("nats.servers"):
        if not _is_nats_url(_with_scheme(server)):
            raise values.refusal(
                "nats.servers", f"contains {mask_url(server)!r}, which is not a NATS address"
            )
    for direct in ("nats.password", "nats.token"):
        if values.is_given(direct) and values.is_given(direct + ".file"):
            raise values.refusal(direct, f"cannot be set together with {direct}.file")
    passwords = [key for key in ("nats.password", "nats.password.file") if values.is_given(key)]
    if passwords and not values.is_given("nats.user"):
        raise values.refusal(passwords[0], "needs nats.user")
    ways = [
        key
        for key in (
            "nats.user",
            "nats.token",
            "nats.token.file",
            "nats.nkey.seed.file",
            "nats.credentials.file",
        )
        if values.is_given(key)
    ]
    if len(ways) > 1:
        raise values.refusal(ways[0], f"cannot be set together with {ways[1]}")


def _with_scheme(server: str) -> str:
    return server if "://" in server else "nats://" + server


def _is_nats_url(server: str) -> bool:
    try:
        url = urlsplit(server)
        port = url.port
    except ValueError:
        return False
    return url.scheme in _NATS_SCHEMES and bool(url.hostname) and port != 0


def _listen(values: Values) -> ListenOptions:
    bound = values.address("listen")
    return ListenOptions(
        host=bound.host,
        port=bound.port,
        advertised_host=values.text("host"),
        advertised_port=values.number("port"),
        has_tls=values.flag("listen.tls"),
    )


def _tls(values: Values) -> TlsOptions:
    return TlsOptions(
        cert=values.text("tls.cert"),
        key=values.text("tls.key"),
        version_min=TlsVersion(values.text("tls.min.version")),
        requires_client_cert=values.flag("tls.client.auth.enabled"),
        client_ca=values.text("tls.client.auth.ca"),
    )


def _nats(values: Values) -> NatsOptions:
    return NatsOptions(
        servers=tuple(_with_scheme(server) for server in values.items("nats.servers")),
        user=values.text("nats.user"),
        password=values.text("nats.password"),
        password_file=values.text("nats.password.file"),
        token=values.text("nats.token"),
        token_file=values.text("nats.token.file"),
        nkey_seed_file=values.text("nats.nkey.seed.file"),
        credentials_file=values.text("nats.credentials.file"),
        tls_cert=values.text("nats.tls.cert"),
        tls_key=values.text("nats.tls.key"),
        tls_ca=values.text("nats.tls.ca"),
        is_embedded=values.flag("nats.embedded"),
        embedded_config=values.text("nats.embedded.config"),
    )


def _streams(values: Values) -> StreamOptions:
    return StreamOptions(
        retention_bytes_max=values.number("streams.retention.max.bytes"),
        retention_messages_max=values.number("streams.retention.max.messages"),
        retention_age_ms_max=values.milliseconds("streams.retention.max.age"),
        cleaner_interval_ms=values.milliseconds("streams.cleaner.interval"),
        segment_bytes_max=values.number("streams.segment.max.bytes"),
        segment_age_ms_max=values.milliseconds("streams.segment.max.age"),
        compact_goroutines_max=values.number("streams.compact.max.goroutines"),
        compact_enabled=values.flag("streams.compact.enabled"),
        auto_pause_ms=values.milliseconds("streams.auto.pause.time"),
        auto_pause_disable_if_subscribers=values.flag("streams.auto.pause.disable.if.subscribers"),
        min_isr=values.number("clustering.min.insync.replicas"),
        optimistic_concurrency=values.flag("streams.concurrency.control"),
        encryption=values.flag("streams.encryption"),
        fsync_policy=FsyncPolicy(values.text("streams.fsync.policy")),
        tombstone_retention_ms=values.milliseconds("streams.tombstone.retention"),
        unclean_mode=UncleanMode(values.text("streams.unclean.mode")),
    )


def _grpc(values: Values) -> GrpcOptions:
    return GrpcOptions(
        message_bytes_max=values.number("grpc.max.message.bytes"),
        concurrent_streams_max=values.number("grpc.max.concurrent.streams"),
        connections_max=values.number("grpc.max.connections"),
        header_bytes_max=values.number("grpc.max.header.bytes"),
        pending_bytes_max=values.number("grpc.max.pending.bytes"),
        receive_bytes_max=values.number("grpc.receive.max.bytes"),
        send_bytes_max=values.number("grpc.send.max.bytes"),
        idle_timeout_ns=values.number("grpc.idle.timeout"),
        keepalive_ns=values.number("grpc.keepalive.time"),
        keepalive_timeout_ns=values.number("grpc.keepalive.timeout"),
        has_reflection=values.flag("grpc.reflection"),
    )


def _metrics(values: Values) -> MetricsOptions:
    bound = values.address("metrics.listen")
    return MetricsOptions(
        is_enabled=bound != OFF,
        host=bound.host,
        port=bound.port,
        streams_max=values.number("metrics.streams.max"),
        is_given=values.is_given("metrics.listen"),
    )


def _admin(values: Values) -> AdminOptions:
    bound = values.address("admin.listen")
    tls = TlsOptions(
        cert=values.text("admin.tls.cert"),
        key=values.text("admin.tls.key"),
        requires_client_cert=True,
        client_ca=values.text("admin.tls.ca"),
    )
    return AdminOptions(is_enabled=bound != OFF, host=bound.host, port=bound.port, tls=tls)


def _check_access(values: Values) -> None:
    """Refuse access control without identities, and a policy without its files."""
    methods = values.items("auth.methods")
    has_names = values.flag("tls.client.auth.enabled") or "jwt" in methods or "token" in methods
    if values.flag("access.enabled") and not has_names:
        raise values.refusal(
            "access.enabled",
            "needs tls.client.auth.enabled, or jwt or token in auth.methods: else no caller has a "
            "name",
        )
    if values.flag("tls.client.authz.enabled") and not values.flag("tls.client.auth.enabled"):
        raise values.refusal(
            "tls.client.authz.enabled", "needs tls.client.auth.enabled: else no caller has a name"
        )
    files = ("tls.client.authz.model", "tls.client.authz.policy")
    for key in files:
        if values.flag("tls.client.authz.enabled") and not values.is_given(key):
            raise values.refusal("tls.client.authz.enabled", f"needs {key}")


def _access(values: Values) -> AccessOptions:
    return AccessOptions(
        is_enabled=values.flag("access.enabled"),
        super_users=values.items("access.super.users"),
        admin_super_users=values.items("admin.super.users"),
        has_policy=values.flag("tls.client.authz.enabled"),
        model_file=values.text("tls.client.authz.model"),
        policy_file=values.text("tls.client.authz.policy"),
    )


def _limits(values: Values) -> LimitOptions:
    return LimitOptions(
        streams_max=values.number("streams.max.count"),
        stream_partitions_max=values.number("streams.max.partitions"),
        subscriptions_max=values.number("subscriptions.max"),
        publish_pending_bytes_max=values.number("publish.pending.max.bytes"),
        publishers_max=values.number("publishers.max"),
        publisher_ttl_ns=values.number("publishers.ttl"),
    )

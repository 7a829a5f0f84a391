"""Settings of the process and its links: server, gRPC, TLS, NATS, metrics."""

from typing import Final

from liftbridge_broker.config.settings import Kind, Setting, Status
from liftbridge_broker.model.units import MIB, SECOND_NS

_NO_TELEMETRY: Final = "this broker sends no telemetry"

SERVER: Final = (
    Setting(
        "listen",
        Kind.ADDRESS,
        "",
        "Address that the gRPC port binds to.",
        derived="`host`:`port` when `host` is given, otherwise 0.0.0.0:`port`",
    ),
    Setting(
        "host",
        Kind.TEXT,
        "",
        "Host that clients connect to; the gRPC port binds to it as well when `listen` is not "
        "given.",
        derived="the host of `listen` unless that means every address, otherwise `localhost`",
        flags=("--host",),
    ),
    Setting(
        "port",
        Kind.INTEGER,
        "",
        "Port that clients connect to, and that the broker binds to when `listen` is not given; 0 "
        "lets the operating system choose.",
        derived="the port of `listen`, otherwise 9292",
        maximum=65_535,
        flags=("--port", "-p"),
    ),
    Setting(
        "listen.tls",
        Kind.BOOLEAN,
        "",
        "Whether the port of `listen` uses TLS.",
        derived="`true` when `tls.cert` is given, otherwise `false`",
        is_original=False,
    ),
    Setting(
        "listeners",
        Kind.LIST,
        "",
        "Additional ports for clients, each as `name=host:port`, such as `outside=0.0.0.0:9392`. A "
        "client that connects through one of them receives, for every broker, the address that the "
        "broker has under the same name; brokers without it are left out.",
        is_original=False,
    ),
    Setting(
        "listeners.plain",
        Kind.LIST,
        "",
        "Names of the additional listeners that do not use TLS although `tls.cert` is given.",
        is_original=False,
    ),
    Setting(
        "listeners.host",
        Kind.TEXT,
        "",
        "Host that clients of additional listeners receive when no address gives another one.",
        derived="the host that the listener binds to unless that means every address, otherwise "
        "`host`",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "listeners.advertised",
        Kind.LIST,
        "",
        "Addresses that clients of additional listeners receive, each as `name=host:port`. Without "
        "a host, as in `outside=:30392`, the host is `listeners.host`; port 0 is the port that was "
        "bound.",
        derived="`listeners.host` and the port that was bound",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "listeners.advertised.file",
        Kind.TEXT,
        "",
        "File with the value of `listeners.advertised`, optionally on several lines; it is read "
        "again when it changes. Listeners that it leaves out, or all of them while the file does "
        "not exist, are not advertised to clients; names that are not in `listeners` are ignored.",
        is_original=False,
    ),
    Setting(
        "data.dir",
        Kind.TEXT,
        "",
        "Directory for everything that must survive a restart.",
        derived="`/tmp/liftbridge/<clustering.namespace>`",
        flags=("--data-dir", "-d"),
    ),
    Setting(
        "data.trash.grace",
        Kind.DURATION,
        "24h",
        "Longest time that deleted streams, and segments removed because of their age, stay in "
        "`trash/`.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "data.scrub.interval",
        Kind.DURATION,
        "336h",
        "Time in which all stored data is read once, piece by piece, so that damage is found and "
        "repaired while other replicas have the bytes; 0 for never.",
        is_original=False,
    ),
    Setting(
        "data.reserve.bytes",
        Kind.SIZE,
        "64MiB",
        "Size of a file that is released to the system when the disk is full, so that deletes and "
        "a clean stop still work; 0 for none.",
        is_original=False,
    ),
    Setting(
        "data.free.min.bytes",
        Kind.SIZE,
        "256MiB",
        "Free space on the volume below which publishes are refused; 0 for no limit.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "metadata.cache.max.age",
        Kind.DURATION,
        "2m",
        "How long the original keeps its list of brokers.",
        status=Status.NO_EFFECT,
        reason="the list of brokers is always current",
    ),
    Setting(
        "shutdown.timeout",
        Kind.DURATION,
        "10s",
        "Time for draining after SIGTERM or SIGINT before open calls are cut off.",
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "shutdown.handover.timeout",
        Kind.DURATION,
        "10s",
        "How long a broker that stops waits, before it drains, for others to take over the "
        "partitions that it leads.",
        minimum=SECOND_NS,
        is_original=False,
        is_reloadable=True,
    ),
    Setting(
        "logging.level",
        Kind.CHOICE,
        "info",
        "Lowest level of events that are logged.",
        choices=("debug", "info", "warn", "error"),
        is_reloadable=True,
        flags=("--level", "-l"),
    ),
    Setting(
        "logging.format",
        Kind.CHOICE,
        "console",
        "Format of log lines: for people, or one JSON object per line.",
        choices=("console", "json"),
        is_original=False,
        flags=("--log-format",),
    ),
    Setting(
        "logging.recovery",
        Kind.BOOLEAN,
        "false",
        "Whether the original logs the replay of metadata line by line.",
        status=Status.NO_EFFECT,
        reason="recovery is reported in one event with counts and duration",
    ),
    Setting(
        "logging.raft",
        Kind.BOOLEAN,
        "false",
        "Whether the original logs what its Raft library says.",
        status=Status.NO_EFFECT,
        reason="metadata events follow `logging.level` like all others",
    ),
    Setting(
        "logging.nats",
        Kind.BOOLEAN,
        "false",
        "Whether the log lines of the embedded NATS server are passed on.",
    ),
    Setting(
        "batch.max.messages",
        Kind.INTEGER,
        "1024",
        "Largest number of messages that the original appends together.",
        status=Status.NO_EFFECT,
        reason="a batch contains what arrived in one turn of the event loop",
    ),
    Setting(
        "batch.max.time",
        Kind.DURATION,
        "0",
        "How long the original waits for a batch to fill.",
        status=Status.NO_EFFECT,
        reason="a batch contains what arrived in one turn of the event loop",
    ),
    Setting(
        "telemetry.enabled",
        Kind.BOOLEAN,
        "false",
        "Whether the original reports its usage to its maintainers.",
        status=Status.NO_EFFECT,
        reason=_NO_TELEMETRY,
    ),
    Setting(
        "telemetry.interval.seconds",
        Kind.INTEGER,
        "86400",
        "How often the original reports its usage.",
        status=Status.NO_EFFECT,
        reason=_NO_TELEMETRY,
    ),
)

GRPC: Final = (
    Setting(
        "grpc.max.message.bytes",
        Kind.SIZE,
        "",
        "Largest size of a request message.",
        derived="the larger of 4MiB and `clustering.replication.max.bytes` + 64KiB",
        is_original=False,
        maximum=1 << 30,
    ),
    Setting(
        "grpc.max.concurrent.streams",
        Kind.INTEGER,
        "10000",
        "Calls, including subscriptions, that one connection may have open.",
        is_original=False,
        minimum=1,
        maximum=1_000_000,
    ),
    Setting(
        "grpc.max.connections",
        Kind.INTEGER,
        "10000",
        "Open client connections. At the limit, a new one takes the place of one without an open "
        "call, the one idle the longest of the address with most of them; if all have open calls, "
        "it is closed immediately.",
        is_original=False,
        minimum=1,
        maximum=1_000_000,
    ),
    Setting(
        "grpc.max.header.bytes",
        Kind.SIZE,
        "16KiB",
        "Largest size of the header list of one request.",
        is_original=False,
        minimum=4_096,
        maximum=MIB,
    ),
    Setting(
        "grpc.max.pending.bytes",
        Kind.SIZE,
        "64MiB",
        "Bytes of answers that may wait to be sent on one connection.",
        is_original=False,
        minimum=65_536,
        maximum=1 << 30,
    ),
    Setting(
        "grpc.receive.max.bytes",
        Kind.SIZE,
        "",
        "Bytes of open calls, 2KiB or more for each, and of incomplete requests that the broker "
        "holds for all connections together; above it, the connection that holds the most loses "
        "its incomplete requests or, if its calls hold more, is closed. Include it when planning "
        "memory.",
        derived="the largest of 256MiB, four times `grpc.max.message.bytes` and 4KiB for each of "
        "`subscriptions.max`",
        is_original=False,
        maximum=1 << 40,
    ),
    Setting(
        "grpc.send.max.bytes",
        Kind.SIZE,
        "",
        "Bytes of answers that may wait to be sent on all connections together; above it, the "
        "connection that holds the most is closed. Include it when planning memory.",
        derived="the larger of 256MiB and four times `grpc.max.message.bytes`",
        is_original=False,
        maximum=1 << 40,
    ),
    Setting(
        "grpc.idle.timeout",
        Kind.DURATION,
        "30m",
        "Time after which a connection without open calls is closed; 0 for never.",
        is_original=False,
    ),
    Setting(
        "grpc.keepalive.time",
        Kind.DURATION,
        "1m",
        "Silence after which the broker pings a connection; 0 for never.",
        is_original=False,
    ),
    Setting(
        "grpc.keepalive.timeout",
        Kind.DURATION,
        "20s",
        "Time within which a connection must answer a ping, or it is closed.",
        is_original=False,
        minimum=SECOND_NS,
    ),
    Setting(
        "grpc.reflection",
        Kind.BOOLEAN,
        "false",
        "Whether server reflection is served.",
        is_original=False,
    ),
)

TLS: Final = (
    Setting(
        "tls.key",
        Kind.TEXT,
        "",
        "PEM file with the private key of the gRPC port; requires `tls.cert`.",
        flags=("--tls-key",),
    ),
    Setting(
        "tls.cert",
        Kind.TEXT,
        "",
        "PEM file with the certificate chain of the gRPC port; with `tls.key` it turns TLS on.",
        flags=("--tls-cert",),
    ),
    Setting(
        "tls.min.version",
        Kind.CHOICE,
        "1.2",
        "Lowest TLS version that clients may use.",
        choices=("1.2", "1.3"),
        is_original=False,
    ),
    Setting(
        "tls.client.auth.enabled",
        Kind.BOOLEAN,
        "false",
        "Whether clients must present a certificate that verifies.",
    ),
    Setting(
        "tls.client.auth.ca",
        Kind.TEXT,
        "",
        "PEM file with the certificate authorities for client certificates, and lists of revoked "
        "ones; requires `tls.cert`.",
    ),
    Setting(
        "tls.client.authz.enabled",
        Kind.BOOLEAN,
        "false",
        "Whether this broker checks calls of clients against the policy file; requires "
        "`tls.client.auth.enabled`, `tls.client.authz.model` and `tls.client.authz.policy`. Prefer "
        "`access.enabled`, whose rules all brokers share.",
    ),
    Setting(
        "tls.client.authz.model",
        Kind.TEXT,
        "",
        "Casbin model file of the original, read at the start and at SIGHUP.",
    ),
    Setting(
        "tls.client.authz.policy",
        Kind.TEXT,
        "",
        "Casbin policy file of the original, in CSV, read at the start and at SIGHUP.",
    ),
    Setting(
        "access.enabled",
        Kind.BOOLEAN,
        "false",
        "Whether this broker enforces the access rules of the cluster and turns access control on "
        "in the whole cluster, where it stays on until `liftbridge access disable`; requires "
        "`tls.client.auth.enabled`.",
        is_original=False,
    ),
    Setting(
        "access.super.users",
        Kind.LIST,
        "",
        "Principals, such as the common name of a certificate, that have every right on the port "
        "for operators, and everywhere if nobody may change access rules yet when access control "
        "is turned on.",
        is_original=False,
    ),
)

NATS: Final = (
    Setting(
        "nats.servers",
        Kind.LIST,
        "nats://127.0.0.1:4222",
        "URLs of the NATS servers.",
        flags=("--nats-servers", "-n"),
    ),
    Setting("nats.user", Kind.TEXT, "", "User name; requires a password."),
    Setting(
        "nats.password",
        Kind.TEXT,
        "",
        "Password of `nats.user`; prefer `nats.password.file`.",
        is_secret=True,
    ),
    Setting(
        "nats.password.file",
        Kind.TEXT,
        "",
        "File with the password of `nats.user`, read on each connect.",
        is_original=False,
    ),
    Setting(
        "nats.token",
        Kind.TEXT,
        "",
        "Authentication token; prefer `nats.token.file`.",
        is_original=False,
        is_secret=True,
    ),
    Setting(
        "nats.token.file",
        Kind.TEXT,
        "",
        "File with the authentication token, read on each connect.",
        is_original=False,
    ),
    Setting(
        "nats.nkey.seed.file",
        Kind.TEXT,
        "",
        "File with an nkey seed.",
        is_original=False,
    ),
    Setting(
        "nats.credentials.file",
        Kind.TEXT,
        "",
        "File with a user JWT and its nkey seed (`.creds`).",
        is_original=False,
    ),
    Setting(
        "nats.tls.cert",
        Kind.TEXT,
        "",
        "PEM certificate that is presented to NATS; requires `nats.tls.key`.",
    ),
    Setting("nats.tls.key", Kind.TEXT, "", "PEM private key of `nats.tls.cert`."),
    Setting(
        "nats.tls.ca",
        Kind.TEXT,
        "",
        "PEM file with the certificate authorities for the certificate of NATS; given alone, it "
        "turns TLS on.",
        derived="the certificate authorities of the system",
    ),
    Setting(
        "nats.embedded",
        Kind.BOOLEAN,
        "",
        "Whether the broker runs its own NATS server as a child process.",
        derived="true when `nats.embedded.config` is given, otherwise false",
        flags=("--embedded-nats", "-e"),
    ),
    Setting(
        "nats.embedded.config",
        Kind.TEXT,
        "",
        "Configuration file for the embedded NATS server.",
        flags=("--embedded-nats-config", "--nc"),
    ),
)

METRICS: Final = (
    Setting(
        "metrics.listen",
        Kind.ADDRESS,
        "127.0.0.1:9393",
        "Address on which metrics and health are served, without authentication; `off` turns it "
        "off.",
        off="off",
        is_original=False,
        flags=("--metrics-listen",),
    ),
    Setting(
        "metrics.streams.max",
        Kind.INTEGER,
        "100",
        "Streams that have their own series on `/metrics`, the largest first; the others are "
        "summed.",
        is_original=False,
        is_reloadable=True,
        maximum=100,
    ),
)

ADMIN: Final = (
    Setting(
        "admin.listen",
        Kind.ADDRESS,
        "off",
        "Address on which operators are served (`liftbridge cluster`); `off` turns it off. An "
        "address beyond loopback requires the certificates below.",
        off="off",
        is_original=False,
        flags=("--admin-listen",),
    ),
    Setting(
        "admin.tls.cert",
        Kind.TEXT,
        "",
        "PEM file with the certificate chain of the port for operators; with `admin.tls.key` and "
        "`admin.tls.ca` it turns TLS on, and operators must present a certificate.",
        is_original=False,
    ),
    Setting(
        "admin.tls.key",
        Kind.TEXT,
        "",
        "PEM file with the private key of the port for operators.",
        is_original=False,
    ),
    Setting(
        "admin.tls.ca",
        Kind.TEXT,
        "",
        "PEM file with the certificate authorities for the certificates of operators.",
        is_original=False,
    ),
    Setting(
        "admin.super.users",
        Kind.LIST,
        "",
        "Principals that have every right on the port for operators, and none elsewhere: their "
        "names mean nothing in the certificates and tokens of clients.",
        is_original=False,
    ),
)

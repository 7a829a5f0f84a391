"""Options of the NATS adapter; the server maps them from the broker's configuration."""

from dataclasses import dataclass, field

from liftbridge_broker.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """Options of the link to NATS. At most one authentication method is set; empty texts are unset.

    Attributes:
        server_id: Id of this broker, part of the names of its connections.
        namespace: `clustering.namespace`, part of the names of its connections.
        servers: URLs, tried in order: `nats://host:port`, or `tls://` which requires TLS.
        user: User name.
        password: Password of the user, if given directly.
        password_file: File with the password, read at each connection.
        token: Authentication token, if given directly.
        token_file: File with the token, read at each connection.
        nkey_seed_file: File with the seed of a user nkey, read at each connection.
        credentials_file: `.creds` file with a user JWT and its seed, read at each connection.
        tls_cert: PEM certificate presented to NATS, with `tls_key`; read at each connection.
        tls_key: PEM private key.
        tls_ca: PEM authorities for the server's certificate; empty: those of the system.
        inbox_prefix: First tokens of this broker's inboxes, without the last dot.
        connect_timeout_ms: Maximum time to connect and for the handshake of an attempt.
        connect_attempts_max: Attempts at start, over all servers, before giving up.
        reconnect_wait_ms: Pause between attempts after the first connection; they never end.
        ping_interval_ms: Interval of pings to the server.
        pending_bytes_max: Bytes not yet taken by the socket above which publishing is refused.
    """

    server_id: str
    namespace: str = "liftbridge-default"
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
    inbox_prefix: str = "_INBOX"
    connect_timeout_ms: int = 2_000
    connect_attempts_max: int = 5
    reconnect_wait_ms: int = 250
    ping_interval_ms: int = 5_000
    pending_bytes_max: int = 64 << 20

    def check(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            ConfigError: Names the settings.
        """
        if not self.servers:
            raise ConfigError("nats.servers is empty")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("nats.tls.cert and nats.tls.key must be set together")
        if not self.user and (self.password or self.password_file):
            raise ConfigError("nats.password is set without nats.user")
        ways = {
            "nats.user": bool(self.user),
            "nats.token": bool(self.token or self.token_file),
            "nats.nkey.seed.file": bool(self.nkey_seed_file),
            "nats.credentials.file": bool(self.credentials_file),
        }
        given = [name for name, is_given in ways.items() if is_given]
        if len(given) > 1:
            raise ConfigError(f"more than one authentication method is set: {', '.join(given)}")

    @property
    def has_tls_files(self) -> bool:
        """Return whether certificates for the link are set, so that it must use TLS."""
        return bool(self.tls_cert or self.tls_ca)

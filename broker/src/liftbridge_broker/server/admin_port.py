"""The listener for operators: TLS, facts of the process, opened before there is a cluster."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib import metadata as packages
from pathlib import Path
from typing import Final

from liftbridge_broker.api.admin_context import (
    AdminContext,
    Certificate,
    NatsFacts,
    ProcessFacts,
    Reloaded,
    Setting,
)
from liftbridge_broker.config.options import BrokerOptions, TlsOptions
from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.server.admin import check_admin_tls, make_admin
from liftbridge_broker.server.core import Core
from liftbridge_broker.server.services import make_context, register_streams
from liftbridge_broker.server.wiring import server_tls

PACKAGE: Final = "liftbridge-broker"


class AdminPort:
    """The port for operators of one process.

    Attributes:
        context: What its services work with; the owner sets `found` and calls `begin`.
        port: Port it listens on, 0 while it is closed or off.
    """

    def __init__(
        self,
        options: BrokerOptions,
        core: Core,
        clock: Clock,
        observer: Observer,
        *,
        are_peers_connected: Callable[[], bool],
        nats: Callable[[], NatsFacts],
        restart_needed: Callable[[], Sequence[str]],
        settings: Callable[[], Sequence[Setting]],
        reload: Callable[[], Reloaded],
    ) -> None:
        """Listen to nobody yet.

        Args:
            options: What the broker was told.
            core: The broker, whose store is open.
            clock: Time.
            observer: Told of refused connections.
            are_peers_connected: Whether the links to other brokers are up.
            nats: What is known of the NATS servers.
            restart_needed: Settings that were changed and need a restart.
            settings: All settings in force.
            reload: Reads the configuration again.

        Raises:
            ConfigError: A file of its TLS is wrong.
        """
        self._options = options
        self._core = core
        admin = options.admin
        self._tls = server_tls(admin.tls) if admin.is_enabled and admin.tls.is_enabled else None
        tls = options.tls, options.admin.tls
        facts = ProcessFacts(
            version=packages.version(PACKAGE),
            start_id=core.incarnation_id,
            configuration_hash=options.fingerprint(),
            restart_needed=restart_needed,
            settings=settings,
            reload=reload,
            is_retired=lambda: core.is_retired,
            retire=core.retire,
            certificates=lambda: certificates(*tls),
            are_peers_connected=are_peers_connected,
            nats=nats,
        )
        self.context = AdminContext(me=core.me, clock=clock, facts=facts)
        self._server = make_admin(self.context, observer)
        self.port = 0

    async def open(self) -> None:
        """Listen, when it is on.

        Raises:
            ConfigError: Others could reach it without a certificate.
            UnavailableError: The address cannot be used.
        """
        admin = self._options.admin
        if self._core.is_open:
            self.begin()
        if not admin.is_enabled:
            return
        context = None if self._tls is None else self._tls.context
        check_admin_tls(admin.host, context)
        try:
            self.port = await self._server.start(admin.host, admin.port, context)
        except OSError as error:
            raise UnavailableError(
                f"admin.listen: cannot bind {admin.host}:{admin.port}: {error.strerror or error}"
            ) from error

    def begin(self) -> None:
        """There is a cluster: serve everything, its streams among it."""
        self.context.found = None
        self.context.running = (self._core.node, self._core.consensus)
        context = make_context(self._options, self._core.node, self.context.clock)
        register_streams(self._server, context)

    def reload(self) -> None:
        """Read the certificate anew.

        Raises:
            OSError: It cannot be used; the old one stays in use.
        """
        if self._tls is not None:
            self._tls.reload()

    async def close(self) -> None:
        """End every connection."""
        await self._server.close()


def certificates(tls: TlsOptions, admin: TlsOptions) -> tuple[Certificate, ...]:
    """Certificate files that are set, with the hash of what they hold now."""
    paths = (
        ("tls.cert", tls.cert),
        ("tls.client.auth.ca", tls.client_ca),
        ("admin.tls.cert", admin.cert),
        ("admin.tls.ca", admin.client_ca),
    )
    found: list[Certificate] = []
    for setting, path in paths:
        if path:
            try:
                fingerprint = sha256(Path(path).read_bytes()).hexdigest()
            except OSError as error:
                fingerprint = f"unreadable: {error.strerror}"
            found.append(Certificate(setting, fingerprint))
    return tuple(found)

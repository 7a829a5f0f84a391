"""The listener for operators: TLS, process information, open before the cluster is known."""

from collections.abc import Callable, Sequence
from importlib import metadata as packages
from pathlib import Path
from typing import Final

from liftbridge_broker.api.grpc.tls import ServerTls
from liftbridge_broker.api.operators.admin_context import (
    AdminContext,
    Certificate,
    NatsFacts,
    ProcessFacts,
    Reloaded,
    Setting,
)
from liftbridge_broker.config.options import BrokerOptions, EffectiveSetting
from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.node.assembly.core import Core
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.server.access import Enforcement
from liftbridge_broker.server.admin import check_admin_tls, make_admin
from liftbridge_broker.server.identities import Identities
from liftbridge_broker.server.services import make_context, register_streams
from liftbridge_broker.server.wiring import server_tls

PACKAGE: Final = "liftbridge-broker"


class AdminPort:
    """The operator port of one process.

    Attributes:
        context: Context of its services; the owner sets `found` and calls `begin`.
        port: Port it listens on, 0 while it is closed or off.
        tls: Certificates of the port; `None` for plaintext.
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
        settings: Callable[[], Sequence[EffectiveSetting]],
        reload: Callable[[], Reloaded],
        client_tls: Callable[[], ServerTls | None],
        identities: Identities,
        access: Enforcement,
    ) -> None:
        """Create the port; `open` listens.

        Args:
            options: Options of the broker.
            core: The broker, whose store is open.
            clock: Time.
            observer: Receives refused connections.
            are_peers_connected: Whether the links to other brokers are up.
            nats: State of the NATS servers.
            restart_needed: Returns the changed settings that need a restart.
            settings: All settings in force.
            reload: Reads the configuration again.
            client_tls: Certificates of the ports for clients; None for plaintext.
            identities: Who operators are, and the maker of API tokens.
            access: Access rules in force.

        Raises:
            ConfigError: A TLS file is invalid.
        """
        self._options = options
        self._core = core
        admin = options.admin
        has_tls = admin.is_enabled and admin.tls.is_enabled
        self.tls = server_tls(admin.tls, "admin.tls") if has_tls else None
        facts = ProcessFacts(
            version=packages.version(PACKAGE),
            start_id=core.incarnation_id,
            voters_max=options.clustering.voters_max,
            configuration_hash=options.fingerprint(),
            restart_needed=restart_needed,
            settings=lambda: tuple(map(_shown, settings())),
            reload=reload,
            is_retired=lambda: core.is_retired,
            retire=core.retire,
            certificates=lambda: certificates(options, client_tls(), self.tls),
            are_peers_connected=are_peers_connected,
            nats=nats,
            peer_keys=lambda: core.sessions.keys.key_ids,
            make_token=identities.hasher.make,
        )
        self.context = AdminContext(me=core.me, clock=clock, facts=facts)
        self._access = access.operators
        self._server = make_admin(
            self.context,
            observer,
            access.clients,
            self._access.authorize,
            identities.operators,
        )
        self.port = 0

    async def open(self) -> None:
        """Listen, if the port is enabled.

        Raises:
            ConfigError: Other machines could reach the port without a client certificate.
            UnavailableError: The address cannot be used.
        """
        admin = self._options.admin
        if self._core.is_open:
            self.begin()
        if not admin.is_enabled:
            return
        check_admin_tls(admin.host, None if self.tls is None else self.tls.context)
        try:
            self.port = await self._server.start(admin.host, admin.port, self.tls)
        except OSError as error:
            raise UnavailableError(
                f"admin.listen: cannot bind {admin.host}:{admin.port}: {error.strerror or error}"
            ) from error

    def begin(self) -> None:
        """Serve all methods; called once the cluster and its streams are known."""
        self.context.found = None
        self.context.running = (self._core.node, self._core.consensus)
        clock, turns = self.context.clock, self._server.turns
        context = make_context(self._options, self._core.node, clock, turns, self._access)
        register_streams(self._server, context)

    async def close(self) -> None:
        """Close every connection."""
        await self._server.close()


def _shown(one: EffectiveSetting) -> Setting:
    return Setting(one.key, one.text, one.source, one.is_reloadable, one.has_effect)


def certificates(
    options: BrokerOptions, tls: ServerTls | None, admin: ServerTls | None
) -> tuple[Certificate, ...]:
    """Return the certificate files in use, with the hashes of their contents when read.

    Args:
        options: Names of the files.
        tls: TLS of the client ports; None for plaintext.
        admin: TLS of the operator port; None for plaintext.
    """
    named = (
        ("tls.cert", options.tls.cert, tls),
        ("tls.client.auth.ca", options.tls.client_ca, tls),
        ("admin.tls.cert", options.admin.tls.cert, admin),
        ("admin.tls.ca", options.admin.tls.client_ca, admin),
    )
    return tuple(
        Certificate(setting, serving.loaded[Path(path)])
        for setting, path, serving in named
        if path and serving is not None
    )

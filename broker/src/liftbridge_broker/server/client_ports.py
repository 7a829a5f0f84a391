"""The client ports: bound and opened here, and announced to the cluster by listener name.

Every broker has one listener without a name. The advertised addresses of further listeners may
change while the broker runs, because nodes or load balancers assign them.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from liftbridge_broker.adapters.observe.observer import StructlogObserver
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.config.listeners import advertised_of, read_addresses
from liftbridge_broker.config.options import BrokerOptions, ListenerOptions
from liftbridge_broker.config.values import Address
from liftbridge_broker.errors import ConfigError, LiftbridgeError, UnavailableError
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.node.assembly.core import Core
from liftbridge_broker.node.assembly.session import advertise
from liftbridge_broker.server.session import Waiting
from liftbridge_broker.server.watching import FileWatch
from liftbridge_broker.server.wiring import server_tls

if TYPE_CHECKING:
    from liftbridge_broker.api.grpc.tls import ServerTls

FILE_BYTES_MAX: Final = 65_536


class ClientPorts:
    """The client ports of a broker.

    Args:
        options: Options of the broker.
        core: The broker.
        waiting: Lets time pass until the cluster has recorded them.
        observer: Is notified of addresses, and of an unusable address file.

    Attributes:
        port: Port of the listener without a name, 0 before `bind`.
        ports: Ports of the further listeners by name, after `bind`.
        tls: Certificates of all listeners that speak TLS, after `bind`; `None` when none does.
    """

    def __init__(
        self, options: BrokerOptions, core: Core, waiting: Waiting, observer: StructlogObserver
    ) -> None:
        """Create the ports, unbound."""
        self._options = options
        self._listeners = options.listeners
        self._core = core
        self._waiting = waiting
        self._observer = observer
        self._watch = FileWatch((options.advertised_file,))
        self._announcing: asyncio.Task[None] | None = None
        self._announced: tuple[ListenerAddress, ...] = ()
        self.port = 0
        self.ports: dict[str, int] = {}
        self.tls: ServerTls | None = None

    async def bind(self, server: GrpcServer) -> None:
        """Bind the ports; no client is admitted yet.

        Raises:
            ConfigError: A certificate, or the file with addresses, cannot be used.
            UnavailableError: An address cannot be used.
        """
        if self._options.tls.is_enabled:
            self.tls = server_tls(self._options.tls, "tls")
        listen = self._options.listen
        try:
            self.port = await server.bind(
                listen.host, listen.port, self.tls if listen.has_tls else None
            )
        except OSError as error:
            raise _cannot_bind("listen", listen.host, listen.port, error) from error
        for listener in self._listeners:
            try:
                self.ports[listener.name] = await server.bind(
                    listener.host,
                    listener.port,
                    self.tls if listener.has_tls else None,
                    listener=listener.name,
                )
            except OSError as error:
                raise _cannot_bind(
                    f"listeners: {listener.name}", listener.host, listener.port, error
                ) from error
        self._announced = self._read()

    def let_in(self, server: GrpcServer) -> None:
        """Admit clients on all ports.

        Raises:
            UnavailableError: Another process took an address after `bind`.
        """
        listen = self._options.listen
        try:
            server.listen()
        except OSError as error:
            raise _cannot_bind("listen", listen.host, listen.port, error) from error
        for listener in self._listeners:
            try:
                server.listen(listener.name)
            except OSError as error:
                raise _cannot_bind(
                    f"listeners: {listener.name}", listener.host, listener.port, error
                ) from error

    @property
    def advertised(self) -> tuple[ListenerAddress, ...]:
        """Return the addresses to announce to clients of the further listeners."""
        return self._announced

    def set_listeners(self, listeners: tuple[ListenerOptions, ...]) -> None:
        """Apply new advertised addresses; ports stay bound as they are."""
        self._listeners = listeners
        if self.port:
            self._watch.has_changed()
            self._renew()

    def look(self) -> None:
        """Read the address file again if it changed."""
        if self._watch.has_changed():
            self._renew()

    def close(self) -> None:
        """Stop announcing addresses; the server closes the ports."""
        if self._announcing is not None:
            self._announcing.cancel()

    def _renew(self) -> None:
        try:
            fresh = self._read()
        except ConfigError as error:
            self._refused(error)
            return
        if fresh != self._announced:
            self._announced = fresh
            self.close()
            self._announcing = asyncio.get_running_loop().create_task(self._announce())

    async def _announce(self) -> None:
        try:
            await self._waiting.run(advertise(self._core, self._announced))
        except LiftbridgeError as error:
            self._refused(error)

    def _refused(self, error: LiftbridgeError) -> None:
        self._observer.transition("configuration_reload_refused", {"reason": error.text})

    def _read(self) -> tuple[ListenerAddress, ...]:
        """Return the addresses to announce.

        Raises:
            ConfigError: The file cannot be used.
        """
        path = self._options.advertised_file
        if not path:
            addresses = {listener.name: listener.advertised for listener in self._listeners}
        else:
            from_file = _read_file(path)
            addresses = {
                listener.name: advertised_of(from_file[listener.name], listener.advertised[0])
                for listener in self._listeners
                if listener.name in from_file
            }
        return tuple(
            ListenerAddress(name, host, port or self.ports[name])
            for name, (host, port) in addresses.items()
        )


def _read_file(path: str) -> dict[str, Address]:
    """Return the addresses by listener; empty while the file does not exist.

    Raises:
        ConfigError: The file cannot be read, or its content is invalid.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(FILE_BYTES_MAX).decode()
        return read_addresses(text.replace(",", " ").split())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"listeners.advertised.file: {path}: {reason}") from error


def _cannot_bind(setting: str, host: str, port: int, error: OSError) -> UnavailableError:
    reason = error.strerror or error
    return UnavailableError(f"{setting}: cannot bind {host}:{port}: {reason}")

"""Who may call: the authenticators of both servers, and the files and settings behind them."""

from collections.abc import Callable, Mapping

from liftbridge_broker.access.options import IdentityOptions
from liftbridge_broker.adapters.identity.authenticator import CallerAuthenticator
from liftbridge_broker.adapters.identity.hashing import Hasher
from liftbridge_broker.controller.state import TokenState
from liftbridge_broker.errors import ConfigError
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.server.watching import FileWatch


class Identities:
    """Identities of the callers of one broker.

    Operators prove theirs by a certificate, or connect from this machine.

    Attributes:
        clients: CallerAuthenticator of the ports for clients.
        operators: CallerAuthenticator of the port for operators.
        hasher: Hashes the secrets of API tokens.
    """

    def __init__(
        self,
        options: IdentityOptions,
        tokens: Callable[[], Mapping[str, TokenState]],
        clock: Clock,
        observer: Observer,
    ) -> None:
        """Read the keys.

        Args:
            options: What is accepted.
            tokens: Returns the API tokens of the cluster.
            clock: Both clocks.
            observer: Is notified of refusals and of new keys.

        Raises:
            ConfigError: The file of keys cannot be used.
        """
        self._observer = observer
        self._watch = _watch_of(options)
        self.hasher = Hasher()
        parts = (tokens, clock, observer, self.hasher)
        self.clients = CallerAuthenticator(options, *parts)
        self.operators = CallerAuthenticator(IdentityOptions(rules=options.rules), *parts)

    def set_options(self, options: IdentityOptions) -> None:
        """Accept other identities from now on, by keys that are read again.

        Raises:
            ConfigError: The file of keys cannot be used; nothing changes.
        """
        watch = _watch_of(options)
        self.clients.set_options(options)
        self.operators.set_options(IdentityOptions(rules=options.rules))
        self._watch = watch

    def look(self) -> None:
        """Read the keys again if their file changed; if it is invalid, the old ones stay in use."""
        if not self._watch.has_changed():
            return
        try:
            self.clients.reload_keys()
        except ConfigError as error:
            self._observer.transition("configuration_reload_refused", {"reason": error.text})
        else:
            path = self.clients.keys_file
            self._observer.transition("identity_keys_reloaded", {"path": path})

    def samples(self) -> Mapping[tuple[str, ...], int]:
        """Return the proofs that were checked, by kind and outcome."""
        return self.clients.counts

    def close(self) -> None:
        """End the thread that hashes."""
        self.hasher.close()


def _watch_of(options: IdentityOptions) -> FileWatch:
    """Watch the file of keys; created before it is read, so that no change is missed."""
    return FileWatch(() if options.jwt is None else (options.jwt.keys_file,))

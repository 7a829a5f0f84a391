"""Interface of the server for its client connections."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from liftbridge_broker.api.grpc.call import Authorize, Call
from liftbridge_broker.api.grpc.identities import OutlivedCalls
from liftbridge_broker.api.grpc.turns import Turns
from liftbridge_broker.http2.events import ConnectionEnded
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.http2.slots import ConnectionState
from liftbridge_broker.ports.authenticator import Authenticator

Connection_contra = TypeVar("Connection_contra", contravariant=True)


class ConnectionOwner(Protocol[Connection_contra]):
    """Port from a connection to its server."""

    limits: Limits
    turns: Turns
    authenticator: Authenticator | None
    outlived: OutlivedCalls
    authorize: Authorize

    def on_open(self, connection: Connection_contra, now: int) -> bool:
        """Admit a new connection; return whether it got a slot."""
        ...

    def on_state(
        self, connection: Connection_contra, state: ConnectionState, idle_since_ns: int
    ) -> None:
        """Note the state of a connection, by which it may be evicted."""
        ...

    def on_closed(self, connection: Connection_contra) -> None:
        """Record that a connection closed."""
        ...

    def on_ended(self, peer: str, event: ConnectionEnded) -> None:
        """Record the reason why a connection ended."""
        ...

    def on_held(self, received: int, unsent: int) -> None:
        """Record by how much a connection's held request and answer bytes changed."""
        ...

    def on_resets(self, connection: Connection_contra, resets: int, now: int) -> None:
        """Count streams that a connection opened and reset, or made the broker reset."""
        ...

    def on_bytes(self, *, received: int = 0, sent: int = 0) -> None:
        """Count bytes."""
        ...

    def on_call_opened(self) -> None:
        """Count a call."""
        ...

    def on_call_ended(self, method: str, code: int) -> None:
        """Count the end of a call."""
        ...

    def needs_identity(self, path: str) -> bool:
        """Return whether a call of a method must come from an accepted identity."""
        ...

    def is_unary(self, path: str) -> bool:
        """Return whether a method answers one request and ends."""
        ...

    def method(self, path: str) -> Callable[[Call], None] | None:
        """Return the handler of a path."""
        ...

    def unknown_method_text(self, path: str) -> str:
        """Return the error text for a path without a handler."""
        ...

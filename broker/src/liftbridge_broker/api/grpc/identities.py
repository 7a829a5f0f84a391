"""Identities of calls: found before a service sees the call, checked again while it runs."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, cast

from liftbridge_broker.access.identities import NOBODY, Caller, Identity, Proof
from liftbridge_broker.api.grpc.call import Call, PeerCertificate
from liftbridge_broker.api.grpc.sockets import source_of
from liftbridge_broker.api.grpc.turns import Chore, Turns
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.ports.authenticator import Authenticator

LOOK_SECONDS: Final = 1.0
"""Time between two checks of the identities of running calls."""


class CallerIdentity:
    """Who calls on one connection; remembers the last answer, as clients repeat their proof."""

    __slots__ = (
        "_authenticator",
        "_authorization",
        "_caller",
        "_generation",
        "_known",
        "_listener",
    )

    def __init__(self, authenticator: Authenticator | None, listener: str) -> None:
        """Start without a connection; without an authenticator everyone is anonymous."""
        self._authenticator = authenticator
        self._listener = listener
        self._caller: Caller | None = None
        self._known: Identity | None = None
        self._authorization = b""
        self._generation = 0

    def connect(self, transport: asyncio.BaseTransport, peer: str) -> None:
        """Learn who is connected."""
        self._caller = Caller(
            peer,
            source_of(peer),
            self._listener,
            transport.get_extra_info("sslcontext") is not None,
            cast("PeerCertificate | None", transport.get_extra_info("peercert")) or None,
        )

    def find(
        self, authorization: bytes, done: Callable[[Identity | LiftbridgeError], None]
    ) -> Identity | None:
        """Return the identity of a call; None if `done` gets it in a later turn.

        Raises:
            LiftbridgeError: The call is refused.
        """
        authenticator = self._authenticator
        if authenticator is None:
            return NOBODY
        known = self._known
        if (
            known is not None
            and authorization == self._authorization
            and self._generation == authenticator.generation
            and not authenticator.fault_of(known)
        ):
            return known
        assert self._caller is not None
        identity = authenticator.identify(self._caller, authorization, done)
        if identity is not None:
            self._known, self._authorization = identity, authorization
            self._generation = authenticator.generation
        return identity

    @property
    def has_outlived_certificate(self) -> bool:
        """Return whether the certificate of the connection named its client, and has expired."""
        known = self._known
        return known is not None and known.proof is Proof.CERTIFICATE and bool(self.fault_of(known))

    def fault_of(self, identity: Identity) -> str:
        """Return why an identity no longer holds; empty while it does."""
        return "" if self._authenticator is None else self._authenticator.fault_of(identity)


class WaitingCall:
    """A call whose identity is being verified: keeps what arrives until a service may see it.

    The bytes count as those of incomplete requests, and the client gets no further window.
    """

    def __init__(self, call: Call, handler: Callable[[Call], None]) -> None:
        """Take the input of the call."""
        self._call = call
        self._handler = handler
        self._messages: list[bytes] = []
        self._has_ended = False
        call.on_messages = self._on_messages
        call.on_half_close = self._on_half_close
        call.pause_reading()

    def _on_messages(self, messages: list[bytes]) -> None:
        self._messages += messages
        self._call.keep(sum(map(len, messages)))

    def _on_half_close(self) -> None:
        self._has_ended = True

    def go_on(self) -> Iterator[None] | None:
        """Begin the call, which has its identity now; return the steps that answer it, if any.

        Raises:
            LiftbridgeError: The call is refused.
        """
        call = self._call
        self._handler(call)
        call.resume_reading()
        if self._messages:
            call.on_messages(self._messages)
        return call.on_half_close() if self._has_ended else None


class OutlivedCalls:
    """Looks once a second for running calls whose identity no longer holds.

    Only connections with an identity that can end are looked at, a few in each turn of the loop.
    """

    def __init__(self, turns: Turns) -> None:
        """Start with nothing to look at."""
        self._turns = turns
        self._connections: dict[object, Callable[[], Iterator[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: object, end_outlived: Callable[[], Iterator[None]]) -> None:
        """Look at a connection from now on; `end_outlived` ends such calls of it, in steps."""
        self._connections[connection] = end_outlived
        if self._timer is None:
            self._arm()

    def forget(self, connection: object) -> None:
        """Look no longer at a closed connection."""
        self._connections.pop(connection, None)

    def close(self) -> None:
        """Stop looking."""
        self._connections.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        Chore(self._turns, self._steps())

    def _steps(self) -> Iterator[None]:
        for connection, end_outlived in list(self._connections.items()):
            if connection in self._connections:
                yield from end_outlived()
            yield
        self._timer = None
        if self._connections:
            self._arm()

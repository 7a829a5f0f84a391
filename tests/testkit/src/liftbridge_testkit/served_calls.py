"""Calls of any method of a broker's server, without a network, in turns."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from liftbridge_broker.access.identities import Identity
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.api.grpc.call import Call, PeerCertificate
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.http2.grpc import trailers_block
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from liftbridge_broker.api.grpc.transport import GrpcServer
    from liftbridge_testkit.cluster_world import ClusterWorld

NOTHING: Final = nullcontext()


@dataclass
class Port:
    """A connection with one call; executes its steps one by one.

    Attributes:
        steps: Steps that remain.
        end: Status and text that the call ended with, `None` while it is open.
        sent: Sent answers, including message prefixes.
        is_awaiting: Whether the server expects a request soon.
        principal: Common name of the client's certificate; empty without a certificate.
    """

    steps: deque[Iterator[None]] = field(default_factory=deque)
    end: tuple[int, str] | None = None
    sent: bytearray = field(default_factory=bytearray)
    is_awaiting: bool = False
    principal: str = ""

    def room(self, _stream_id: int) -> int:
        """Return a positive number: there is always room."""
        return 1 << 20

    def begin(self, _stream_id: int, _fields: object) -> None:
        """Ignore the begin of the call."""

    def queue(self, _stream_id: int, frames: bytes | Sequence[bytes | memoryview]) -> bool:
        """Keep what was sent."""
        self.sent += frames if isinstance(frames, bytes) else b"".join(frames)
        return True

    def go_on(self, _call: Call, steps: Iterator[None]) -> None:
        """Queue steps for later."""
        self.steps.append(steps)

    def finish(self, _call: Call, code: int, text: str, error_code: str) -> None:
        """Keep the status of the call once it is ready to be sent."""
        trailers_block(code, text, error_code)
        self.end = (code, text)

    def expect_request(self, _stream_id: int) -> None:
        """Note that a request is expected; nothing is late here."""
        self.is_awaiting = True

    def keep(self, _stream_id: int, _size: int) -> None:
        """No-op: requests arrive whole."""

    def set_reading(self, _stream_id: int, *, is_reading: bool) -> None:
        """No-op: these calls read no further messages."""

    def peer_certificate(self) -> PeerCertificate | None:
        """Return a certificate with the name of the principal."""
        if not self.principal:
            return None
        subject = ((("commonName", self.principal),),)
        return {"subject": subject, "notAfter": "Jan  1 00:00:00 2100 GMT"}


@dataclass
class Served:
    """The only broker of a world, and its server."""

    world: ClusterWorld
    server: GrpcServer

    def call(
        self,
        path: str,
        messages: Sequence[bytes],
        watch: AbstractContextManager[None] = NOTHING,
        principal: str = "",
    ) -> Port:
        """Make a call until it ends or waits; run each of its turns within `watch`."""
        call, port = self.open(path, messages, watch, principal)

        def ends() -> None:
            steps = call.on_half_close()
            if steps is not None:
                port.steps.append(steps)

        if call.is_open:
            self._do(watch, call, ends)
            self._go_on(watch, call, port)
        self._do(watch, call, call.cancel)
        return port

    def open(
        self,
        path: str,
        messages: Sequence[bytes],
        watch: AbstractContextManager[None] = NOTHING,
        principal: str = "",
    ) -> tuple[Call, Port]:
        """Make a call that stays open, for `send` and `work`."""
        port = Port(principal=principal)
        authorize = self.server.authorize
        call = Call(port, 1, method=path, peer="", deadline=1e9, authorize=authorize)
        call.identity = Identity(Principal(principal))
        handler = self.server.method(path)
        assert handler is not None, path
        self._do(watch, call, partial(handler, call))
        self._do(watch, call, lambda: call.on_messages(list(messages)))
        self._go_on(watch, call, port)
        return call, port

    def send(self, call: Call, port: Port, messages: Sequence[bytes]) -> None:
        """Send more messages of an open call."""
        self._do(NOTHING, call, lambda: call.on_messages(list(messages)))
        self._go_on(NOTHING, call, port)

    def work(self, call: Call, port: Port) -> None:
        """Let the broker and the steps of an open call run."""
        self._go_on(NOTHING, call, port)

    @staticmethod
    def _do(watch: AbstractContextManager[None], call: Call, act: Callable[[], object]) -> None:
        with watch:
            try:
                act()
            except LiftbridgeError as error:
                call.refuse(error)

    def _go_on(self, watch: AbstractContextManager[None], call: Call, port: Port) -> None:
        """Run the steps and the broker until nothing moves for a while."""
        member, idle = self.world[1], 0
        while idle < 20:
            if port.steps:
                steps, ended = port.steps[0], object()
                with watch:
                    try:
                        if next(steps, ended) is ended:
                            port.steps.popleft()
                    except LiftbridgeError as error:
                        port.steps.popleft()
                        call.refuse(error)
                idle = 0
                continue
            with watch:
                has_moved = member.take_turn()
            idle = 0 if has_moved else idle + 1
            if not has_moved:
                self.world.now = Instant(self.world.now + MILLISECOND_NS)

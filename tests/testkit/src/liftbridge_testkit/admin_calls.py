"""Calls of `liftbridge.ext.v1.Admin` to a node in memory, without a socket.

Each goes through the table of methods and the bytes of the wire; the world is let to work until the
answer is there.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from liftbridge_broker.adapters.identity.hashing import new_token
from liftbridge_broker.api.grpc.call import Call, do_steps
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.api.operators.admin_context import AdminContext, ProcessFacts
from liftbridge_broker.controller.callers.tokens import VERIFIER_PREFIX
from liftbridge_broker.errors import GrpcStatus, LiftbridgeError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.node.node import Node
from liftbridge_broker.ports.metadata import MetadataConsensus
from liftbridge_broker.server.admin import ADMIN, TOKENS, register_admin, register_tokens
from liftbridge_proto.ext.v1 import admin_pb2, tokens_pb2
from liftbridge_testkit.cluster_world import ClusterWorld


class AdminRefusalError(Exception):
    """A call was refused.

    Attributes:
        status: Its status.
        text: Its text.
    """

    def __init__(self, status: int, text: str) -> None:
        """Take down what came back."""
        super().__init__(f"{GrpcStatus(status).name}: {text}")
        self.status = GrpcStatus(status)
        self.text = text


class _Port:
    """The connection of one call: keeps what is answered."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.end: tuple[int, str] | None = None

    def room(self, _stream_id: int) -> int:
        """Any."""
        return 1 << 20

    def begin(self, _stream_id: int, _fields: object) -> None:
        """No-op: calls here have no headers of their own."""

    def queue(self, _stream_id: int, frames: object) -> bool:
        """Keep a message; its prefix comes as a piece of its own."""
        assert isinstance(frames, list)
        self.answers.append(bytes(frames[1]))
        return True

    def go_on(self, call: Call, steps: Iterator[None]) -> None:
        """Run all steps at once: no other caller waits."""
        do_steps(call, steps)

    def finish(self, _call: Call, code: int, text: str, _error_code: str) -> None:
        """Keep the end."""
        assert self.end is None, "a call ends once"
        self.end = (code, text)

    def expect_request(self, _stream_id: int) -> None:
        """Requests are whole at once."""

    def keep(self, _stream_id: int, _size: int) -> None:
        """Requests are whole at once."""

    def set_reading(self, _stream_id: int, *, is_reading: bool) -> None:
        """No-op: these calls read no further messages."""

    def peer_certificate(self) -> None:
        """Plaintext."""


VERIFIER: Final = VERIFIER_PREFIX + "s" * 22 + "$" + "h" * 43
"""Verifier of every token, of no secret: a hash takes a while."""


class _Clock:
    """The clock of a world."""

    def __init__(self, now: Callable[[], Instant], wall_ns: Callable[[], int]) -> None:
        self.now = now
        self.wall_ns = wall_ns


class AdminCalls:
    """Admin of one broker.

    Attributes:
        context: Admin context of its calls.
    """

    def __init__(
        self,
        me: Peer,
        start_id: str,
        now: Callable[[], Instant],
        wall_ns: Callable[[], int],
        settle: Callable[[Callable[[], bool]], None],
        running: tuple[Node, MetadataConsensus] | None,
    ) -> None:
        """Enter all methods.

        Args:
            me: The broker with its directory.
            start_id: Its process.
            now: Time of the world.
            wall_ns: Its wall clock.
            settle: Lets the world work until something holds.
            running: Its node and group, once it has a cluster.
        """
        facts = ProcessFacts(
            version="1.2.3",
            start_id=start_id,
            voters_max=5,
            configuration_hash="abc",
            make_token=lambda done: done(new_token(), VERIFIER),
        )
        self.context = AdminContext(me=me, clock=_Clock(now, wall_ns), facts=facts, running=running)
        self._settle = settle
        self._server = GrpcServer()
        register_admin(self._server, self.context)
        register_tokens(self._server, self.context)

    def raw(self, method: str, request: bytes) -> bytes:
        """Call with bytes.

        Raises:
            AdminRefusalError: The call was refused.
        """
        handler = self._server.method(ADMIN + method) or self._server.method(TOKENS + method)
        assert handler is not None, method
        port = _Port()
        call = Call(port, 1, method=ADMIN + method, peer="", deadline=None)
        handler(call)
        call.on_messages([request])
        try:
            do_steps(call, call.on_half_close() or iter(()))
        except LiftbridgeError as error:  # as the connection does
            call.finish(error.status, error.text)
        if port.end is None:
            self._settle(lambda: port.end is not None)
        assert port.end is not None, f"{method} was not answered"
        code, text = port.end
        if code:
            raise AdminRefusalError(code, text)
        assert len(port.answers) == 1
        return port.answers[0]

    def call(self, method: str, **fields: object) -> Any:
        """Call by the name of the method and the fields of its request.

        Raises:
            AdminRefusalError: The call was refused.
        """
        messages = admin_pb2 if hasattr(admin_pb2, f"{method}Request") else tokens_pb2
        request = getattr(messages, f"{method}Request")(**fields)
        response = getattr(messages, f"{method}Response")
        return response.FromString(self.raw(method, request.SerializeToString()))

    def refusal(self, method: str, **fields: object) -> tuple[GrpcStatus, str]:
        """Return status and text of a call that must be refused."""
        try:
            answer = self.call(method, **fields)
        except AdminRefusalError as refusal:
            return refusal.status, refusal.text
        raise AssertionError(f"{method} was not refused: {answer}")


def admin_of(world: ClusterWorld, number: int) -> AdminCalls:
    """Admin of a broker of a world, of its present life."""
    member = world[number]
    return AdminCalls(
        member.peer,
        member.link.incarnation_id,
        lambda: world.now,
        lambda: world.wall_ns,
        lambda condition: _until(world, condition),
        (member.node, member.consensus),
    )


def _until(world: ClusterWorld, condition: Callable[[], bool]) -> None:
    world.until(condition, milliseconds=10_000)


def leader_of_metadata(world: ClusterWorld) -> int:
    """Return the number of the broker that leads the metadata group."""
    return next(n for n in range(1, world.size + 1) if world[n].consensus.is_leader)


def follower_of_metadata(world: ClusterWorld) -> int:
    """Return the number of the first broker that does not."""
    return next(n for n in range(1, world.size + 1) if not world[n].consensus.is_leader)

"""Clients with a name: calls that a broker checks by its access rules, and each check checked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from google.protobuf.message import Message

from liftbridge_broker.access.identities import Identity
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.grpc.call import Call, do_steps
from liftbridge_broker.errors import LiftbridgeError, PermissionDeniedError
from liftbridge_testkit.sim.clients.calls import Serving
from liftbridge_testkit.sim.clients.client_end import ClientEnd
from liftbridge_testkit.sim.invariants.access import AccessRules, Act
from liftbridge_testkit.sim.machine import Machine

if TYPE_CHECKING:
    from liftbridge_testkit.sim.broker import ClusterBroker

API: Final = "/proto.API/"
DATA: Final = "/liftbridge.ext.v1.Data/"
GROUPS: Final = "/liftbridge.ext.v1.Groups/"
DEADLINE: Final = 1e9
"""Deadline of calls, in seconds: they need no timer of an event loop."""

Serve = Callable[[Call, bytes], Iterator[None] | None]
"""A service of the API for calls with one answer."""
Finished = Callable[[bytes, str], None]
"""Receives an answer, and the code of a refusal; once."""


@dataclass(frozen=True, slots=True)
class Named:
    """Whom a client acts for, in a world with access rules.

    Attributes:
        who: The name.
        rules: Checks what the broker decides.
    """

    who: Principal
    rules: AccessRules

    def context(self, serving: Serving) -> Context:
        """Return the context of a service of the API."""
        return cast("ClusterBroker", serving).context()

    def call(self, serving: Serving, end: ClientEnd, method: str) -> Call:
        """Return a call to a broker."""
        authorize = cast("ClusterBroker", serving).access.authorize
        call = Call(end, 1, method=method, peer="sim", deadline=DEADLINE, authorize=authorize)
        call.identity = Identity(self.who)
        return call

    def decided(self, machine: Machine, acts: tuple[Act, ...], *, is_denied: bool) -> None:
        """Check what a broker decided in this turn."""
        self.rules.decided(machine, self.who, acts, is_denied=is_denied)

    def ask(
        self,
        serving: Serving,
        machine: Machine,
        method: str,
        serve: Serve,
        request: Message,
        acts: tuple[Act, ...],
        done: Finished,
    ) -> None:
        """Make a call with one answer, in a turn of the broker; whatever it says needs a right."""
        sent: list[bytes] = []
        codes: list[str] = []

        def finished(_code: int, _text: str, error_code: str) -> None:
            codes.append(error_code)
            done(b"".join(sent), error_code)

        call = self.call(serving, ClientEnd(sent.append, finished), method)
        try:
            do_steps(call, serve(call, request.SerializeToString()) or iter(()))
        except LiftbridgeError as error:
            call.refuse(error)
        self.decided(machine, acts, is_denied=PermissionDeniedError.code in codes)

    def authorize(
        self,
        serving: Serving,
        machine: Machine,
        method: str,
        request: Message,
        acts: tuple[Act, ...],
    ) -> None:
        """Check a request as the API does, for a client that calls the node below it.

        Raises:
            PermissionDeniedError: The broker refuses it.
        """
        call = self.call(serving, ClientEnd(_ignore, _ignore_end), method)
        try:
            call.authorize(request)
        except PermissionDeniedError:
            self.decided(machine, acts, is_denied=True)
            raise
        self.decided(machine, acts, is_denied=False)


def _ignore(_frames: bytes) -> None:
    """Ignore an answer."""


def _ignore_end(_code: int, _text: str, _error_code: str) -> None:
    """Ignore the end."""

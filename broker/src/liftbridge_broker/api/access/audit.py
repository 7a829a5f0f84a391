"""Audit: one event for each call that may change something for others, allowed or refused.

It begins where access is decided, for all services and ports in one place, and ends with the call,
so that the event has the outcome. What it shows of a request has no secrets: none of these requests
has one, which a test checks by their descriptors, and bytes are never shown.

Calls for messages, cursors and memberships of groups are not audited: they change what belongs to
their caller, and there are too many. Their refusals are events of access control.
"""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from google.protobuf.message import Message

from liftbridge_broker.access.rules import Operation, ResourceKind
from liftbridge_broker.api.access.needs import NEEDS, Known, Needs
from liftbridge_broker.api.access.summaries import summary_of
from liftbridge_broker.api.grpc.call import MAIN_LISTENER, Call
from liftbridge_broker.errors import GrpcStatus
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.ports.observe import Observer

FAILURES_MAX: Final = 10
"""Calls without success reported in a second; further ones are only counted.

All that succeed are reported: each was a change that the metadata group had to agree on.
"""

NAMES_MAX: Final = 4
NAME_LENGTH_MAX: Final = 256
"""Resources that an event names, and characters of each."""

UNANSWERED: Final = "UNANSWERED"
"""Outcome of a call that ended before its answer: it may have done its work."""

_CHANGING: Final = (
    Operation.CREATE
    | Operation.DELETE
    | Operation.ALTER
    | Operation.PAUSE
    | Operation.SET_READONLY
    | Operation.GRANT
)
_READING: Final = ("/liftbridge.ext.v1.Tokens/ListTokens",)
"""Methods that need the right to change something, and only show it."""


def _changes(needs: Needs) -> bool:
    return not isinstance(needs, Known) and any(need.operation & _CHANGING for need in needs)


AUDITED: Final = frozenset(path for path, needs in NEEDS.items() if _changes(needs)).difference(
    _READING
)
"""Methods that leave an event."""


class Audit:
    """The audit of one kind of ports.

    Args:
        observer: Receives the events.
        now: Returns the time, for the bound of failures.
        port: Name of the main listener in events.
    """

    def __init__(self, observer: Observer, now: Callable[[], Instant], port: str) -> None:
        self._observer = observer
        self._now = now
        self._port = port
        self._second_end = Instant(0)
        self._failures = 0
        self._unreported = 0

    def begin(self, call: Call, request: object) -> None:
        """Report a call once it ends, if its method is audited; before its access is decided."""
        if call.method in AUDITED and call.on_end is None:
            assert isinstance(request, Message)
            call.on_end = partial(
                self._ended, call, _resources(call.method, request), summary_of(request)
            )

    def _ended(
        self, call: Call, resource: str, request: str, status: int | None, error_code: str
    ) -> None:
        if status == GrpcStatus.OK:
            outcome = GrpcStatus.OK.name
        elif self._is_too_much():
            self._unreported += 1
            return
        else:
            outcome = UNANSWERED if status is None else error_code or GrpcStatus(status).name
        fields = {
            "principal": call.principal.name,
            "proof": str(call.identity.proof),
            "peer": call.peer,
            "listener": self._port if call.listener == MAIN_LISTENER else call.listener,
            "method": call.method,
            "resource": resource,
            "request": request,
            "outcome": outcome,
            "unreported": self._unreported,
        }
        self._unreported = 0
        self._observer.transition("audit", fields)

    def _is_too_much(self) -> bool:
        """Count a call without success; return whether there were too many in this second."""
        now = self._now()
        if now >= self._second_end:
            self._second_end, self._failures = Instant(now + SECOND_NS), 0
        self._failures += 1
        return self._failures > FAILURES_MAX


def _resources(method: str, request: Message) -> str:
    """Return the kinds and names of what a call is about, as access rules name them."""
    needs = NEEDS[method]
    assert not isinstance(needs, Known)
    named = ((need.kind, name) for need in needs for name in need.names(request))
    return ", ".join(
        name if kind is ResourceKind.CLUSTER else f"{kind.name.lower()}:{name[:NAME_LENGTH_MAX]}"
        for kind, name in islice(named, NAMES_MAX)
    )

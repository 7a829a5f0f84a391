"""Access control of calls: refuses what the rules forbid, and ends calls that they forbid later.

The decision depends on the caller and the names in its request alone, never on what exists, and is
made before anything is looked up: a forbidden name is refused alike whether it exists or not.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from liftbridge_broker.access.gate import Gate
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.rules import Operation, ResourceKind
from liftbridge_broker.api.access.audit import Audit
from liftbridge_broker.api.access.needs import NEEDS, Known, Need
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.errors import InvalidRequestError, PermissionDeniedError
from liftbridge_broker.model.groups import PATTERNS_MAX, patterns_of
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.scheduling.steps import in_steps
from liftbridge_broker.ports.observe import Observer

REPORTS_MAX: Final = 10
"""Refusals reported in a second; further ones are only counted."""

NAMES_MAX: Final = 10_000
"""Resources of one kind that a request may name: each costs some 3 us under many rules."""

NAME_LENGTH_MAX: Final = 256
"""Characters of a name in a refusal and its report."""

EVERYTHING: Final = "*"
"""Resource in the refusal of a method that names none, as in the original."""

CLIENTS: Final = "main"
OPERATORS: Final = "admin"
"""Names of ports in the audit."""

End = Callable[[PermissionDeniedError], None]


class AccessControl:
    """Authorises the calls of one broker, on all its ports.

    Attributes:
        gate: Decides.
        denied_counts: Refusals by method.
        do_later: Runs steps that no call waits for; set by the owner of the turns.
    """

    def __init__(
        self,
        observer: Observer | None = None,
        now: Callable[[], Instant] = lambda: Instant(0),
        port: str = CLIENTS,
    ) -> None:
        self._audit = None if observer is None else Audit(observer, now, port)
        self.gate = Gate()
        self.denied_counts: dict[str, int] = {}
        self.do_later: Callable[[Iterator[None]], None] = _run
        self._observer = observer
        self._now = now
        self._following: dict[Call, tuple[object, End]] = {}
        self._second_end = Instant(0)
        self._reported = 0
        self._unreported = 0

    def authorize(self, call: Call, request: object) -> None:
        """Refuse a request that the caller may not make; the audit learns of it in any case.

        Raises:
            PermissionDeniedError: Some rule set in force does not allow it.
            InvalidRequestError: It names more resources than can be checked in a turn.
        """
        if self._audit is not None:
            self._audit.begin(call, request)
        if not self.gate.is_closed:
            return
        needs = NEEDS.get(call.method)
        if needs is None:
            raise self._denied(call, EVERYTHING)  # guard Access.unknown
        if isinstance(needs, Known):
            if not self.gate.knows(call.principal):  # guard Access.known
                raise self._denied(call, EVERYTHING)
            return
        for need in needs:
            self._check_names(call, need, need.names(request))
            if need.may_match:
                self._check_patterns(call, need, patterns_of(need.names(request)))

    def _check_names(self, call: Call, need: Need, names: Iterable[str]) -> None:
        """Refuse what is not allowed on all of some resources."""
        principal, allows, (operation, kind, *_) = call.principal, self.gate.allows, need
        for count, name in enumerate(names):
            if count == NAMES_MAX:
                raise InvalidRequestError(
                    f"{kind.name.lower()}s: more than {NAMES_MAX} listed; send several requests"
                )
            if not allows(principal, operation, kind, name):  # guard Access.call
                raise self._denied(call, name)

    def _check_patterns(self, call: Call, need: Need, patterns: Sequence[str]) -> None:
        """Refuse patterns that match what is denied; that they are allowed was checked."""
        if len(patterns) > PATTERNS_MAX:
            raise InvalidRequestError(
                f"{need.kind.name.lower()}s: {len(patterns)} patterns listed, at most "
                f"{PATTERNS_MAX}"
            )
        for pattern in patterns:
            if self.gate.denies_part(call.principal, need.operation, need.kind, pattern):
                raise self._denied(call, pattern)

    def check(self, call: Call, operation: Operation, kind: ResourceKind, name: str) -> None:
        """Refuse one operation of a call; for calls with many requests.

        Raises:
            PermissionDeniedError: Some rule set in force does not allow it.
        """
        if not self.gate.allows(call.principal, operation, kind, name):  # guard Access.message
            raise self._denied(call, name)

    def shows(self, principal: Principal, stream: str) -> bool:
        """Return whether a principal may see that a stream exists."""
        return self.gate.allows(principal, Operation.DESCRIBE, ResourceKind.STREAM, stream)

    def shows_group(self, principal: Principal, group: str) -> bool:
        """Return whether a principal may see that a consumer group exists."""
        return any(
            self.gate.allows(principal, operation, ResourceKind.GROUP, group)
            for operation in (Operation.JOIN, Operation.DESCRIBE)
        )

    def follow(self, call: Call, request: object, end: End) -> None:
        """End a running call once its caller may no longer make it.

        Args:
            call: The call, authorized in this turn; its owner must call `forget` when it ends.
            request: Its request.
            end: Ends it with the refusal.
        """
        self._following[call] = (request, end)

    def forget(self, call: Call) -> None:
        """Stop to follow a call; no-op if it is not followed."""
        self._following.pop(call, None)

    @property
    def followed_count(self) -> int:
        """Number of running calls that a change of the rules may end."""
        return len(self._following)

    def on_change(self) -> None:
        """End the running calls that the rules now forbid, in steps."""
        self.do_later(in_steps(list(self._following), self._look))  # guard Access.running

    def _look(self, call: Call) -> None:
        found = self._following.get(call)
        if found is None:
            return  # it ended since
        request, end = found
        try:
            self.authorize(call, request)
        except PermissionDeniedError as error:
            self.forget(call)
            end(error)

    def _denied(self, call: Call, name: str) -> PermissionDeniedError:
        """Count and report a refusal, and return it; the text is the original's."""
        rpc, shown = call.method.rpartition("/")[2], name[:NAME_LENGTH_MAX]
        self.denied_counts[rpc] = self.denied_counts.get(rpc, 0) + 1
        self._report(call, shown)
        return PermissionDeniedError(
            f"The client is not authorized to call {rpc} on resource {shown}"
        )

    def _report(self, call: Call, name: str) -> None:
        if self._observer is None:
            return
        now = self._now()
        if now >= self._second_end:
            self._second_end, self._reported = Instant(now + SECOND_NS), 0
        if self._reported >= REPORTS_MAX:
            self._unreported += 1
            return
        fields = {
            "principal": call.principal.name,
            "groups": call.principal.groups[:16],
            "method": call.method,
            "resource": name,
            "peer": call.peer,
            "unreported": self._unreported,
        }
        self._reported += 1
        self._unreported = 0
        self._observer.transition("access_denied", fields)


def _run(steps: Iterator[None]) -> None:
    """Run all steps at once: nobody waits for turns."""
    for _ in steps:
        pass

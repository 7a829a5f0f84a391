"""`liftbridge.ext.v1.Access`: the access rules of the cluster, on the port for operators."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from liftbridge_broker.access.casbin import read_policy_in_steps
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.rights import concerns
from liftbridge_broker.access.rules import (
    AccessRule,
    NameMatch,
    Operation,
    ResourceKind,
    check_principal,
    text_of,
)
from liftbridge_broker.api.access.control import AccessControl
from liftbridge_broker.api.context import refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.operators.admin_context import AdminContext, unexpected
from liftbridge_broker.api.streams import check_named, decode
from liftbridge_broker.controller.callers.access import CHANGES_MAX, change_rules, check_level
from liftbridge_broker.controller.callers.commands import ChangeRules, SetAccess
from liftbridge_broker.controller.records import Done, RulesChanged
from liftbridge_broker.errors import InvalidRequestError, LiftbridgeError
from liftbridge_broker.model.subjects import INTERNAL_ROOT, partition_subject
from liftbridge_broker.node.scheduling.steps import STEP, in_steps
from liftbridge_broker.ports.observe import Observer
from liftbridge_proto.ext.v1 import access_pb2 as pb

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1_000
GROUPS_MAX: Final = 100
REASONS_MAX: Final = 100
"""Rules that an answer of `CheckAccess` lists."""

SUBJECTS_MAX: Final = 10_000
"""Subjects that an answer of `NatsPermissions` lists."""

CHANGE_BYTES_MAX: Final = 1 << 20
"""Maximum size of a change: half a million empty rules take half a turn to read."""

REPORTED_MAX: Final = 20
"""Rules that one event names."""

_ALL_BIT: Final = 32
_BITS: Final = frozenset(map(int, Operation))


def rule_of(message: pb.AccessRule) -> AccessRule:
    """Convert a rule of a request; its content is checked where it is applied.

    Raises:
        InvalidRequestError: A kind, match or operation is unknown or missing, or there are more
            operations than exist.
    """
    operations = 0
    check_named("operations", len(message.operations), _ALL_BIT)
    for operation in message.operations:
        operations |= _operation_of(operation)
    return AccessRule(
        principal=message.principal,
        is_group=message.is_group,
        kind=_kind_of(message.kind),
        match=_match_of(message.match),
        name=message.name,
        is_denied=message.is_denied,
        operations=operations,
    )


def fill_rule(target: pb.AccessRule, rule: AccessRule) -> None:
    """Write a rule into its message."""
    target.principal = rule.principal
    target.is_group = rule.is_group
    target.kind = rule.kind.value  # type: ignore[assignment] # the same numbers
    target.match = rule.match.value  # type: ignore[assignment] # the same numbers
    target.name = rule.name
    target.is_denied = rule.is_denied
    bits = (bit for bit in range(_ALL_BIT) if rule.operations >> bit & 1)
    target.operations.extend(bit + 1 for bit in bits)  # type: ignore[misc] # values are bits + 1


def _kind_of(value: int) -> ResourceKind:
    try:
        return ResourceKind(value)
    except ValueError:
        raise InvalidRequestError(f"kind: unknown value {value}") from None


def _match_of(value: int) -> NameMatch:
    try:
        return NameMatch(value)
    except ValueError:
        raise InvalidRequestError(f"match: unknown value {value}") from None


def _operation_of(value: int) -> int:
    bit = 1 << (value - 1) if 1 <= value <= _ALL_BIT else 0
    if bit not in _BITS:
        raise InvalidRequestError(f"operations: unknown value {value}")
    return bit


def _principal_of(name: str, groups: Sequence[str]) -> Principal:
    """Return the principal of a question; an empty name is an anonymous caller."""
    check_named("groups", len(groups), GROUPS_MAX)
    found = tuple(groups)
    for one in (*((name,) if name else ()), *found):
        check_principal(one)
    return Principal(name, found)


class AccessService:
    """All methods.

    Args:
        context: Context of the services of the operator port.
        clients: Access control of the ports for clients.
        observer: Is notified of changes.
    """

    def __init__(
        self, context: AdminContext, clients: AccessControl, observer: Observer | None
    ) -> None:
        self._context = context
        self._clients = clients
        self._observer = observer

    def list_rules(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `ListRules`; the token is the number of rules before the page."""
        request = decode(call, pb.ListRulesRequest, raw)
        if request is None:
            return
        size = request.page_size or PAGE_SIZE_DEFAULT
        if not 0 < size <= PAGE_SIZE_MAX:
            raise InvalidRequestError(f"page_size {size}: must be 1 to {PAGE_SIZE_MAX}")
        token = request.page_token or "0"
        if not token.isascii() or not token.isdigit() or len(token) > 9:
            raise InvalidRequestError(f"page_token {token[:80]!r}: not of this method")
        rules, begin = list(self._context.state.access.rules), int(token)
        response = pb.ListRulesResponse(
            is_on=self._context.state.access.is_on, is_enforced=self._clients.gate.is_closed
        )
        page = rules[begin : begin + size]
        yield from in_steps(page, lambda rule: fill_rule(response.rules.add(), rule))
        if len(rules) > begin + size:
            response.next_page_token = str(begin + size)
        call.reply(response.SerializeToString())

    def change_rules(self, call: Call, raw: bytes) -> None:
        """Serve `ChangeRules`."""
        if len(raw) > CHANGE_BYTES_MAX:
            raise InvalidRequestError(
                f"request: {len(raw)} bytes, at most {CHANGE_BYTES_MAX} without records; make "
                "several changes"
            )
        request = decode(call, pb.ChangeRulesRequest, raw)
        if request is None:
            return
        check_named("granted and revoked", len(request.granted) + len(request.revoked), CHANGES_MAX)
        command = ChangeRules(
            granted=tuple(map(rule_of, request.granted)),
            revoked=tuple(map(rule_of, request.revoked)),
        )
        state = self._context.state
        decision = change_rules(state, command)  # refuses before an older broker could stop at it
        if request.is_dry_run:
            assert isinstance(decision.answer, RulesChanged)
            self._reply_changed(call, decision.answer)
            return

        def answered(outcome: object) -> None:
            if isinstance(outcome, RulesChanged):
                for begin in range(0, len(outcome.rules), REPORTED_MAX):
                    some = outcome.rules[begin : begin + REPORTED_MAX]
                    self._report(call, "access_rules_changed", rules=list(map(text_of, some)))
                self._reply_changed(call, outcome)
            else:
                refuse(call, _refusal_of(outcome))

        self._context.node.propose(command, self._context.clock.now(), answered)

    def disable(self, call: Call, raw: bytes) -> None:
        """Serve `DisableAccess`."""
        if decode(call, pb.DisableAccessRequest, raw) is None:
            return
        check_level(self._context.state)

        def answered(outcome: object) -> None:
            if isinstance(outcome, Done):
                self._report(call, "access_control_disabled")
                call.reply(pb.DisableAccessResponse().SerializeToString())
            else:
                refuse(call, _refusal_of(outcome))

        command = SetAccess(is_on=False)
        self._context.node.propose(command, self._context.clock.now(), answered)

    def check(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `CheckAccess`."""
        request = decode(call, pb.CheckAccessRequest, raw)
        if request is None:
            return
        principal = _principal_of(request.principal, request.groups)
        operation = Operation(_operation_of(request.operation))
        kind, name = _kind_of(request.kind), request.name
        rules = self._context.state.access.rules
        response = pb.CheckAccessResponse(
            is_allowed=rules.rights_of(principal).allows(operation, kind, name)
        )

        def add(rule: AccessRule) -> None:
            is_reason = rule.kind is kind and concerns(rule, operation, name)
            if is_reason and len(response.rules) < REASONS_MAX:
                fill_rule(response.rules.add(), rule)

        yield from in_steps(list(rules.rules_of(principal)), add)
        call.reply(response.SerializeToString())

    def convert(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `ConvertPolicy`."""
        request = decode(call, pb.ConvertPolicyRequest, raw)
        if request is None:
            return
        yield
        try:
            model, policy = request.model.decode(), request.policy.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError("model and policy: must be UTF-8") from None
        rules = yield from read_policy_in_steps(model, policy)
        response = pb.ConvertPolicyResponse()
        yield from in_steps(rules, lambda rule: fill_rule(response.rules.add(), rule))
        call.reply(response.SerializeToString())

    def nats_permissions(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `NatsPermissions`: subjects of streams and of rules for subjects, none of brokers.

        NATS takes an empty list of allowed subjects for all of them, so all are denied then.
        """
        request = decode(call, pb.NatsPermissionsRequest, raw)
        if request is None:
            return
        rights = self._context.state.access.rules.rights_of(
            _principal_of(request.principal, request.groups)
        )
        published: dict[str, None] = {}
        read: dict[str, None] = {}
        denied: dict[str, None] = {}
        for subject, is_denied in rights.subjects(Operation.PUBLISH):
            (denied if is_denied else published)[subject] = None
        for number, stream in enumerate(list(self._context.state.streams.values()), 1):
            subjects = [
                partition_subject(stream.subject, partition.number)
                for partition in stream.partitions
            ]
            for operation, allowed in ((Operation.PUBLISH, published), (Operation.READ, read)):
                if rights.allows(operation, ResourceKind.STREAM, stream.name):
                    allowed.update(dict.fromkeys(subjects))
            if max(len(published), len(read)) > SUBJECTS_MAX:
                raise InvalidRequestError(
                    f"principal: may publish or subscribe to more than {SUBJECTS_MAX} subjects; "
                    "allow subjects by patterns"
                )
            if number % STEP == 0:
                yield
        may_publish, may_subscribe = self._of_applications(published), self._of_applications(read)
        response = pb.NatsPermissionsResponse(
            publish_allow=may_publish,
            publish_deny=self._withheld(may_publish, denied),
            subscribe_allow=may_subscribe,
            subscribe_deny=self._withheld(may_subscribe),
        )
        call.reply(response.SerializeToString())

    def _of_applications(self, subjects: Iterable[str]) -> list[str]:
        """Return subjects without those of brokers and of NATS, sorted."""
        own = (INTERNAL_ROOT, self._namespace, "$")
        return sorted(one for one in subjects if not one.startswith(own))

    def _withheld(self, allowed: Sequence[str], denied: Iterable[str] = ()) -> list[str]:
        """Return subjects that are denied beside those of brokers, sorted."""
        own = (f"{INTERNAL_ROOT}.>", f"{self._namespace}.>", "$SYS.>")
        return sorted({*own, *denied, *([] if allowed else [">"])})

    @property
    def _namespace(self) -> str:
        return self._context.node.context.options.namespace

    def _reply_changed(self, call: Call, changed: RulesChanged) -> None:
        response = pb.ChangeRulesResponse()
        for rule in changed.rules:
            fill_rule(response.changed.add(), rule)
        call.reply(response.SerializeToString())

    def _report(self, call: Call, kind: str, **fields: object) -> None:
        """Report a change, for audits: who made it, and what is so now."""
        if self._observer is not None:
            who = {"principal": call.principal.name, "peer": call.peer}
            self._observer.transition(kind, who | fields)


def _refusal_of(outcome: object) -> LiftbridgeError:
    return outcome if isinstance(outcome, LiftbridgeError) else unexpected(outcome)

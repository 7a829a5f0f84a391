"""Tokens, access rules and quotas in a snapshot <-> bytes (`internal/v1/metadata.proto`).

Part of `wire.snapshots`, whose rules apply.
"""

from collections.abc import Callable, Iterator

from liftbridge_broker.access.quotas import NO_QUOTA, Quota, QuotaKey, QuotaKind
from liftbridge_broker.access.rule_set import RULES_MAX
from liftbridge_broker.access.rules import check_rule
from liftbridge_broker.controller.callers.quotas import QUOTAS_MAX
from liftbridge_broker.controller.callers.tokens import TOKENS_MAX
from liftbridge_broker.controller.state import AccessState, ClusterState, TokenState
from liftbridge_broker.errors import CorruptionError, InvalidRequestError
from liftbridge_broker.wire.metadata import fill_rule, require, rule_of
from liftbridge_proto.internal.v1 import metadata_pb2 as pb

IsDue = Callable[[], bool]
"""Returns whether a step ends before an entry."""


def fill_callers(message: pb.Snapshot, state: ClusterState, is_due: IsDue) -> Iterator[None]:
    """Write what the state has about callers; yield where a step ends."""
    for token in state.tokens.values():
        if is_due():
            yield
        message.tokens.add(**token._asdict())
    yield from _fill_access(message, state, is_due)
    yield from _fill_quotas(message, state, is_due)


def restore_callers(state: ClusterState, message: pb.Snapshot, is_due: IsDue) -> Iterator[None]:
    """Read what a snapshot has about callers; yield where a step ends.

    Raises:
        CorruptionError: It is inconsistent.
    """
    yield from _restore_tokens(state, message, is_due)
    yield from _restore_access(state, message.access, is_due)
    require(
        state.access != AccessState() or not message.HasField("access"), "access without content"
    )
    yield from _restore_quotas(state, message, is_due)


def _fill_access(message: pb.Snapshot, state: ClusterState, is_due: IsDue) -> Iterator[None]:
    """Add access control, nothing while it was never used: older versions know no such field."""
    if not state.access.is_on and not state.access.rules:
        return
    message.access.is_on = state.access.is_on
    for rule in state.access.rules:
        if is_due():
            yield
        fill_rule(message.access.rules.add(), rule)


def _fill_quotas(message: pb.Snapshot, state: ClusterState, is_due: IsDue) -> Iterator[None]:
    for key, quota in state.quotas.items():
        if is_due():
            yield
        message.quotas.add(kind=key.kind, name=key.name, **quota._asdict())


def _restore_access(state: ClusterState, message: pb.Access, is_due: IsDue) -> Iterator[None]:
    require(len(message.rules) <= RULES_MAX, f"{len(message.rules)} access rules")
    for found in message.rules:
        if is_due():
            yield
        rule = rule_of(found)
        try:
            check_rule(rule)
        except InvalidRequestError as error:
            raise CorruptionError(f"metadata snapshot: {error}") from error
        require(state.access.rules.get(rule.key) is None, "an access rule twice")
        state.access.rules.put(rule)
    state.access.is_on = message.is_on
    require(
        not message.is_on or state.access.rules.has_granter, "access rules that nobody may change"
    )


def _restore_quotas(state: ClusterState, message: pb.Snapshot, is_due: IsDue) -> Iterator[None]:
    require(len(message.quotas) <= QUOTAS_MAX, f"{len(message.quotas)} quotas")
    kinds = {str(kind): kind for kind in QuotaKind}
    for found in message.quotas:
        if is_due():
            yield
        require(found.kind in kinds, f"a quota of kind {found.kind}")
        key = QuotaKey(kinds[found.kind], found.name)
        quota = Quota(*(getattr(found, limit) for limit in Quota._fields))
        require(key not in state.quotas and quota != NO_QUOTA, f"quota of {key} twice or empty")
        state.quotas[key] = quota


def _restore_tokens(state: ClusterState, message: pb.Snapshot, is_due: IsDue) -> Iterator[None]:
    require(len(message.tokens) <= TOKENS_MAX, f"{len(message.tokens)} tokens")
    for found in message.tokens:
        if is_due():
            yield
        require(found.token_id not in state.tokens, f"token {found.token_id} twice")
        state.tokens[found.token_id] = TokenState(
            token_id=found.token_id,
            principal=found.principal,
            groups=tuple(found.groups),
            verifier=found.verifier,
            created=found.created,
            expires=found.expires,
            created_by=found.created_by,
        )

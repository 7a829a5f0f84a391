"""Decisions about access control: whether it is on, and its rules (C30, C31)."""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.access.rule_set import PATTERNS_MAX, RULES_MAX, RuleSet
from liftbridge_broker.access.rules import (
    AccessRule,
    ResourceKind,
    check_principal,
    check_rule,
    super_rules,
)
from liftbridge_broker.controller.callers.commands import ACCESS_LEVEL, ChangeRules, SetAccess
from liftbridge_broker.controller.records import AccessSwitched, Decision, Done, RulesChanged
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import FailedPreconditionError, InvalidRequestError, LimitError

CHANGES_MAX: Final = 500
"""Maximum number of rules in one change."""

SUPER_USERS_MAX: Final = 100


def set_access(state: ClusterState, command: SetAccess) -> Decision:
    """C30: turn access control on or off; on, with super-users if nobody may change the rules."""
    check_level(state)
    _check_super_users(command.super_users)
    access = state.access
    seeds: tuple[AccessRule, ...] = ()
    if command.is_on and not access.rules.has_granter:  # guard C30.first
        names = dict.fromkeys(command.super_users)
        seeds = access.rules.with_changes(
            [rule for name in names for rule in super_rules(name)], ()
        )
        _check_counts(access.rules, seeds)
        _check_granter(access.rules, seeds)
    if command.is_on == access.is_on:
        return Decision((), Done())
    changed = (RulesChanged(seeds),) if seeds else ()
    return Decision((*changed, AccessSwitched(command.is_on)), Done())


def change_rules(state: ClusterState, command: ChangeRules) -> Decision:
    """C31: change rules, all or nothing; the answer has the changed rules as they are then."""
    check_level(state)
    count = len(command.granted) + len(command.revoked)
    if count > CHANGES_MAX:
        raise LimitError(f"{count} rules in one change, limit {CHANGES_MAX}; make several changes")
    for rule in (*command.granted, *command.revoked):
        check_rule(rule)
    changed = state.access.rules.with_changes(command.granted, command.revoked)
    _check_counts(state.access.rules, changed)
    if state.access.is_on and any(rule.kind is ResourceKind.CLUSTER for rule in changed):
        _check_granter(state.access.rules, changed)
    answer = RulesChanged(changed)
    return Decision((answer,) if changed else (), answer)


def check_level(state: ClusterState) -> None:
    """Refuse access rules while some broker may be too old to know them.

    Such a broker would let everybody do everything, and stop at the command.
    """
    if state.feature_level < ACCESS_LEVEL:  # guard C30.level
        raise FailedPreconditionError(
            f"access rules need feature level {ACCESS_LEVEL}, and {state.feature_level} is in "
            f"force: upgrade all brokers, then run "
            f"`liftbridge cluster feature-level {ACCESS_LEVEL}`"
        )


def _check_super_users(names: tuple[str, ...]) -> None:
    if len(names) > SUPER_USERS_MAX:
        raise LimitError(f"{len(names)} super-users, limit {SUPER_USERS_MAX}")
    for name in names:
        check_principal(name)
        if name.endswith("*"):
            raise InvalidRequestError(f"super-user {name[:80]!r}: must be one principal, without *")


def _check_counts(rules: RuleSet, changed: Sequence[AccessRule]) -> None:
    """Refuse a change after which there are too many rules."""
    count, pattern_count = rules.counts_after(changed)
    if count > RULES_MAX:
        raise LimitError(
            f"{count} access rules, limit {RULES_MAX}; use groups, prefixes and patterns"
        )
    if pattern_count > PATTERNS_MAX:
        raise LimitError(
            f"{pattern_count} access rules with a pattern, limit {PATTERNS_MAX}; use prefixes"
        )


def _check_granter(rules: RuleSet, changed: Sequence[AccessRule]) -> None:
    """Refuse a change after which nobody may change the rules any more."""
    after = RuleSet(rule for rule in rules if rule.kind is ResourceKind.CLUSTER)
    for rule in changed:
        after.put(rule)
    if not after.has_granter:  # guard C31.granter
        raise FailedPreconditionError(
            "nobody could change the access rules: some rule must allow a principal to grant on "
            "the cluster"
        )

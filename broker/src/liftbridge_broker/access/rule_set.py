"""Rule sets: rules by what identifies them, and the rights of a principal under them."""

from collections.abc import Iterable, Iterator
from typing import Final

from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.rights import Rights
from liftbridge_broker.access.rules import (
    CLUSTER_NAME,
    EVERYONE,
    AccessRule,
    NameMatch,
    Operation,
    ResourceKind,
    RuleKey,
)

RULES_MAX: Final = 5_000
"""Maximum number of rules of a set, about 400 bytes each: the rights of a principal to whom all of
them apply are put together in one turn."""

PATTERNS_MAX: Final = 250
"""Maximum number of rules with a pattern: a subject with wildcards is compared with each."""

_Whose = tuple[str, bool]
"""Principal of a rule, and whether it is a group."""


class RuleSet:
    """Rules in the order in which they were added; every rule has operations."""

    def __init__(self, rules: Iterable[AccessRule] = ()) -> None:
        self._rules: dict[RuleKey, AccessRule] = {}
        self._exact: dict[_Whose, dict[RuleKey, AccessRule]] = {}
        self._wide: dict[_Whose, dict[RuleKey, AccessRule]] = {}
        self._pattern_count = 0
        for rule in rules:
            self.put(rule)

    def __len__(self) -> int:
        """Return the number of rules."""
        return len(self._rules)

    def __eq__(self, other: object) -> bool:
        """Compare rules and their order."""
        return isinstance(other, RuleSet) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment] # it changes

    def __iter__(self) -> Iterator[AccessRule]:
        """Yield all rules in order."""
        return iter(self._rules.values())

    def counts_after(self, changed: Iterable[AccessRule]) -> tuple[int, int]:
        """Return the number of rules, and of those with a pattern, after a change."""
        count, pattern_count = len(self), self._pattern_count
        for rule in changed:
            more = (rule.operations > 0) - (rule.key in self._rules)
            count += more
            pattern_count += more * (rule.match is NameMatch.PATTERN)
        return count, pattern_count

    def get(self, key: RuleKey) -> AccessRule | None:
        """Return a rule, `None` without one."""
        return self._rules.get(key)

    def put(self, rule: AccessRule) -> None:
        """Set the operations of a rule; without operations, remove it."""
        key, whose = rule.key, (rule.principal, rule.is_group)
        named = self._wide if rule.principal.endswith(EVERYONE) else self._exact
        before = self._rules.get(key)
        if before is not None:
            self._pattern_count -= before.match is NameMatch.PATTERN
        if rule.operations:
            self._pattern_count += rule.match is NameMatch.PATTERN
            self._rules[key] = rule
            named.setdefault(whose, {})[key] = rule
        elif before is not None:
            del self._rules[key]
            del named[whose][key]
            if not named[whose]:
                del named[whose]

    def with_changes(
        self, granted: Iterable[AccessRule], revoked: Iterable[AccessRule]
    ) -> tuple[AccessRule, ...]:
        """Return the rules that a change would set, each once; without operations if removed.

        What is both granted and revoked is revoked.
        """
        changed: dict[RuleKey, AccessRule] = {}
        for rules, is_granted in ((granted, True), (revoked, False)):
            for rule in rules:
                known = changed.get(rule.key) or self._rules.get(rule.key)
                before = 0 if known is None else known.operations
                after = before | rule.operations if is_granted else before & ~rule.operations
                changed[rule.key] = rule._replace(operations=int(after))
        return tuple(rule for rule in changed.values() if rule.operations != self._bits(rule.key))

    def _bits(self, key: RuleKey) -> int:
        known = self._rules.get(key)
        return 0 if known is None else known.operations

    def rights_of(self, principal: Principal) -> Rights:
        """Return what a principal may do under these rules."""
        return Rights(self.rules_of(principal))

    def rules_of(self, principal: Principal) -> Iterator[AccessRule]:
        """Yield the rules that apply to a principal."""
        names: list[_Whose] = [(principal.name, False)]
        names += [(group, True) for group in principal.groups]
        for whose in names:
            yield from self._exact.get(whose, {}).values()
        for (pattern, is_group), rules in self._wide.items():
            start = pattern[:-1]
            applies = not start and not is_group
            if applies or any(
                name.startswith(start) for name, kind in names if name and kind == is_group
            ):
                yield from rules.values()

    @property
    def has_granter(self) -> bool:
        """Whether any principal may change the rules; without one, no access can be granted."""
        granting = Operation.GRANT | Operation.ALL  # bits
        return any(
            self.rights_of(_example(rule)).allows(
                Operation.GRANT, ResourceKind.CLUSTER, CLUSTER_NAME
            )
            for rule in self
            if rule.kind is ResourceKind.CLUSTER
            and not rule.is_denied
            and rule.operations & granting
        )


def _example(rule: AccessRule) -> Principal:
    """Return a principal to which a rule applies."""
    name = rule.principal.removesuffix(EVERYONE)
    return Principal("", (name,)) if rule.is_group else Principal(name)

"""Rights: what the rules let one principal do, answered from a cache.

Names of streams, groups and cursors are looked up as they are. Subjects may have wildcards: a
stream on `shop.*` needs a rule that contains all of it, and a deny of any part refuses it.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from liftbridge_broker.access.rules import (
    AccessRule,
    NameMatch,
    Operation,
    ResourceKind,
    operations_of,
    super_rules,
)
from liftbridge_broker.model.subject_table import SubjectTable
from liftbridge_broker.model.subjects import has_wildcard

CACHE_COUNT_MAX: Final = 4_096
"""Answers kept for one principal and kind of resource."""

_ONE: Final = "*"
_REST: Final = ">"


def contains(pattern: str, subject: str) -> bool:
    """Return whether a pattern matches everything that a subject, perhaps with wildcards, does."""
    wanted, given = pattern.split("."), subject.split(".")
    for position, token in enumerate(wanted):
        if position >= len(given):
            return False
        if token == _REST:
            return True
        if given[position] == _REST or token not in (_ONE, given[position]):
            return False
    return len(given) == len(wanted)


def overlaps(one: str, other: str) -> bool:
    """Return whether some subject matches both of two patterns."""
    ours, theirs = one.split("."), other.split(".")
    for mine, yours in zip(ours, theirs, strict=False):
        if _REST in (mine, yours):
            return True
        if mine != yours and _ONE not in (mine, yours):
            return False
    return len(ours) == len(theirs)


def may_begin(pattern: str, prefix: str) -> bool:
    """Return whether some name that a pattern matches begins with a prefix."""
    given, wanted = pattern.split("."), prefix.split(".")
    for token, part in zip(given, wanted[:-1], strict=False):
        if token == _REST:
            return True
        if token not in (_ONE, part):
            return False
    if len(given) < len(wanted):
        return False
    last = given[len(wanted) - 1]
    return last in (_ONE, _REST) or last.startswith(wanted[-1])


class _Names:
    """The rules for one kind of resource with one effect, by how they name it.

    All of them are added before the first look-up.

    Attributes:
        operations: Operations of all rules.
        exact: Operations by name; so too for prefixes and patterns.
    """

    __slots__ = ("_by_match", "_lengths", "_table", "exact", "operations", "patterns", "prefixes")

    def __init__(self) -> None:
        self.operations = 0
        self.exact: dict[str, int] = {}
        self.prefixes: dict[str, int] = {}
        self.patterns: dict[str, int] = {}
        self._by_match = {
            NameMatch.EXACT: self.exact,
            NameMatch.PREFIX: self.prefixes,
            NameMatch.PATTERN: self.patterns,
        }
        self._lengths: set[int] = set()
        self._table: SubjectTable[str] | None = None

    def add(self, rule: AccessRule) -> None:
        """Add the operations of a rule."""
        names, operations = self._by_match[rule.match], operations_of(rule.kind, rule.operations)
        names[rule.name] = names.get(rule.name, 0) | operations
        self.operations |= operations

    def of_everything(self, kind: ResourceKind) -> int:
        """Return the operations of rules that name every resource of their kind."""
        if kind is ResourceKind.CLUSTER:
            return self.operations
        return self.prefixes.get("", 0) | self.patterns.get(_REST, 0)

    def of_name(self, name: str) -> int:
        """Return the operations of all rules that name this resource."""
        table = self._table or self._prepared()
        found = self.exact.get(name, 0)
        for length in self._lengths:
            found |= self.prefixes.get(name[:length], 0)
        for pattern in table.matching(name):
            found |= self.patterns[pattern]
        return found

    def _prepared(self) -> SubjectTable[str]:
        """Return the table of patterns; regular expressions take ten times as long to make."""
        self._lengths = set(map(len, self.prefixes))
        self._table = SubjectTable()
        for pattern in self.patterns:
            self._table.add(pattern, pattern)
        return self._table

    def of_all_in(self, wide: str) -> int:
        """Return the operations of rules that contain all that a subject with wildcards matches."""
        found = self.exact.get(wide, 0)
        for pattern, operations in self.patterns.items():
            if contains(pattern, wide):
                found |= operations
        return found

    def of_any_in(self, wide: str) -> int:
        """Return the operations of rules that name any part of what such a subject matches."""
        found = 0
        for name, operations in (*self.exact.items(), *self.patterns.items()):
            if overlaps(name, wide):
                found |= operations
        for prefix, operations in self.prefixes.items():
            if may_begin(wide, prefix):
                found |= operations
        return found


def concerns(rule: AccessRule, operation: Operation, name: str) -> bool:
    """Return whether a rule by itself allows, or denies, an operation on a resource of its kind."""
    if not rule.is_denied:
        return Rights([rule]).allows(operation, rule.kind, name)
    everything = (one for one in super_rules(rule.principal) if one.kind is rule.kind)
    return not Rights([*everything, rule]).allows(operation, rule.kind, name)


class Rights:
    """What one principal may do.

    Args:
        rules: All rules that apply to it.

    Attributes:
        is_known: Whether any rule allows it anything, and none denies that on everything.
    """

    __slots__ = ("_allowed", "_caches", "_denied", "is_known")

    def __init__(self, rules: Iterable[AccessRule]) -> None:
        self._allowed = {kind: _Names() for kind in ResourceKind}
        self._denied = {kind: _Names() for kind in ResourceKind}
        self._caches: list[dict[str, int]] = [{} for _ in range(len(ResourceKind) + 1)]
        for rule in rules:
            (self._denied if rule.is_denied else self._allowed)[rule.kind].add(rule)
        self.is_known = any(
            self._allowed[kind].operations & ~self._denied[kind].of_everything(kind)
            for kind in ResourceKind
        )

    def allows(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        """Return whether an operation is allowed and not denied."""
        cache = self._caches[kind]
        found = cache.get(name)
        if found is None:
            found = self._look_up(kind, name)
            if len(cache) >= CACHE_COUNT_MAX:
                cache.clear()
            cache[name] = found
        return found & operation != 0

    def denies_part(self, operation: Operation, kind: ResourceKind, pattern: str) -> bool:
        """Return whether an operation is denied on anything that a pattern matches; not cached."""
        return self._denied[kind].of_any_in(pattern) & operation != 0

    def _look_up(self, kind: ResourceKind, name: str) -> int:
        allowed, denied = self._allowed[kind], self._denied[kind]
        if kind is ResourceKind.SUBJECT and has_wildcard(name):  # guard Access.wide
            may, may_not = allowed.of_all_in(name), denied.of_any_in(name)
        else:
            may, may_not = allowed.of_name(name), denied.of_name(name)
        if may and kind is ResourceKind.STREAM:
            may |= Operation.DESCRIBE  # whoever uses a stream may see it, as in Kafka
        return may & ~may_not  # guard Access.deny

    def subjects(self, operation: Operation) -> Iterator[tuple[str, bool]]:
        """Yield the subjects and patterns of rules for an operation, and whether each is denied."""
        for names, is_denied in ((self._allowed, False), (self._denied, True)):
            found = names[ResourceKind.SUBJECT]
            for name, operations in (*found.exact.items(), *found.patterns.items()):
                if operations & operation:
                    yield name, is_denied

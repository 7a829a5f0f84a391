"""Access rules read one by one, as they are written: what the broker's own look-up must agree with.

Names of resources have no wildcards here, but for patterns of one token, which `denies_part` takes.
"""

from collections.abc import Iterable

from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.rules import AccessRule, NameMatch, Operation, ResourceKind
from liftbridge_broker.model.subjects import matches


def _applies(one: AccessRule, who: Principal) -> bool:
    if one.principal == "*" and not one.is_group:
        return True
    names = who.groups if one.is_group else (who.name,) if who.name else ()
    if one.principal.endswith("*"):
        return any(name.startswith(one.principal[:-1]) for name in names)
    return one.principal in names


def _names(one: AccessRule, name: str) -> bool:
    match one.match:
        case NameMatch.EXACT:
            return one.name == name
        case NameMatch.PREFIX:
            return name.startswith(one.name)
        case NameMatch.PATTERN:
            return matches(one.name, name)


def allows(
    rules: Iterable[AccessRule],
    who: Principal,
    operation: Operation,
    kind: ResourceKind,
    name: str,
) -> bool:
    """Return whether rules allow an operation on a resource."""
    mine = [one for one in rules if one.kind is kind and _applies(one, who) and _names(one, name)]
    denies = [one for one in mine if one.is_denied]
    allowed = [one for one in mine if not one.is_denied]
    if any(one.operations & (operation | Operation.ALL) for one in denies):
        return False
    if operation is Operation.DESCRIBE and kind is ResourceKind.STREAM:
        return bool(allowed)  # whoever uses a stream may see it
    return any(one.operations & (operation | Operation.ALL) for one in allowed)


def denies_part(
    rules: Iterable[AccessRule],
    who: Principal,
    operation: Operation,
    kind: ResourceKind,
    pattern: str,
) -> bool:
    """Return whether rules deny an operation on any name that a pattern of one token matches."""
    return any(
        one.is_denied
        and one.kind is kind
        and one.operations & (operation | Operation.ALL)
        and _applies(one, who)
        and matches(pattern, _example(one))
        for one in rules
    )


def _example(one: AccessRule) -> str:
    """Return the shortest name that a rule names."""
    match one.match:
        case NameMatch.EXACT:
            return one.name
        case NameMatch.PREFIX:
            return one.name or "x"
        case NameMatch.PATTERN:
            return ".".join("x" if token in ("*", ">") else token for token in one.name.split("."))

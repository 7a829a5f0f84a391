"""Access rules of one principal, as sets of operations by what they are about.

Brokers keep one rule for each resource and effect, with its operations, and not who granted it. So
a resource remembers which operations it added (`status.granted`), and takes away only those.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from liftbridge_operator.model.user import (
    AccessRule,
    Effect,
    GrantedRule,
    Operation,
    ResourceKind,
)

CLUSTER_NAME = "cluster"


class RuleKey(NamedTuple):
    """What a rule of a principal is about.

    Attributes:
        name: As people write it: one that ends in `*` is a prefix; `cluster` for the cluster.
    """

    kind: ResourceKind
    name: str
    effect: Effect


Rules: TypeAlias = Mapping[RuleKey, frozenset[Operation]]
"""Operations by what they are about; no empty sets."""


def rules_of(given: Iterable[AccessRule | GrantedRule]) -> Rules:
    """Return the rules of a specification or of a status."""
    found: dict[RuleKey, frozenset[Operation]] = {}
    for one in given:
        key = RuleKey(one.resource, one.name or CLUSTER_NAME, one.effect)
        found[key] = found.get(key, frozenset()) | frozenset(one.operations)
    return found


def plus(some: Rules, others: Rules) -> Rules:
    """Return the operations of either."""
    keys = dict.fromkeys((*some, *others))
    return {key: some.get(key, frozenset()) | others.get(key, frozenset()) for key in keys}


def minus(some: Rules, others: Rules) -> Rules:
    """Return the operations of the first that the second lack."""
    left = {key: operations - others.get(key, frozenset()) for key, operations in some.items()}
    return {key: operations for key, operations in left.items() if operations}


def both(some: Rules, others: Rules) -> Rules:
    """Return the operations that are in both."""
    return minus(some, minus(some, others))


def text_of(rules: Rules) -> str:
    """Return rules for messages: `Publish on Stream orders*, deny Read on Stream secret`."""
    return ", ".join(
        f"{'deny ' if key.effect is Effect.DENY else ''}{'/'.join(sorted(operations))} on "
        f"{key.kind.value}{'' if key.kind is ResourceKind.CLUSTER else ' ' + key.name}"
        for key, operations in rules.items()
    )


def manifest_of(rules: Rules) -> list[dict[str, object]]:
    """Return rules as the status lists them, in a fixed order."""
    return [
        {
            "resource": key.kind.value,
            "name": key.name,
            "operations": sorted(operations),
            "effect": key.effect.value,
        }
        for key, operations in sorted(rules.items())
    ]

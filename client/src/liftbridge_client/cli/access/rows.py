"""A rule on the command line and in the output."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple, cast, get_args

import typer

from liftbridge_client.access_model import AccessRule, Operation
from liftbridge_client.errors import UsageError

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")]


class RuleRow(NamedTuple):
    """A rule; `operations` is empty if it was removed."""

    effect: str
    principal: str
    group: bool
    operations: Sequence[str]
    resource: str


def operations_of(text: str) -> list[Operation]:
    """Parse operations, separated by commas.

    Raises:
        UsageError: A word is no operation.
    """
    known = get_args(Operation)
    for one in text.split(","):
        if one not in known:
            raise UsageError(f"operation {one!r}: must be one of {', '.join(known)}")
    return cast("list[Operation]", text.split(","))


def row_of(rule: AccessRule) -> RuleRow:
    """Return the row of a rule."""
    return RuleRow(
        "deny" if rule.is_denied else "allow",
        rule.principal,
        rule.is_group,
        rule.operations,
        str(rule.resource),
    )


def line_of(rule: AccessRule) -> str:
    """Return a rule as a line."""
    effect, principal, is_group, operations, resource = row_of(rule)
    whose = f"group {principal}" if is_group else principal
    return f"{effect} {whose} {','.join(operations)} {resource}"

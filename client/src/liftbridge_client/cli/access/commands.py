"""`liftbridge access`: list and change who may do what."""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple, get_args

import typer

from liftbridge_client.access_model import (
    AccessRule,
    NatsPermissions,
    Operation,
    resource_of,
)
from liftbridge_client.cli import exits
from liftbridge_client.cli.access.files import ExportRow, export, import_
from liftbridge_client.cli.access.rows import DryRun, RuleRow, line_of, operations_of, row_of
from liftbridge_client.cli.command import CommandGroup, Run, command
from liftbridge_client.cli.output import Shape, say
from liftbridge_client.cli.streams import Yes
from liftbridge_client.errors import UsageError

GROUP: Final = "access"


class CheckRow(NamedTuple):
    """Whether a principal may do something, and the rules that name it."""

    principal: str
    operation: str
    resource: str
    allowed: bool
    rules: Sequence[str]


class DisabledRow(NamedTuple):
    """What became of access control."""

    access_control: str


Who = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL",
        help="Name of a principal, such as the common name of its certificate; `alice*` stands for "
        "all that begin so, and '*' for everyone, anonymous callers included.",
    ),
]
What = Annotated[
    str,
    typer.Argument(
        metavar="OPERATION", help="One or more of " + ", ".join(get_args(Operation)) + "; by comma."
    ),
]
On = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="stream:NAME, subject:NAME, group:ID, cursor:STREAM/CURSOR or cluster. A name that "
        "ends in * is a prefix; other NATS wildcards make a pattern.",
    ),
]
IsGroup = Annotated[bool, typer.Option("--group", help="PRINCIPAL names a group.")]
IsDenied = Annotated[
    bool, typer.Option("--deny", help="The rule denies, which wins over all that allow.")
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--member-of", metavar="GROUP", help="Group of the principal; may be repeated."),
]


async def list_(run: Run[RuleRow]) -> None:
    """List all rules; says whether they are in force."""
    async with run.admin() as admin:
        found = await admin.access.rules()
    for rule in found.rules:
        run.emit(row_of(rule))
    if not found.is_on:
        say("liftbridge: access control is off in the cluster: set access.enabled on its brokers")


async def grant(
    run: Run[RuleRow],
    principal: Who,
    operation: What,
    resource: On,
    *,
    group: IsGroup = False,
    deny: IsDenied = False,
    dry_run: DryRun = False,
) -> None:
    """Add operations to a rule; prints the rule as it is then, nothing if it was so already."""
    rule = AccessRule(principal, resource_of(resource), operations_of(operation), deny, group)
    async with run.admin() as admin:
        changed = await admin.access.change(granted=[rule], is_dry_run=dry_run)
    for one in changed:
        run.emit(row_of(one))


async def revoke(
    run: Run[RuleRow],
    principal: Who,
    operation: What,
    resource: On,
    *,
    group: IsGroup = False,
    deny: IsDenied = False,
    dry_run: DryRun = False,
) -> None:
    """Take operations from a rule; prints the rule as it is then, nothing if it had none."""
    rule = AccessRule(principal, resource_of(resource), operations_of(operation), deny, group)
    async with run.admin() as admin:
        changed = await admin.access.change(revoked=[rule], is_dry_run=dry_run)
    for one in changed:
        run.emit(row_of(one))


async def check(
    run: Run[CheckRow], principal: Who, operation: What, resource: On, *, member_of: Groups = None
) -> None:
    """Check whether the rules allow an operation, in force or not; exit code 1 if not."""
    named = resource_of(resource)
    if named.match == "prefix":
        raise UsageError(f"resource {resource!r}: name one resource, not a prefix")
    (what,) = operations_of(operation)[:1]
    async with run.admin() as admin:
        found = await admin.access.check(principal, what, named, groups=member_of or ())
    reasons = [line_of(rule) for rule in found.rules]
    run.emit(CheckRow(principal, what, resource, found.is_allowed, reasons))
    if not found.is_allowed:
        run.exit_code = exits.REFUSED


async def nats_permissions(
    run: Run[NatsPermissions], principal: Who, *, member_of: Groups = None
) -> None:
    """Print the NATS permissions that correspond to the rules of a principal.

    Subjects of the streams that it may publish to and read, and of rules for subjects; denied are
    those of brokers. A plain NATS client needs them in its account, because NATS does not ask the
    brokers.
    """
    async with run.admin() as admin:
        run.emit(await admin.access.nats_permissions(principal, groups=member_of or ()))


async def disable(run: Run[DisabledRow], *, yes: Yes = False) -> None:
    """Turn access control off in the cluster; remove access.enabled from all brokers first."""
    run.confirm("Let everybody do everything?", is_confirmed=yes)
    async with run.admin() as admin:
        await admin.access.disable()
    run.emit(DisabledRow("off"))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="List and change who may do what.", cls=CommandGroup)
    rows = Shape(RuleRow, is_many=True)
    for name, shape, body in (
        ("list", rows, list_),
        ("grant", rows, grant),
        ("revoke", rows, revoke),
        ("check", Shape(CheckRow), check),
        ("export", Shape(ExportRow), export),
        ("import", rows, import_),
        ("nats-permissions", Shape(NatsPermissions), nats_permissions),
        ("disable", Shape(DisabledRow), disable),
    ):
        command(group, name, shape, group=GROUP, is_admin=True)(body)
    app.add_typer(group, name=GROUP, rich_help_panel="Operation")

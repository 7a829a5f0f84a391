"""`liftbridge access`: the access rules of a cluster."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple, cast, get_args

import typer

from liftbridge_client.access_model import (
    AccessRule,
    NatsPermissions,
    Operation,
    resource_of,
)
from liftbridge_client.cli import exits
from liftbridge_client.cli.command import CommandGroup, Run, command
from liftbridge_client.cli.output import Shape, say
from liftbridge_client.cli.streams import Yes
from liftbridge_client.errors import UsageError

GROUP: Final = "access"
CHANGES_MAX: Final = 500
"""Rules of one change; `import` makes several changes."""

FILE_BYTES_MAX: Final = 8 << 20

MODEL: Final = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = r.sub == p.sub && r.obj == p.obj && r.act == p.act
"""
"""The model in the documentation of the original."""


class RuleRow(NamedTuple):
    """A rule; `operations` is empty if it was removed."""

    effect: str
    principal: str
    group: bool
    operations: Sequence[str]
    resource: str


class CheckRow(NamedTuple):
    """Whether a principal may do something, and the rules that name it."""

    principal: str
    operation: str
    resource: str
    allowed: bool
    rules: Sequence[str]


class ExportRow(NamedTuple):
    """A written file, and the number of rules in it."""

    file: str
    rules: int


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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")]
Groups = Annotated[
    list[str] | None,
    typer.Option("--member-of", metavar="GROUP", help="Group of the principal; may be repeated."),
]


def _operations(text: str) -> list[Operation]:
    known = get_args(Operation)
    for one in text.split(","):
        if one not in known:
            raise UsageError(f"operation {one!r}: must be one of {', '.join(known)}")
    return cast("list[Operation]", text.split(","))


def _row(rule: AccessRule) -> RuleRow:
    return RuleRow(
        "deny" if rule.is_denied else "allow",
        rule.principal,
        rule.is_group,
        rule.operations,
        str(rule.resource),
    )


def _line(rule: AccessRule) -> str:
    effect, principal, is_group, operations, resource = _row(rule)
    whose = f"group {principal}" if is_group else principal
    return f"{effect} {whose} {','.join(operations)} {resource}"


async def list_(run: Run[RuleRow]) -> None:
    """List all rules; says whether they are in force."""
    async with run.admin() as admin:
        found = await admin.access.rules()
    for rule in found.rules:
        run.emit(_row(rule))
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
    rule = AccessRule(principal, resource_of(resource), _operations(operation), deny, group)
    async with run.admin() as admin:
        changed = await admin.access.change(granted=[rule], is_dry_run=dry_run)
    for one in changed:
        run.emit(_row(one))


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
    rule = AccessRule(principal, resource_of(resource), _operations(operation), deny, group)
    async with run.admin() as admin:
        changed = await admin.access.change(revoked=[rule], is_dry_run=dry_run)
    for one in changed:
        run.emit(_row(one))


async def check(
    run: Run[CheckRow], principal: Who, operation: What, resource: On, *, member_of: Groups = None
) -> None:
    """Check whether the rules allow an operation, in force or not; exit code 1 if not."""
    named = resource_of(resource)
    if named.match == "prefix":
        raise UsageError(f"resource {resource!r}: name one resource, not a prefix")
    (what,) = _operations(operation)[:1]
    async with run.admin() as admin:
        found = await admin.access.check(principal, what, named, groups=member_of or ())
    reasons = [_line(rule) for rule in found.rules]
    run.emit(CheckRow(principal, what, resource, found.is_allowed, reasons))
    if not found.is_allowed:
        run.exit_code = exits.REFUSED


async def export(
    run: Run[ExportRow],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, replaced.")],
) -> None:
    """Write all rules to a file as JSON lines, for `import`."""
    async with run.admin() as admin:
        found = await admin.access.rules()
    lines = [json.dumps(_row(rule)._asdict(), ensure_ascii=False) + "\n" for rule in found.rules]
    try:
        file.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    run.emit(ExportRow(str(file), len(lines)))


async def import_(
    run: Run[RuleRow],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Rules from `export`, or a Casbin policy of the original if its name ends in "
            ".csv.",
        ),
    ],
    *,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="FILE",
            help="Casbin model of the policy; by default the one in the documentation of the "
            "original, which compares exactly.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Grant all rules of a file; removes none. Prints those that changed."""
    text = _text(file)
    async with run.admin() as admin:
        if file.suffix == ".csv":
            form = MODEL if model is None else _text(model)
            rules = await admin.access.convert_policy(form, text)
        elif model is not None:
            raise UsageError(f"--model: {file} is no policy, its name does not end in .csv")
        else:
            rules = list(_read(file, text))
        for begin in range(0, max(1, len(rules)), CHANGES_MAX):
            some = rules[begin : begin + CHANGES_MAX]
            for one in await admin.access.change(granted=some, is_dry_run=dry_run):
                run.emit(_row(one))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise UsageError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _read(path: Path, text: str) -> Iterator[AccessRule]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = RuleRow(**json.loads(line))
            resource = resource_of(row.resource)
            operations = _operations(",".join(row.operations))
        except (TypeError, ValueError, UsageError) as error:
            raise UsageError(f"{path}, line {number}: {error}; see `access export`") from error
        yield AccessRule(row.principal, resource, operations, row.effect == "deny", row.group)


async def nats_permissions(
    run: Run[NatsPermissions], principal: Who, *, member_of: Groups = None
) -> None:
    """Print the NATS permissions that correspond to the rules of a principal.

    Subjects of the streams that it may publish to, and of rules for subjects; denied are those of
    brokers. A plain NATS client needs them in its account, because NATS does not ask the brokers.
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

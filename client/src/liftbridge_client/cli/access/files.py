"""Access rules in files: `liftbridge access export` and `import`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from liftbridge_client.access_model import AccessRule, resource_of
from liftbridge_client.cli.access.rows import DryRun, RuleRow, operations_of, row_of
from liftbridge_client.cli.command import Run
from liftbridge_client.errors import UsageError

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


class ExportRow(NamedTuple):
    """A written file, and the number of rules in it."""

    file: str
    rules: int


async def export(
    run: Run[ExportRow],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, replaced.")],
) -> None:
    """Write all rules to a file as JSON lines, for `import`."""
    async with run.admin() as admin:
        found = await admin.access.rules()
    lines = [json.dumps(row_of(rule)._asdict(), ensure_ascii=False) + "\n" for rule in found.rules]
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
                run.emit(row_of(one))


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
            operations = operations_of(",".join(row.operations))
        except (TypeError, ValueError, UsageError) as error:
            raise UsageError(f"{path}, line {number}: {error}; see `access export`") from error
        yield AccessRule(row.principal, resource, operations, row.effect == "deny", row.group)

"""`liftbridge cursor`: positions stored under a name."""

from typing import Annotated, NamedTuple

import typer

from liftbridge_client.cli import values
from liftbridge_client.cli.command import CommandGroup, Run, command
from liftbridge_client.cli.output import Shape
from liftbridge_client.cli.streams import Name


class CursorRow(NamedTuple):
    """The last message processed; `offset` is null when none is stored."""

    stream: str
    partition: int
    cursor: str
    offset: int | None


CursorId = Annotated[str, typer.Argument(metavar="CURSOR", help="Name of the cursor.")]
Partition = Annotated[
    int,
    values.partition_option("Number of the partition."),
]


async def get(
    run: Run[CursorRow], name: Name, cursor: CursorId, *, partition: Partition = 0
) -> None:
    """Show the offset of the last message processed, or null; the stream need not exist."""
    async with run.asking() as lb:
        offset = await lb.streams.get(name).fetch_cursor(cursor, partition=partition)
    run.emit(CursorRow(name, partition, cursor, offset))


async def set_(
    run: Run[CursorRow],
    name: Name,
    cursor: CursorId,
    offset: Annotated[
        int,
        typer.Argument(
            min=0,
            max=values.OFFSET_MAX,
            metavar="OFFSET",
            help="Offset of the last message processed.",
        ),
    ],
    *,
    partition: Partition = 0,
) -> None:
    """Store the offset of the last message processed; reading continues at the next one."""
    async with run.asking() as lb:
        await lb.streams.get(name).set_cursor(cursor, offset, partition=partition)
    run.emit(CursorRow(name, partition, cursor, offset))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Show and store cursors: named offsets of the last message processed.",
        cls=CommandGroup,
    )
    command(group, "get", Shape(CursorRow), group="cursor")(get)
    command(group, "set", Shape(CursorRow), group="cursor")(set_)
    app.add_typer(group, name="cursor", rich_help_panel="Messages")

"""`liftbridge group reset`: where a group continues, shown first and then stored."""

from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import typer

from liftbridge_client.cli import values
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.groups.names import GROUP, Group
from liftbridge_client.cli.output import Shape, say
from liftbridge_client.cli.streams import Name
from liftbridge_client.errors import UsageError
from liftbridge_client.group_model import PositionChange, ResetTo

OPTIONS = "--to-earliest, --to-latest, --to-offset, --to-time or --shift-by"


class ResetRow(NamedTuple):
    """A position before and after; `repeated` is negative if messages are skipped."""

    stream: str
    partition: int
    member: str
    position: int | None
    new_position: int | None
    start: int
    end: int
    repeated: int
    done: bool


def target(
    *,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Continue at the first message.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Continue with new messages.")
    ] = False,
    to_offset: Annotated[
        int | None,
        typer.Option(
            "--to-offset",
            min=0,
            max=values.OFFSET_MAX,
            metavar="OFFSET",
            help="Continue at the message with this offset.",
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="TIME",
            help="Continue at the first message stored at or after a time: -10m or ISO.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by",
            min=-values.OFFSET_MAX,
            max=values.OFFSET_MAX,
            metavar="N",
            help="Skip N messages; go back if negative.",
        ),
    ] = None,
) -> ResetTo:
    """Return the target of a reset.

    Raises:
        UsageError: None is given, or several, or a time is invalid.
    """
    given: list[ResetTo] = []
    if to_earliest:
        given.append(ResetTo.earliest())
    if to_latest:
        given.append(ResetTo.latest())
    if to_offset is not None:
        given.append(ResetTo.offset(to_offset))
    if to_time is not None:
        moment = values.time(to_time, datetime.now(UTC))
        if moment is None:
            raise UsageError(f"--to-time {to_time!r}: must be a time such as -10m, or an ISO time")
        given.append(ResetTo.time(moment))
    if shift_by is not None:
        given.append(ResetTo.shift(shift_by))
    if len(given) != 1:
        raise UsageError(f"{len(given)} targets are given: give exactly one of {OPTIONS}")
    return given[0]


async def reset(
    run: Run[ResetRow],
    group: Group,
    name: Name,
    to: ResetTo,
    *,
    partition: Annotated[
        list[int] | None,
        values.partition_option("Number of a partition; repeatable, all by default."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Store the positions; without it, only show them.")
    ] = False,
) -> None:
    """Show where a group would continue in a stream; with --yes, let it.

    Refused while a member is to read one of the partitions: stop the members first.
    """
    async with run.asking() as lb:
        changes = await lb.groups.plan_reset(group, name, to, partitions=partition or ())
        if yes:
            await lb.groups.reset(group, changes)
    for change in changes:
        run.emit(_row(change, is_done=yes))
    if not yes:
        say("liftbridge: nothing was changed; add --yes to store these positions")


def _row(change: PositionChange, *, is_done: bool) -> ResetRow:
    lag = change.lag
    return ResetRow(
        lag.stream,
        lag.partition,
        lag.member,
        lag.position,
        change.position,
        lag.log_start,
        lag.high_watermark,
        lag.next_offset - change.next_offset,
        is_done,
    )


def register(group: typer.Typer) -> None:
    """Add the command."""
    shape = Shape(ResetRow, is_many=True)
    command(group, "reset", shape, group=GROUP, expands={"to": target})(reset)

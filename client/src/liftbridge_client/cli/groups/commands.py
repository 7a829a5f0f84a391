"""`liftbridge group`: who reads what, how far behind, and where groups continue."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Final, NamedTuple

import typer

from liftbridge_client.admin_model import PartitionName
from liftbridge_client.cli import values
from liftbridge_client.cli.command import CommandGroup, Run, command
from liftbridge_client.cli.groups import reset
from liftbridge_client.cli.groups.names import GROUP, Group
from liftbridge_client.cli.output import Shape, say
from liftbridge_client.group_model import ConsumerGroup, PartitionLag

WARN: Final = timedelta(hours=1)
"""Forecast below which a notice is shown, as brokers do."""


class MemberRow(NamedTuple):
    """A member; it is to read `target`, and may still hold partitions beyond that."""

    member: str
    member_epoch: int
    streams: Sequence[str]
    instance: str
    zone: str
    target: Sequence[str]
    held: Sequence[str]


class LagRow(NamedTuple):
    """Lag in a partition; `position` is null if none is stored, `end` is exclusive."""

    stream: str
    partition: int
    member: str
    position: int | None
    start: int
    end: int
    lag: int
    lag_seconds: float
    lost: int
    overtaken_in_seconds: float | None
    overtaken_by: str


class GroupRow(NamedTuple):
    """A group that has ended."""

    group: str


class EvictedRow(NamedTuple):
    """A member that was removed from its group."""

    group: str
    member: str


async def list_(run: Run[ConsumerGroup]) -> None:
    """List the groups that have members."""
    async with run.asking() as lb:
        for group in await lb.groups.list():
            run.emit(group)


async def describe(run: Run[MemberRow], group: Group) -> None:
    """Show the members of a group, what they are to read and what they hold."""
    async with run.asking() as lb:
        found = await lb.groups.describe(group)
    for one in found.members:
        run.emit(
            MemberRow(
                one.member,
                one.member_epoch,
                one.streams,
                one.instance,
                one.zone,
                _named(one.target),
                _named(one.held),
            )
        )


def _named(places: Sequence[PartitionName]) -> Sequence[str]:
    return tuple(f"{place.stream}/{place.partition}" for place in places)


async def lag(
    run: Run[LagRow],
    group: Group,
    streams: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STREAM]...", help="Streams; what members are to read by default."),
    ] = None,
) -> None:
    """Show how far a group is behind, and when retention will overtake it."""
    async with run.asking() as lb:
        found = await lb.groups.lag(group, *(streams or ()))
    for one in found:
        run.emit(_lag_row(one))
    _warn(group, found)


def _lag_row(one: PartitionLag) -> LagRow:
    left = one.overtaken_in
    return LagRow(
        one.stream,
        one.partition,
        one.member,
        one.position,
        one.log_start,
        one.high_watermark,
        one.messages,
        one.behind.total_seconds(),
        one.lost,
        None if left is None else left.total_seconds(),
        one.overtaken_by,
    )


def _warn(group: str, found: Sequence[PartitionLag]) -> None:
    """Print a notice if retention will soon remove messages that the group has not processed."""
    near = [one for one in found if one.overtaken_in is not None and one.overtaken_in <= WARN]
    if near:
        first = min(near, key=lambda one: one.overtaken_in or WARN)
        seconds = int((first.overtaken_in or timedelta()).total_seconds())
        say(
            f"liftbridge: as things go, retention by {first.overtaken_by} will remove messages of "
            f"{first.stream}/{first.partition} in {seconds} s that {group} has not processed "
            f"(partitions with less than an hour: {len(near)})"
        )


async def delete(
    run: Run[GroupRow],
    group: Group,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End a group with all its members; its positions stay. Members that live found it again."""
    run.confirm(f"End group {group} with all its members?", is_confirmed=yes)
    async with run.asking() as lb:
        await lb.groups.delete(group)
    run.emit(GroupRow(group))


async def evict(
    run: Run[EvictedRow],
    group: Group,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Name of the member.")],
    *,
    epoch: Annotated[
        int,
        typer.Option(
            "--epoch",
            min=0,
            max=values.OFFSET_MAX,
            metavar="N",
            help="Its member epoch, if it must be that one.",
        ),
    ] = 0,
) -> None:
    """Remove a member from a group; others take its partitions. If it lives, it joins again."""
    async with run.asking() as lb:
        await lb.groups.evict(group, member, member_epoch=epoch)
    run.emit(EvictedRow(group, member))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Look after consumer groups: members, lag and positions.", cls=CommandGroup
    )
    command(group, "list", Shape(ConsumerGroup, is_many=True), group=GROUP)(list_)
    command(group, "describe", Shape(MemberRow, is_many=True), group=GROUP)(describe)
    command(group, "lag", Shape(LagRow, is_many=True), group=GROUP)(lag)
    reset.register(group)
    command(group, "delete", Shape(GroupRow), group=GROUP)(delete)
    command(group, "evict", Shape(EvictedRow), group=GROUP)(evict)
    app.add_typer(group, name=GROUP, rich_help_panel="Messages")

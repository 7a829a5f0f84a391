"""`liftbridge quota`: how much principals and streams may use."""

from dataclasses import astuple
from typing import Annotated, Final, NamedTuple

import typer

from liftbridge_client.cli import values
from liftbridge_client.cli.command import CommandGroup, Run, command
from liftbridge_client.cli.output import Shape
from liftbridge_client.quota_model import KINDS, Limits, Quota, QuotaKind

GROUP: Final = "quota"
_LIMIT_MAX: Final = 2**53


class RemovedRow(NamedTuple):
    """A quota that exists no longer."""

    kind: str
    name: str


Kind = Annotated[
    str,
    typer.Argument(
        metavar="KIND", parser=values.one_of(*KINDS), help="What it limits: principal or stream."
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the principal or stream; * for each principal without a quota of its own.",
    ),
]


PublishBytes = Annotated[
    int | None,
    typer.Option(
        "--publish-bytes",
        parser=values.size,
        metavar="SIZE",
        help="Bytes published in a second through each broker, such as 10MB.",
    ),
]
PublishMessages = Annotated[
    int,
    typer.Option(
        "--publish-messages",
        min=0,
        max=_LIMIT_MAX,
        metavar="N",
        help="Messages published in a second through each broker.",
    ),
]
ReadBytes = Annotated[
    int | None,
    typer.Option(
        "--read-bytes",
        parser=values.size,
        metavar="SIZE",
        help="Bytes that each broker sends to readers in a second.",
    ),
]
ReadMessages = Annotated[
    int,
    typer.Option(
        "--read-messages",
        min=0,
        max=_LIMIT_MAX,
        metavar="N",
        help="Messages that each broker sends to readers in a second.",
    ),
]
Subscriptions = Annotated[
    int,
    typer.Option(
        "--subscriptions",
        min=0,
        max=_LIMIT_MAX,
        metavar="N",
        help="Subscriptions of a principal that are open at each broker.",
    ),
]
Streams = Annotated[
    int,
    typer.Option(
        "--streams", min=0, max=_LIMIT_MAX, metavar="N", help="Streams that a principal may create."
    ),
]
StoredBytes = Annotated[
    int | None,
    typer.Option(
        "--stored-bytes",
        parser=values.size,
        metavar="SIZE",
        help="Bytes of each partition of a stream, beyond which it takes no messages.",
    ),
]


async def list_(run: Run[Quota]) -> None:
    """List quotas; 0 is no limit."""
    async with run.admin() as admin:
        async for quota in admin.quotas.list():
            run.emit(quota)


async def set_(
    run: Run[Quota],
    kind: Kind,
    name: Name,
    *,
    publish_bytes: PublishBytes = None,
    publish_messages: PublishMessages = 0,
    read_bytes: ReadBytes = None,
    read_messages: ReadMessages = 0,
    subscriptions: Subscriptions = 0,
    streams: Streams = 0,
    stored_bytes: StoredBytes = None,
) -> None:
    """Set all limits of a principal or a stream; those left out are no limits any more."""
    limits = Limits(
        publish_bytes=publish_bytes or 0,
        publish_messages=publish_messages,
        read_bytes=read_bytes or 0,
        read_messages=read_messages,
        subscriptions=subscriptions,
        streams=streams,
        stored_bytes=stored_bytes or 0,
    )
    async with run.admin() as admin:
        await admin.quotas.set(_kind(kind), name, limits)
    run.emit(Quota(_kind(kind), name, *astuple(limits)))


async def remove(run: Run[RemovedRow], kind: Kind, name: Name) -> None:
    """Remove the quota of a principal or a stream."""
    async with run.admin() as admin:
        await admin.quotas.remove(_kind(kind), name)
    run.emit(RemovedRow(kind, name))


def _kind(text: str) -> QuotaKind:
    return "stream" if text == "stream" else "principal"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Limit how much principals and streams use.", cls=CommandGroup)
    command(group, "list", Shape(Quota, is_many=True), group=GROUP, is_admin=True)(list_)
    command(group, "set", Shape(Quota), group=GROUP, is_admin=True)(set_)
    command(group, "remove", Shape(RemovedRow), group=GROUP, is_admin=True)(remove)
    app.add_typer(group, name=GROUP, rich_help_panel="Operation")

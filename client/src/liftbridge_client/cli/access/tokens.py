"""`liftbridge token`: API tokens of a cluster."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final, NamedTuple

import typer

from liftbridge_client.admin_model import ApiToken
from liftbridge_client.cli import values
from liftbridge_client.cli.command import CommandGroup, Run, command
from liftbridge_client.cli.output import Shape

GROUP: Final = "token"


class NewTokenRow(NamedTuple):
    """A new token; its secret is not shown again."""

    secret: str
    id: str
    principal: str
    groups: Sequence[str]
    expires: datetime | None


class RevokedRow(NamedTuple):
    """A token that ends after some seconds."""

    id: str
    after_seconds: float


async def create(
    run: Run[NewTokenRow],
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="Name that its bearer gets.")
    ],
    *,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="NAME", help="Group of the principal; repeatable."),
    ] = None,
    lifetime: Annotated[
        timedelta | None,
        typer.Option(
            "--lifetime",
            parser=values.duration,
            metavar="TIME",
            help="Time after which it ends, such as 90d; without it, the token does not end.",
        ),
    ] = None,
) -> None:
    """Create an API token and show it, once."""
    async with run.admin() as admin:
        made = await admin.tokens.create(principal, groups=group or (), lifetime=lifetime)
    token = made.token
    run.emit(NewTokenRow(made.secret, token.id, token.principal, token.groups, token.expires))


async def list_(run: Run[ApiToken]) -> None:
    """List API tokens, without their secrets."""
    async with run.admin() as admin:
        async for token in admin.tokens.list():
            run.emit(token)


async def revoke(
    run: Run[RevokedRow],
    token: Annotated[str, typer.Argument(metavar="ID", help="Id of the token.")],
    *,
    after: Annotated[
        timedelta | None,
        typer.Option(
            "--after",
            parser=values.duration,
            metavar="TIME",
            help="Time until it ends, such as 1h, while its users get another one.",
        ),
    ] = None,
) -> None:
    """End an API token, at once by default; running calls end within two seconds."""
    wait = after or timedelta(0)
    async with run.admin() as admin:
        await admin.tokens.revoke(token, after=wait)
    run.emit(RevokedRow(token, wait.total_seconds()))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Manage API tokens of a cluster.", cls=CommandGroup)
    command(group, "create", Shape(NewTokenRow), group=GROUP, is_admin=True)(create)
    command(group, "list", Shape(ApiToken, is_many=True), group=GROUP, is_admin=True)(list_)
    command(group, "revoke", Shape(RevokedRow), group=GROUP, is_admin=True)(revoke)
    app.add_typer(group, name=GROUP, rich_help_panel="Operation")

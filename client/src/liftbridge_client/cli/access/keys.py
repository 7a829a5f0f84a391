"""`liftbridge keys`: master keys of encrypted streams."""

from typing import Annotated, Final

import typer

from liftbridge_client.admin_model import MasterKeyStatus, RewrappedKeys
from liftbridge_client.cli.command import CommandGroup, Run, command
from liftbridge_client.cli.output import Shape

GROUP: Final = "keys"


async def status(run: Run[MasterKeyStatus]) -> None:
    """Show which master key wraps the keys of how many streams, and which brokers have it."""
    async with run.admin() as admin:
        for key in await admin.keys.status():
            run.emit(key)


async def rotate(
    run: Run[RewrappedKeys],
    master_key: Annotated[
        str, typer.Argument(metavar="KEY", help="Id of a master key that all brokers have.")
    ],
) -> None:
    """Choose another master key, and rewrap the keys of all streams with it."""
    async with run.admin() as admin:
        await admin.keys.rotate(master_key)
    await rewrap(run)


async def rewrap(run: Run[RewrappedKeys]) -> None:
    """Rewrap the keys of streams that another master key wraps, after an interrupted rotation."""
    count = 0
    async with run.admin() as admin:
        while True:
            done = await admin.keys.rewrap()
            count += done.rewrapped
            if not done.left or not done.rewrapped:
                break
    run.emit(RewrappedKeys(count, done.left))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Show and rotate the master keys of encrypted streams.", cls=CommandGroup
    )
    command(group, "status", Shape(MasterKeyStatus, is_many=True), group=GROUP, is_admin=True)(
        status
    )
    command(group, "rotate", Shape(RewrappedKeys), group=GROUP, is_admin=True)(rotate)
    command(group, "rewrap", Shape(RewrappedKeys), group=GROUP, is_admin=True)(rewrap)
    app.add_typer(group, name=GROUP, rich_help_panel="Operation")

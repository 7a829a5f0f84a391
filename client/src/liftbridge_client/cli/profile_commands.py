"""`liftbridge profile`: named connections."""

from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from liftbridge_client.bearer import Bearer
from liftbridge_client.cli import profiles, values
from liftbridge_client.cli.command import CommandGroup, Run, command
from liftbridge_client.cli.output import Shape
from liftbridge_client.core.addresses import ADMIN_PORT, parse_addresses
from liftbridge_client.errors import UsageError
from liftbridge_client.pem import read_pem

GROUP: Final = "profile"


class ProfileRow(NamedTuple):
    """A profile; an empty string means not set."""

    name: str
    current: bool
    servers: str
    tls: bool
    ca: str
    cert: str
    key: str
    server_name: str
    admin: str
    token_file: str
    plain_token: bool


Name = Annotated[
    str,
    typer.Argument(
        parser=values.given,
        metavar="NAME",
        help="Name of the profile.",
        autocompletion=lambda: sorted(profiles.load().by_name),
    ),
]


def _pem(help_text: str) -> Any:
    return typer.Option(
        exists=True, dir_okay=False, resolve_path=True, metavar="FILE", help=help_text
    )


ShownName = Annotated[
    str | None,
    typer.Argument(
        parser=values.given,
        metavar="NAME",
        help="Name of the profile; by default the current one.",
    ),
]


async def add(
    run: Run[ProfileRow],
    name: Name,
    *,
    servers: Annotated[
        str, typer.Option(parser=values.given, metavar="HOST:PORT,...", help="Brokers.")
    ] = profiles.SERVERS_DEFAULT,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS and trust the system's CAs.")] = False,
    ca: Annotated[Path | None, _pem("CA certificates to verify the server (PEM).")] = None,
    cert: Annotated[Path | None, _pem("Client certificate (PEM).")] = None,
    key: Annotated[Path | None, _pem("Private key of the client certificate (PEM).")] = None,
    server_name: Annotated[
        str,
        typer.Option(metavar="NAME", help="Name in the server's certificate, if not its address."),
    ] = "",
    admin: Annotated[
        str, typer.Option(parser=values.given, metavar="HOST:PORT,...", help="Admin ports.")
    ] = profiles.ADMIN_DEFAULT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="PATH",
            help="File with the bearer token, read again when it changes.",
        ),
    ] = None,
    plain_token: Annotated[
        bool,
        typer.Option("--plain-token", help="Send the token without TLS too, for others to read."),
    ] = False,
    use: Annotated[bool, typer.Option("--use", help="Make it the current profile.")] = False,
) -> None:
    """Add or replace a profile.

    The first profile becomes the current one. Brokers identify clients by their certificates or
    tokens.
    """
    parse_addresses(servers)
    parse_addresses(admin, ADMIN_PORT)
    if (cert is None) != (key is None):
        raise UsageError("--cert and --key must be given together")
    files = {"ca": ca, "cert": cert, "key": key, "token_file": token_file}
    profile = profiles.Profile(
        servers=servers,
        tls=tls,
        server_name=server_name,
        admin=admin,
        plain_token=plain_token,
        **{option: str(path.absolute()) for option, path in files.items() if path is not None},
    )
    if (given := profile.tls_files()) is not None:
        read_pem(given)
    Bearer(profile.token(), is_encrypted=given is not None).open()
    known = profiles.load()
    current = name if use or not known.current else known.current
    by_name = {**known.by_name, profiles.check_name(name): profile}
    profiles.store(profiles.Profiles(current, by_name))
    run.emit(ProfileRow(name, name == current, *profile))


async def use(run: Run[ProfileRow], name: Name) -> None:
    """Make a profile the current one."""
    known = profiles.load()
    profile = profiles.choose(servers=None, profile=name)
    profiles.store(profiles.Profiles(name, known.by_name))
    run.emit(ProfileRow(name, True, *profile))  # noqa: FBT003 - a field of a row


async def show(run: Run[ProfileRow], name: ShownName = None) -> None:
    """Show a profile."""
    current = profiles.load().current
    profile = profiles.choose(servers=None, profile=name)
    shown = name or current
    run.emit(ProfileRow(shown, shown == current, *profile))


async def list_(run: Run[ProfileRow]) -> None:
    """List profiles."""
    known = profiles.load()
    for name in sorted(known.by_name):
        run.emit(ProfileRow(name, name == known.current, *known.by_name[name]))


async def remove(run: Run[ProfileRow], name: Name) -> None:
    """Remove a profile."""
    known = profiles.load()
    profile = profiles.choose(servers=None, profile=name)
    by_name = {other: found for other, found in known.by_name.items() if other != name}
    current = "" if name == known.current else known.current
    profiles.store(profiles.Profiles(current, by_name))
    run.emit(ProfileRow(name, False, *profile))  # noqa: FBT003 - a field of a row


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Manage named connections.", cls=CommandGroup)
    one = Shape(ProfileRow)
    command(group, "add", one, has_server=False, group=GROUP)(add)
    command(group, "use", one, has_server=False, group=GROUP)(use)
    command(group, "show", one, has_server=False, group=GROUP)(show)
    many = Shape(ProfileRow, is_many=True)
    command(group, "list", many, has_server=False, group=GROUP)(list_)
    command(group, "remove", one, has_server=False, group=GROUP)(remove)
    app.add_typer(group, name=GROUP, rich_help_panel="Start here")

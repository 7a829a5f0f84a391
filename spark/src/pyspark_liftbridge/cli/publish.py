"""`liftbridge spark publish`: publish an archive as an Iceberg table."""

import re
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

import typer

from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape
from liftbridge_client.errors import UsageError
from pyspark_liftbridge.cli.given import (
    Root,
    StoreOptions,
    StreamName,
    pairs,
    reported_errors,
    store_options,
    table_of,
)

NAMESPACE: Final = "liftbridge"
_AZURE_ALONE: Final = ("az", "azure", "adl")
_SECRETS: Final = ("secret", "token", "credential", "password", "key")


class PublishedRow(NamedTuple):
    """Result of a run; `version` is the entry of the archive's log that the table contains."""

    table: str
    version: int
    snapshots: int
    added: int
    removed: int


async def publish(
    run: Run[PublishedRow],
    stream: StreamName,
    root: Root,
    *,
    iceberg: Annotated[
        str,
        typer.Option(
            "--iceberg",
            metavar="CATALOG",
            help="Name of the catalog, in pyiceberg's configuration or for --catalog.",
        ),
    ],
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="NAMESPACE.NAME",
            help=f"Name of the table; by default `{NAMESPACE}.` and the name of the stream.",
        ),
    ] = None,
    catalog: Annotated[
        list[str] | None,
        typer.Option(
            "--catalog",
            metavar="NAME=VALUE",
            help="A property of the catalog, such as type, uri, warehouse; may be repeated. "
            "Secrets come from the environment, as in PYICEBERG_CATALOG__NAME__TOKEN.",
        ),
    ] = None,
    entries: Annotated[
        int,
        typer.Option(
            "--entries",
            min=1,
            max=10_000,
            metavar="N",
            help="Maximum number of entries of the archive's log in one snapshot.",
        ),
    ] = 100,
    store: StoreOptions = None,
) -> None:
    """Publish an archived stream as an Iceberg table of the same files, each once.

    The archive is authoritative, and the table catches up when this runs. Any number of runs may
    publish the same archive, and it is safe to kill one.
    """
    given = _properties(catalog)
    _check_address(root)
    try:
        from pyspark_liftbridge.archive import iceberg as to  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyiceberg"):
            raise
        raise UsageError(
            "pyiceberg is not installed: pip install 'liftbridge-spark[iceberg]'"
        ) from None
    options = store_options(store)
    properties = to.with_store(given, options)
    target = to.Target(iceberg, properties, _name(table, stream))
    with reported_errors():
        folder = table_of(stream, root, store)
        address = f"{root.rstrip('/')}/{folder.prefix}"
        done = to.publish(folder, address, target, entries_max=entries)
    run.emit(PublishedRow(done.table, done.version, done.snapshots, done.added, done.removed))


def _name(given: str | None, stream: str) -> str:
    """Return namespace and name of the table."""
    if given is None:
        return f"{NAMESPACE}.{re.sub(r'[^A-Za-z0-9_]', '_', stream)}"
    if not all(given.split(".")) or "." not in given:
        raise UsageError(
            f"--table {given}: must be a namespace and a name, such as {NAMESPACE}.orders"
        )
    return given


def _check_address(root: str) -> None:
    """Refuse an address that readers of Iceberg do not know, because it names the files."""
    scheme = root.partition("://")[0].lower() if "://" in root else ""
    if scheme in _AZURE_ALONE:
        raise UsageError(
            f"ROOT {root}: Iceberg does not support {scheme}://; name the same place as "
            "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
        )


def _properties(given: list[str] | None) -> dict[str, str]:
    """Parse the properties of the catalog; refuse secrets, which other users would see."""
    properties = pairs(given, "--catalog")
    for name, value in properties.items():
        is_secret = any(word in name.lower() for word in _SECRETS)
        try:
            has_password = urlsplit(value).password is not None
        except ValueError:
            # The error may quote a password.
            raise UsageError(f"--catalog {name}: the value is not an address") from None
        if is_secret or has_password:
            raise UsageError(
                f"--catalog {name}: secrets must come from the environment, as in "
                "PYICEBERG_CATALOG__NAME__TOKEN, or from the configuration of pyiceberg"
            )
    return properties


def register(group: typer.Typer) -> None:
    """Add the command."""
    command(group, "publish", Shape(PublishedRow), group="spark", has_server=False)(publish)

"""`liftbridge spark`: jobs on streams and archives."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from liftbridge_client.cli import exits
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape, say
from liftbridge_client.errors import UsageError

if TYPE_CHECKING:
    from pyspark_liftbridge.archive.store import Below
    from pyspark_liftbridge.jobs.archive import Archived, Job

MISSING: Final = 5
"""Exit code: records are missing."""

BEATEN: Final = 6
"""Exit code: other writers were first, time and again."""

STORE_OPTIONS: Final = ("endpoint", "region", "allow_http", "virtual_hosted_style_request")
"""Options of an object store that the command takes; secrets come by the environment."""

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
Root = Annotated[
    str,
    typer.Argument(
        metavar="ROOT", help="Address of the archive: a folder, s3://bucket/path, gs:// or az://."
    ),
]
StoreOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        metavar="NAME=VALUE",
        help=f"An option of an object store, of {', '.join(STORE_OPTIONS)}; keys and secrets come "
        "by the usual variables of the environment.",
    ),
]
Master = Annotated[
    str, typer.Option("--master", metavar="MASTER", help="Where Spark runs: local[2], k8s://...")
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]


class ArchiveRow(NamedTuple):
    """What was archived; `version` is the newest entry of the table's log."""

    stream: str
    table: str
    version: int
    records: int
    files: int
    bytes: int
    lost: int


class FindingRow(NamedTuple):
    """Something that is not as it should be."""

    place: str
    text: str


class OrphanRow(NamedTuple):
    """A file in no entry, which was removed."""

    path: str
    bytes: int


async def archive(
    run: Run[ArchiveRow],
    stream: StreamName,
    root: Root,
    *,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            min=0.0,
            max=86_400.0,
            metavar="SECONDS",
            help="Go on until stopped, with such a pause; without it once.",
        ),
    ] = None,
    allow_loss: Annotated[
        bool,
        typer.Option("--allow-loss", help="Record gaps of records that are gone, and go on."),
    ] = False,
    store: StoreOptions = None,
    master: Master = "local[2]",
    conf: Conf = None,
) -> None:
    """Archive what is committed as a Delta table of Parquet files; each record once.

    Any number of runs may work on one stream. One that is stopped leaves nothing that harms.
    """
    job = _job(run, stream, root, store, fails_on_loss=not allow_loss)
    once = _archiving(master, _pairs(conf, "--conf"))
    while True:
        with _told():
            done = once(job)
        run.emit(ArchiveRow(*done))
        if every is None:
            return
        await asyncio.sleep(every)


async def verify(
    run: Run[FindingRow], stream: StreamName, root: Root, *, store: StoreOptions = None
) -> None:
    """Check the log of an archived stream, and all files in it; ends with 1 for a finding."""
    from pyspark_liftbridge.archive.verify import verify as findings_of  # noqa: PLC0415 - heavy

    with _told():
        table = _table(stream, root, store)
        findings = findings_of(table)
    for finding in findings:
        run.emit(FindingRow(*finding))
    run.exit_code = exits.REFUSED if findings else exits.OK


async def gc(
    run: Run[OrphanRow], stream: StreamName, root: Root, *, store: StoreOptions = None
) -> None:
    """Remove files in no entry of an archived stream that are older than a day."""
    from pyspark_liftbridge.archive.gc import remove_orphans  # noqa: PLC0415 - heavy

    with _told():
        removed = remove_orphans(_table(stream, root, store), now_ms=time.time_ns() // 1_000_000)
    for one in removed:
        run.emit(OrphanRow(one.path, one.size))


def _job(
    run: Run[ArchiveRow], stream: str, root: str, store: list[str] | None, *, fails_on_loss: bool
) -> "Job":
    from pyspark_liftbridge.jobs.archive import Job  # noqa: PLC0415 - heavy

    profile = run.profile
    if profile.server_name or (profile.tls and not profile.ca):
        raise UsageError(
            "jobs take TLS by the files ca, cert and key: name them in the profile, and no "
            "server_name"
        )
    files = {"tls.ca": profile.ca, "tls.cert": profile.cert, "tls.key": profile.key}
    source = {"servers": profile.servers, **{name: path for name, path in files.items() if path}}
    return Job(stream, root, source, _store_options(store), fails_on_loss)


def _archiving(master: str, conf: Mapping[str, str]) -> "Callable[[Job], Archived]":
    with _told():
        from pyspark_liftbridge.session import session  # noqa: PLC0415 - heavy

        spark = session(master, conf)
        from pyspark_liftbridge.jobs.archive import archive_once  # noqa: PLC0415 - heavy
        from pyspark_liftbridge.jobs.tasks import runner  # noqa: PLC0415 - heavy

        run = runner(spark)
    return lambda job: archive_once(job, run)


def _table(name: str, root: str, store: list[str] | None) -> "Below":
    """The table of a stream, or of `<stream>@<id>` for one that was made anew."""
    from pyspark_liftbridge.archive.store import Below, opened  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.archive.table import folder_of  # noqa: PLC0415 - heavy

    stream, at, stream_id = name.partition("@")
    return Below(opened(root, _store_options(store)), f"{folder_of(stream)}{at}{stream_id}/")


def _store_options(given: list[str] | None) -> dict[str, str]:
    found = _pairs(given, "--store")
    for name in found:
        if name not in STORE_OPTIONS:
            raise UsageError(
                f"--store {name}: must be one of {', '.join(STORE_OPTIONS)}; keys and secrets come "
                "by the environment"
            )
    return found


def _pairs(given: list[str] | None, option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"{option} {text}: must be NAME=VALUE")
        found[name] = value
    return found


@contextmanager
def _told() -> Iterator[None]:
    """Tell errors of jobs in one line, with their exit codes."""
    from pyspark_liftbridge.archive.errors import (  # noqa: PLC0415 - heavy
        ArchiveError,
        ContentionError,
    )
    from pyspark_liftbridge.java import JavaError  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.plan.archiving import MissingError  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.plan.options import OptionError  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.source.reading import DataLossError  # noqa: PLC0415 - heavy

    try:
        yield
    except (MissingError, DataLossError, OptionError, JavaError, ArchiveError) as error:
        codes = (
            (MissingError, MISSING),
            (DataLossError, MISSING),
            (ContentionError, BEATEN),
            (OptionError, exits.USAGE),
            (JavaError, exits.USAGE),
            (ArchiveError, exits.UNHEALTHY),
        )
        say(f"liftbridge: {' '.join(str(error).split())}")
        raise typer.Exit(next(code for kind, code in codes if isinstance(error, kind))) from None
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyspark"):
            raise
        raise UsageError("PySpark is not installed: pip install pyspark") from None


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Jobs on streams and archives, with Spark.", no_args_is_help=True)
    command(group, "archive", Shape(ArchiveRow, is_many=True), group="spark")(archive)
    command(group, "verify", Shape(FindingRow, is_many=True), group="spark", has_server=False)(
        verify
    )
    command(group, "gc", Shape(OrphanRow, is_many=True), group="spark", has_server=False)(gc)
    app.add_typer(group, name="spark", rich_help_panel="Pipelines")

"""`liftbridge spark archive`, `verify` and `gc`: write, check and clean up an archive."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from liftbridge_client.cli import exits
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape, say
from liftbridge_client.errors import LiftbridgeError
from pyspark_liftbridge.cli.given import (
    Conf,
    Master,
    Remote,
    Root,
    StoreOptions,
    StreamName,
    reported_errors,
    runner_of,
    source_options,
    store_options,
    table_of,
)

if TYPE_CHECKING:
    from pyspark_liftbridge.jobs.archive import Archived

ArchivedCursor = Annotated[
    str,
    typer.Option(
        "--cursor",
        metavar="NAME",
        help="Cursor for the first offset that is not archived; archive/<id of ROOT> by default.",
    ),
]
SavedCursors = Annotated[
    list[str] | None,
    typer.Option(
        "--save-cursor",
        metavar="NAME",
        help="Save the positions of this cursor for `replay --cursors`; may be repeated.",
    ),
]


class ArchiveRow(NamedTuple):
    """Result of a run; `version` is the latest entry of the table's log.

    `retention_cursor` of the stream may name `cursor`.
    """

    stream: str
    table: str
    version: int
    records: int
    files: int
    bytes: int
    lost: int
    cursor: str


class FindingRow(NamedTuple):
    """A problem of an archive."""

    place: str
    text: str


class OrphanRow(NamedTuple):
    """A file that no entry lists and that was removed."""

    path: str
    bytes: int


async def archive(
    run: Run[ArchiveRow],
    streams: Annotated[
        list[str], typer.Argument(metavar="STREAM...", help="Names of the streams.")
    ],
    root: Root,
    *,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            min=0.0,
            max=86_400.0,
            metavar="SECONDS",
            help="Repeat until stopped, with this pause; by default run once.",
        ),
    ] = None,
    allow_loss: Annotated[
        bool,
        typer.Option("--allow-loss", help="Record gaps where records are missing, and continue."),
    ] = False,
    cursor: ArchivedCursor = "",
    save_cursor: SavedCursors = None,
    store: StoreOptions = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Archive committed records as a Delta table of Parquet files, each record once.

    Any number of runs may archive the same stream, and it is safe to kill one. If one of several
    streams fails, the others are still archived before the command ends.
    """
    from pyspark_liftbridge.jobs.archive import Job, archive_once  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.jobs.cursor import Shown  # noqa: PLC0415 - heavy

    source, options = source_options(run.profile), store_options(store)
    jobs = [
        Job(stream, root, source, options, not allow_loss, tuple(save_cursor or ()), cursor)
        for stream in streams
    ]
    runner, shown = runner_of("archive", master, conf, remote), [Shown() for _ in jobs]
    works = [
        partial(archive_once, job, runner, known) for job, known in zip(jobs, shown, strict=True)
    ]
    while True:
        run.exit_code = archive_all(works, lambda done: run.emit(ArchiveRow(*done)))
        if run.exit_code != exits.OK or every is None:
            return
        await asyncio.sleep(every)


def archive_all(
    works: Sequence[Callable[[], "Archived"]], emit: Callable[["Archived"], None]
) -> int:
    """Archive streams one after another, even if an earlier one fails.

    Args:
        works: Each archives one stream.
        emit: Receives the result of each.

    Returns:
        Exit code of the first failure.
    """
    code = exits.OK
    for work in works:
        try:
            with reported_errors():
                done = work()
        except typer.Exit as error:
            code = code or error.exit_code
        except LiftbridgeError as error:
            line, found = exits.line_and_code(error)
            say(line)
            code = code or found
        else:
            emit(done)
    return code


async def verify(
    run: Run[FindingRow], stream: StreamName, root: Root, *, store: StoreOptions = None
) -> None:
    """Check the log and all files of an archived stream; ends with 1 if anything is wrong."""
    from pyspark_liftbridge.archive.verify import verify as findings_of  # noqa: PLC0415 - heavy

    with reported_errors():
        table = table_of(stream, root, store)
        findings = findings_of(table)
    for finding in findings:
        run.emit(FindingRow(*finding))
    run.exit_code = exits.REFUSED if findings else exits.OK


async def gc(
    run: Run[OrphanRow], stream: StreamName, root: Root, *, store: StoreOptions = None
) -> None:
    """Remove files of an archived stream that no log entry lists and that are a day old."""
    from pyspark_liftbridge.archive.gc import remove_orphans  # noqa: PLC0415 - heavy

    with reported_errors():
        removed = remove_orphans(table_of(stream, root, store), now_ms=time.time_ns() // 1_000_000)
    for one in removed:
        run.emit(OrphanRow(one.path, one.size))


def register(group: typer.Typer) -> None:
    """Add the commands."""
    command(group, "archive", Shape(ArchiveRow, is_many=True), group="spark", has_timeout=False)(
        archive
    )
    command(group, "verify", Shape(FindingRow, is_many=True), group="spark", has_server=False)(
        verify
    )
    command(group, "gc", Shape(OrphanRow, is_many=True), group="spark", has_server=False)(gc)

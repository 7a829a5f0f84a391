"""`liftbridge spark archive`, `verify` and `gc`: what makes an archive and looks after it."""

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
    runner_of,
    source_options,
    store_options,
    table_of,
    told,
)

if TYPE_CHECKING:
    from pyspark_liftbridge.jobs.archive import Archived

ArchivedCursor = Annotated[
    str,
    typer.Option(
        "--cursor",
        metavar="NAME",
        help="Cursor that says how far partitions are archived; archive/<id of ROOT> without it.",
    ),
]
SavedCursors = Annotated[
    list[str] | None,
    typer.Option(
        "--save-cursor",
        metavar="NAME",
        help="Write down where this cursor stands, for `replay --cursors`; may be repeated.",
    ),
]


class ArchiveRow(NamedTuple):
    """What was archived; `version` is the newest entry of the table's log.

    `cursor` is what `retention_cursor` of the stream may name.
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
    """Something that is not as it should be."""

    place: str
    text: str


class OrphanRow(NamedTuple):
    """A file in no entry, which was removed."""

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
            help="Go on until stopped, with such a pause; without it once.",
        ),
    ] = None,
    allow_loss: Annotated[
        bool,
        typer.Option("--allow-loss", help="Record gaps of records that are gone, and go on."),
    ] = False,
    cursor: ArchivedCursor = "",
    save_cursor: SavedCursors = None,
    store: StoreOptions = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Archive what is committed as a Delta table of Parquet files; each record once.

    Any number of runs may work on one stream. One that is stopped leaves nothing that harms. Of
    several streams, the others are archived before a failure of one ends the command.
    """
    from pyspark_liftbridge.jobs.archive import Job, archive_once  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.jobs.cursor import Shown  # noqa: PLC0415 - heavy

    source, options = source_options(run.profile), store_options(store)
    jobs = [
        Job(one, root, source, options, not allow_loss, tuple(save_cursor or ()), cursor)
        for one in streams
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
    """Archive streams one after the other, whatever becomes of those before.

    Args:
        works: Each archives one stream.
        emit: Takes what was archived.

    Returns:
        Exit code of the first failure.
    """
    code = exits.OK
    for work in works:
        try:
            with told():
                done = work()
        except typer.Exit as error:
            code = code or error.exit_code
        except LiftbridgeError as error:
            line, found = exits.told(error)
            say(line)
            code = code or found
        else:
            emit(done)
    return code


async def verify(
    run: Run[FindingRow], stream: StreamName, root: Root, *, store: StoreOptions = None
) -> None:
    """Check the log of an archived stream, and all files in it; ends with 1 for a finding."""
    from pyspark_liftbridge.archive.verify import verify as findings_of  # noqa: PLC0415 - heavy

    with told():
        table = table_of(stream, root, store)
        findings = findings_of(table)
    for finding in findings:
        run.emit(FindingRow(*finding))
    run.exit_code = exits.REFUSED if findings else exits.OK


async def gc(
    run: Run[OrphanRow], stream: StreamName, root: Root, *, store: StoreOptions = None
) -> None:
    """Remove files in no entry of an archived stream that are older than a day."""
    from pyspark_liftbridge.archive.gc import remove_orphans  # noqa: PLC0415 - heavy

    with told():
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

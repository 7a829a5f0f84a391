"""`liftbridge spark archive`, `verify` and `gc`: what makes an archive and looks after it."""

import asyncio
import time
from typing import Annotated, NamedTuple

import typer

from liftbridge_client.cli import exits
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape
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
    while True:
        failure: typer.Exit | None = None
        for job, known in zip(jobs, shown, strict=True):
            try:
                with told():
                    done = archive_once(job, runner, known)
            except typer.Exit as error:
                failure = failure or error
            else:
                run.emit(ArchiveRow(*done))
        if failure is not None:
            raise failure
        if every is None:
            return
        await asyncio.sleep(every)


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
    command(group, "archive", Shape(ArchiveRow, is_many=True), group="spark")(archive)
    command(group, "verify", Shape(FindingRow, is_many=True), group="spark", has_server=False)(
        verify
    )
    command(group, "gc", Shape(OrphanRow, is_many=True), group="spark", has_server=False)(gc)

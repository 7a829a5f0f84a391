"""`liftbridge spark compact`: merge small files, or keep only the last record of each key."""

from datetime import timedelta
from typing import Annotated, Final, NamedTuple

import typer

from liftbridge_client.cli import values
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape
from liftbridge_client.errors import UsageError
from pyspark_liftbridge.cli.given import (
    Conf,
    Master,
    Remote,
    Root,
    StoreOptions,
    StreamName,
    folder_of_table,
    reported_errors,
    runner_of,
    store_options,
)

_TARGET_BYTES: Final = (1 << 20, 1 << 30)
_HOURS_MAX: Final = 24.0 * 36_500


class CompactRow(NamedTuple):
    """Result of a compaction; `version` is the latest entry of the table's log."""

    stream: str
    table: str
    version: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    records_removed: int


async def compact(
    run: Run[CompactRow],
    stream: StreamName,
    root: Root,
    *,
    by_key: Annotated[
        bool,
        typer.Option(
            "--by-key/--small-files",
            help="Keep the last record of each key and all records without a key; or merge small "
            "files and keep every record.",
        ),
    ] = False,
    target_size: Annotated[
        int,
        typer.Option(
            "--target-size",
            parser=values.size,
            metavar="SIZE",
            help="Size of the new files, 1MiB to 1GiB.",
        ),
    ] = "128MiB",  # type: ignore[assignment]  # the parser turns it into a number
    keep_tombstones: Annotated[
        float | None,
        typer.Option(
            "--keep-tombstones",
            min=0.0,
            max=_HOURS_MAX,
            metavar="HOURS",
            help="With --by-key: how long the last record of a key is kept if its value is empty; "
            "24 by default.",
        ),
    ] = None,
    store: StoreOptions = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Rewrite files of an archived stream; readers get either all old files or all new files.

    It may run at the same time as archiving and other compactions. After a day `liftbridge spark
    gc` removes the files that were replaced.
    """
    from pyspark_liftbridge.jobs.compact import Job  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.jobs.compact import compact as compacted_by  # noqa: PLC0415 - heavy

    least, most = _TARGET_BYTES
    if not least <= target_size <= most:
        raise UsageError(f"--target-size: must be 1MiB to 1GiB, not {target_size} bytes")
    if keep_tombstones is not None and not by_key:
        raise UsageError("--keep-tombstones needs --by-key: every record is kept without it")
    folder_of_table(stream)  # refuses a wrong name before Spark is started
    kept = timedelta(hours=24.0 if keep_tombstones is None else keep_tombstones)
    job = Job(
        stream,
        root,
        store_options(store),
        target_size,
        kept // timedelta(milliseconds=1) if by_key else None,
    )
    with reported_errors():
        done = compacted_by(job, runner_of("compact", master, conf, remote))
    run.emit(CompactRow(*done))


def register(group: typer.Typer) -> None:
    """Add the command."""
    command(group, "compact", Shape(CompactRow), group="spark", has_server=False)(compact)

"""`liftbridge spark replay` and `audit`: write an archive to a stream, and compare all copies."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from liftbridge_client.cli import exits
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape, say, stderr_console
from liftbridge_client.errors import UsageError
from pyspark_liftbridge.address import whole_address
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
    source_options,
    store_options,
)

if TYPE_CHECKING:
    from pyspark_liftbridge.jobs.audit import Audited

ToStream = Annotated[
    str,
    typer.Option(
        "--to-stream",
        metavar="NAME",
        help="Stream to write to, which must exist; by default the one with the archived name.",
    ),
]
Offsets = Annotated[
    str,
    typer.Option(
        "--offsets", metavar="A:B", help="Only offsets from A up to, but not including, B."
    ),
]
Times = Annotated[
    str,
    typer.Option("--time", metavar="FROM:TO", help="Only records of this time range, in ISO 8601."),
]
PreserveOffsets = Annotated[
    bool,
    typer.Option(
        "--preserve-offsets",
        help="Keep the original offsets, times and subjects of records.",
    ),
]
AllowRepeats = Annotated[
    bool,
    typer.Option(
        "--allow-repeats",
        help="Publish again what a replay may have published before the archive was compacted by "
        "key.",
    ),
]
WithCursors = Annotated[
    bool,
    typer.Option(
        "--cursors",
        help="Also restore the cursors that `archive --save-cursor` saved, at most to the last "
        "offset replayed; needs --preserve-offsets.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")
]


class ReplayRow(NamedTuple):
    """Result of a replay for a partition; with `--dry-run`, the planned result.

    `start` and `end` are offsets of the archive, `target_end` is the end of the target before the
    replay. `written` is the number of records written, or its planned maximum; `known` is the
    number of records that the target already had.
    """

    partition: int
    start: int
    end: int
    target_end: int
    written: int
    known: int


class DifferenceRow(NamedTuple):
    """Offsets of a partition at which `holder` differs from another holder."""

    partition: int
    start: int
    end: int
    holder: str
    text: str


async def replay(
    run: Run[ReplayRow],
    stream: StreamName,
    root: Root,
    *,
    to_stream: ToStream = "",
    offsets: Offsets = ":",
    time: Times = ":",
    preserve_offsets: PreserveOffsets = False,
    allow_repeats: AllowRepeats = False,
    cursors: WithCursors = False,
    dry_run: DryRun = False,
    store: StoreOptions = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Write an archived stream to a stream; records that an earlier run wrote are skipped."""
    from pyspark_liftbridge.archive.table import parts_named  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.jobs.holders import Access  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.jobs.replay import Job, plan, set_cursors  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.jobs.replay import replay as replay_of  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.jobs.selection import selection_of  # noqa: PLC0415 - heavy

    if cursors and not preserve_offsets:
        raise UsageError("--cursors needs --preserve-offsets: positions are wrong without it")
    with reported_errors():
        selection = selection_of(offsets, time)
    job = Job(
        folder_of_table(stream),
        to_stream or parts_named(stream)[0],
        Access(source_options(run.profile), root, store_options(store)),
        selection,
        preserve_offsets,
        allow_repeats,
    )
    if cursors:
        with reported_errors():
            set_cursors(job, ())  # refuses an archive without positions before anything is written
    if dry_run:
        with reported_errors():
            parts = plan(job)
        for part in parts:
            run.emit(
                ReplayRow(
                    part.partition, part.start, part.end, part.target_end, part.records_max, 0
                )
            )
        return
    runner = runner_of("replay", master, conf, remote)
    with reported_errors(), _progress("offsets replayed") as report:
        rows = replay_of(job, runner, report)
        count = set_cursors(job, rows) if cursors else 0
    if cursors:
        say(f"liftbridge: {count} cursor positions restored")
    for row in rows:
        run.emit(ReplayRow(*row))


async def audit(
    run: Run[DifferenceRow],
    stream: StreamName,
    *,
    archive: Annotated[
        str,
        typer.Option(
            "--archive",
            parser=whole_address,
            metavar="ROOT",
            help="Also compare with the archive at this address.",
        ),
    ] = "",
    other: Annotated[
        str,
        typer.Option("--with", metavar="STREAM", help="Also compare with another stream."),
    ] = "",
    store: StoreOptions = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Compare all replicas of a stream record by record; ends with 1 if they differ.

    It ends with 3 if all copies that could be read are the same, but some could not be read.
    """
    from pyspark_liftbridge.jobs.audit import Job  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.jobs.audit import audit as audited  # noqa: PLC0415 - heavy
    from pyspark_liftbridge.jobs.holders import Access  # noqa: PLC0415 - heavy

    access = Access(source_options(run.profile), archive, store_options(store))
    runner = runner_of("audit", master, conf, remote)
    with reported_errors(), _progress("ranges compared") as report:
        result = audited(Job(stream, access, other), runner, report)
    for row in result.differences:
        run.emit(DifferenceRow(row.partition, row.start, row.end, row.holder, row.text))
    gone = f"; compaction explains {result.superseded:,} more" if result.superseded else ""
    say(
        f"liftbridge: {result.records:,} records of {len(result.holders)} holders compared "
        f"({', '.join(result.holders)}), {len(result.differences):,} differences{gone}"
    )
    run.exit_code = exit_code_of(result)


def exit_code_of(found: "Audited") -> int:
    """Return the exit code of `audit`: unreadable data is neither a difference nor a success."""
    if found.is_unlike:
        return exits.REFUSED
    return exits.UNHEALTHY if found.differences else exits.OK


@contextmanager
def _progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal while a block runs."""
    from pyspark_liftbridge.jobs.works import silent  # noqa: PLC0415 - heavy

    console = stderr_console()
    if not console.is_terminal:
        yield silent
        return
    columns = (TextColumn("{task.completed:,} of {task.total:,} {task.description}"), BarColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(text, total=0)
        yield lambda done, all_: bar.update(task, completed=done, total=all_)


def register(group: typer.Typer) -> None:
    """Add the commands."""
    command(group, "replay", Shape(ReplayRow, is_many=True), group="spark", has_timeout=False)(
        replay
    )
    command(group, "audit", Shape(DifferenceRow, is_many=True), group="spark", has_timeout=False)(
        audit
    )

"""`liftbridge spark query` and `metrics`: query streams with SQL, and measure them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple

import typer

from liftbridge_client.cli import values
from liftbridge_client.cli.command import Run, command
from liftbridge_client.cli.output import Shape, say
from liftbridge_client.errors import UsageError
from pyspark_liftbridge.cli.given import (
    Conf,
    Master,
    Remote,
    StreamName,
    reported_errors,
    session_of,
    source_options,
)

ROWS_MAX: Final = 1_000_000
"""Maximum rows of a result, which is held in memory."""


class WindowRow(NamedTuple):
    """Measurements of a window; `gaps` counts offsets without a record before its records."""

    start: datetime
    records: int
    bytes: int
    value_p50: int
    value_p99: int
    keys: int
    top_keys: Mapping[str, int]
    gaps: int


async def query(
    run: Run[Mapping[str, object]],
    statement: Annotated[str, typer.Argument(metavar="SQL", help="A statement in Spark SQL.")],
    *,
    stream: Annotated[
        list[str] | None,
        typer.Option(
            "--stream",
            "-s",
            metavar="NAME",
            help="A stream that the statement can use as a table; may be repeated.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=ROWS_MAX, help="Maximum number of rows to print.")
    ] = 1_000,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Query the committed records of streams with SQL.

    Put a name that is not an SQL identifier between backticks, such as `orders.eu`. Binary columns
    are printed in base64; cast(value as string) prints text.
    """
    with reported_errors():
        spark = session_of(master, conf, remote)
        from pyspark_liftbridge.jobs.query import query as answer_of  # noqa: PLC0415 - heavy

        source = source_options(run.profile)
        answer = answer_of(spark, statement, stream or (), source, rows_max=limit)
    for row in answer.rows:
        run.emit(row)
    if answer.is_cut:
        say(f"liftbridge: only the first {limit:,} rows are shown; raise --limit for more")


async def metrics(
    run: Run[WindowRow],
    stream: StreamName,
    *,
    window: Annotated[
        int,
        typer.Option(
            "--window", min=1, max=86_400 * 366, metavar="SECONDS", help="Length of a window."
        ),
    ] = 60,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="First time, such as -10m or an ISO 8601 time; everything by default.",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="First time that is no longer included."),
    ] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Measure the committed records of a stream in windows of time.

    Numbers of keys and percentiles of sizes are estimates: distinct keys are within about 5 %,
    percentiles are more precise. Windows without records are left out.
    """
    now = datetime.now(UTC)
    first, last = _time_ms("--from", start, now), _time_ms("--to", end, now)
    if first is not None and last is not None and last < first:
        raise UsageError(f"--to {end}: must not be before --from {start}")
    with reported_errors():
        spark = session_of(master, conf, remote)
        from pyspark_liftbridge.jobs.metrics import WINDOWS_MAX, Range  # noqa: PLC0415 - heavy
        from pyspark_liftbridge.jobs.metrics import metrics as measured  # noqa: PLC0415 - heavy

        rows = measured(spark, Range(stream, window, first, last), source_options(run.profile))
    for row in rows[:WINDOWS_MAX]:
        run.emit(WindowRow(*row))
    if len(rows) > WINDOWS_MAX:
        say(
            f"liftbridge: only the first {WINDOWS_MAX:,} windows are shown; use a larger --window, "
            "or select less of the stream with --from and --to"
        )


def _time_ms(option: str, text: str | None, now: datetime) -> int | None:
    """Parse a time on the command line to milliseconds since 1970."""
    if text is None:
        return None
    time = values.time(text, now)
    if time is None or time.timestamp() < 0:
        raise UsageError(f"{option} {text}: must be a time such as -10m, or an ISO time since 1970")
    return int(time.timestamp() * 1_000)


def register(group: typer.Typer) -> None:
    """Add the commands."""
    command(
        group, "query", Shape(Mapping[str, object], is_many=True), group="spark", has_timeout=False
    )(query)
    command(group, "metrics", Shape(WindowRow, is_many=True), group="spark", has_timeout=False)(
        metrics
    )

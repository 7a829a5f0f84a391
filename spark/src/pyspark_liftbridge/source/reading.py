"""Read the ranges of a task: each record once and in order, or raise an error."""

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from liftbridge_client import (
    FailedPreconditionError,
    NotFoundError,
    OutOfRangeError,
    SyncClient,
    TruncatedError,
)
from pyspark_liftbridge.archive.errors import FileGoneError
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import SourceOptions
from pyspark_liftbridge.plan.places import Known
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.plan.unified import Origin, next_step
from pyspark_liftbridge.source import ahead, cluster
from pyspark_liftbridge.source.messages import by_message
from pyspark_liftbridge.source.schema import Layout, Place

if TYPE_CHECKING:
    from pyspark_liftbridge.archive.reading import Part
    from pyspark_liftbridge.source.archived import Archive

_log: Final = logging.getLogger(__name__)

FILES_GONE_MAX: Final = 3
"""Maximum number of times that the files of a range may be replaced during the read."""


class DataLossError(RuntimeError):
    """Records of a range are lost, and `failOnDataLoss` is set."""


class _Stop(NamedTuple):
    """End of a read of the log.

    Attributes:
        position: First offset not read.
        kept: First offset that the log may still have; `position` if it has all offsets.
        gone: Reason why the log has no more records, empty if only offsets are missing.
        remedy: Action for the user.
    """

    position: int
    kept: int
    gone: str = ""
    remedy: str = (
        "Set failOnDataLoss=false to continue with the stream of that name, from earliest."
    )


class _Losses:
    """Counts the lost offsets that a task skips, or raises the error."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._count = 0

    def add(self, wanted: Range, stop: _Stop) -> None:
        """Fail for lost offsets, or count and log them.

        Raises:
            DataLossError: `failOnDataLoss` is set.
        """
        start, end = stop.position, stop.kept
        text = f"offsets {start} to {end - 1} of {wanted.stream}/{wanted.partition} are gone: "
        if stop.gone:
            text += stop.gone
            remedy = stop.remedy
        else:
            text += "retention or an unclean election removed them before they were read"
            has_archive = self._options.archive is not None
            remedy = "Set " if has_archive else "Set archive= to read them from an archive, or "
            remedy += "failOnDataLoss=false to continue without them."
        if self._options.fails_on_loss:
            raise DataLossError(f"{text}. {remedy}")
        self._count += end - start
        _log.warning(
            "%s; the query continues without them (failOnDataLoss=false): %d offsets, %d in this "
            "task so far",
            text,
            end - start,
            self._count,
        )


class _Reading(NamedTuple):
    """Context of a task's reads: client, options, columns, archive."""

    client: SyncClient
    layout: Layout
    options: SourceOptions
    losses: _Losses


def records_of(
    client: SyncClient,
    ranges: Sequence[Range],
    layout: Layout,
    options: SourceOptions,
    parts: "Mapping[Range, Part] | None" = None,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of ranges, a batch for each answer of a broker.

    Args:
        client: Client for requests to brokers.
        ranges: Ranges to read.
        layout: Columns.
        options: Options of the query.
        parts: Archived parts of the ranges.

    Raises:
        DataLossError: Records are missing, or the stream was deleted or created again.
        LiftbridgeError: No broker could serve a range within the timeout, or the response is
            damaged.
        ArchiveError: The archive could not be read.
    """
    shelf = None
    if options.archive is not None:
        from pyspark_liftbridge.source.archived import Archive  # noqa: PLC0415 - heavy

        shelf = Archive(options.archive)
    reading = _Reading(client, layout, options, _Losses(options))
    if shelf is not None:
        for one in ranges:
            yield from _of_both(reading, shelf, one, (parts or {}).get(one))
        return
    is_raw = _is_raw(client, options)
    for is_ahead, some in groupby(ranges, lambda one: is_raw and one.size <= ahead.RECORDS_MAX):
        if is_ahead:
            yield from _of_many(reading, list(some))
        else:
            for one in some:
                yield from _of_log_alone(reading, one)


def _of_many(reading: _Reading, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """Read the rows of small ranges, with several requests at once."""
    client, layout, options, _ = reading

    def ask(wanted: Range, size: int) -> Iterator[ahead.Piece]:
        return _by_batch(client, wanted, wanted.start, layout.needs, options, max_bytes=size)

    with closing(ahead.answers(ranges, ask, options.fetch.bytes_max)) as answers:
        for answer in answers:
            yield from _of_log_alone(reading, answer.wanted, answer)


def _of_log_alone(
    reading: _Reading, wanted: Range, first: ahead.Answer | None = None
) -> Iterator[pa.RecordBatch]:
    while wanted.start < wanted.end:
        stop = yield from _of_log(reading.client, wanted, reading.layout, reading.options, first)
        first = None
        if stop.position < stop.kept:
            reading.losses.add(wanted, stop)
        wanted = wanted._replace(start=stop.kept)


def _of_both(
    reading: _Reading, shelf: "Archive", wanted: Range, part: "Part | None"
) -> Iterator[pa.RecordBatch]:
    """Read a range from archive and log; records missing in one are looked up in the other.

    Since planning, the log may have lost records to retention, and files may have been joined. Then
    the archive is read again: it has the records that left the log, if retention waits for it.
    """
    client, layout, options, losses = reading
    place = Place(wanted.stream, wanted.partition)
    position, files_gone = wanted.start, 0
    while position < wanted.end:
        step = next_step(position, wanted.end, None if part is None else part.held)
        rest = wanted._replace(start=position, end=step.end)
        if step.origin is Origin.NOWHERE:
            losses.add(rest, _Stop(position, step.end))
            position = step.end
        elif step.origin is Origin.ARCHIVE:
            assert part is not None
            try:
                for records, after in shelf.rows(part, rest, layout.needs):
                    yield layout.rows(records, place)
                    position = after
                position = step.end
            except FileGoneError:
                files_gone += 1
                if files_gone > FILES_GONE_MAX:
                    raise
                part = shelf.newest_part(wanted, _known_now(client, wanted, options))
        else:
            stop = yield from _of_log(client, rest, layout, options)
            position = stop.position
            if position < stop.kept:
                newer = shelf.newest_part(wanted, _known_now(client, wanted, options))
                if newer is not None and newer.held.begin <= position < newer.held.end:
                    part = newer
                    continue
                losses.add(rest, stop)
                position = stop.kept


def _of_log(
    client: SyncClient,
    wanted: Range,
    layout: Layout,
    options: SourceOptions,
    first: ahead.Answer | None = None,
) -> Generator[pa.RecordBatch, None, _Stop]:
    """Read the rows of a range in the log; return the end of the read.

    `first` is the result of the first call, if that was already made.
    """
    place = Place(wanted.stream, wanted.partition)
    position = wanted.start
    if first is not None:
        pieces = _with_rest(client, first, layout.needs, options)
    elif _is_raw(client, options):
        pieces = _by_batch(client, wanted, position, layout.needs, options)
    else:
        pieces = by_message(client, wanted, position, layout.needs, options)
    try:
        for records, after in pieces:
            yield layout.rows(records, place)
            position = after
        if position >= wanted.end:
            # The usual case; checking a thousand small ranges would cost a thousand more calls.
            return _Stop(position, position)
        known = cluster.known_of(client, wanted, options)
    except OutOfRangeError:
        known = cluster.known_of(client, wanted, options)
        # The removed offsets, or the whole range if the log ends before it.
        kept = known.earliest if position < known.earliest else wanted.end
        return _Stop(position, min(kept, wanted.end))
    except (NotFoundError, FailedPreconditionError, TruncatedError) as error:
        now = _known_now(client, wanted, options)
        if now is None or now.stream_id != wanted.stream_id:
            what = "was deleted" if now is None else f"is another one now, of id {now.stream_id}"
            return _Stop(position, wanted.end, f"the stream of id {wanted.stream_id} {what}")
        if wanted.unclean_epoch in (None, now.unclean_epoch):
            cluster.check_not_paused(client, PartitionId(wanted.stream, wanted.partition), error)
            raise
        what = f"they were to be read in history {wanted.unclean_epoch}, and {now.unclean_epoch} is"
        what += " current: an unclean election came meanwhile"
        if not options.fails_on_loss and options.archive is None:
            _log.warning(
                "offsets %d to %d of %s/%d are read in another history (failOnDataLoss=false): %s",
                *(position, wanted.end - 1, wanted.stream, wanted.partition, what),
            )
            rest = wanted._replace(start=position, unclean_epoch=now.unclean_epoch)
            return (yield from _of_log(client, rest, layout, options))
        return _Stop(position, wanted.end, what, "Run it again to read the current history.")
    # Offsets that compaction removed at the end of the range are not missing.
    return _Stop(max(position, min(known.latest, wanted.end)), wanted.end)


def _is_raw(client: SyncClient, options: SourceOptions) -> bool:
    """Return whether to read stored batches."""
    return client.has_data and options.fetch.encoding != "subscribe"


def _with_rest(
    client: SyncClient, first: ahead.Answer, columns: Sequence[str], options: SourceOptions
) -> Iterator[ahead.Piece]:
    """Read the result of the first call, then the rest of the range."""
    yield from first.pieces
    if first.error is not None:
        raise first.error
    position = first.pieces[-1][1] if first.pieces else first.wanted.start
    if position < first.wanted.end:
        yield from _by_batch(client, first.wanted, position, columns, options, prefetch=0)


def _by_batch(
    client: SyncClient,
    wanted: Range,
    position: int,
    columns: Sequence[str],
    options: SourceOptions,
    *,
    max_bytes: int = 0,
    prefetch: int = 1,
) -> Iterator[ahead.Piece]:
    """Read records as `by_message` does, as stored batches; with `max_bytes`, only one call."""
    batches = client.streams.get(wanted.stream).fetch_columns(
        wanted.partition,
        position,
        wanted.end,
        columns=columns,
        max_bytes=max_bytes,
        call_bytes=options.fetch.bytes_max,
        stream_id=wanted.stream_id,
        unclean_epoch=wanted.unclean_epoch,
        read_replica=options.fetch.read_replica,
        prefetch=0 if max_bytes else prefetch,
    )
    return ((batch.records, batch.next_offset) for batch in batches)


def _known_now(client: SyncClient, wanted: Range, options: SourceOptions) -> Known | None:
    """Fetch the bounds of the stream that has the name now, `None` if there is none."""
    try:
        return cluster.known_of(client, wanted, options)
    except NotFoundError:
        return None

"""Decide the end of the next micro-batch, within bounds and limits."""

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_liftbridge.plan.offsets import Offsets, PartitionId, StreamOffsets
from pyspark_liftbridge.plan.options import Limits
from pyspark_liftbridge.plan.places import Bounds, offsets_of
from pyspark_liftbridge.plan.ranges import backlog_of, limited


class GoneError(RuntimeError):
    """A stream of the query was deleted or recreated, and `failOnDataLoss` is set."""


class Ends(NamedTuple):
    """Current ends of the logs.

    Attributes:
        latest: Next offsets after the committed records.
        mean_bytes: Mean bytes of a record, 0 if unknown.
    """

    latest: Offsets
    mean_bytes: float


def ends_of(bounds: Bounds, start: Offsets, *, fails_on_loss: bool) -> Ends:
    """Determine the current ends of the logs after `start`.

    A partition that is not in `start`, or whose stream was recreated, gets its earliest offset:
    this batch reads nothing from it, and the next batch begins there. So the two offsets of a batch
    alone determine what it reads.

    Raises:
        GoneError: A stream of `start` was deleted or recreated, and `fails_on_loss` is set.
    """
    for name, stream in start.streams.items():
        present = _id_of(bounds, name)
        if fails_on_loss and present != stream.stream_id:
            what = "is gone" if present is None else f"has id {present} now: it was recreated"
            raise GoneError(
                f"stream {name}, read with id {stream.stream_id}, {what}; set "
                "failOnDataLoss=false to continue"
            )
    chosen: dict[PartitionId, int] = {}
    for one, known in bounds.items():
        former = start.streams.get(one.stream)
        is_known = (
            former is not None
            and former.stream_id == known.stream_id
            and one.number in former.next_offsets
        )
        chosen[one] = known.latest if is_known else known.earliest
    kept = sum(known.latest - known.earliest for known in bounds.values())
    size = sum(known.size_bytes for known in bounds.values())
    latest = offsets_of(bounds, chosen).not_before(start)
    return Ends(latest, size / kept if kept else 0.0)


def target_of(bounds: Bounds, start: Offsets) -> Offsets:
    """Return the end of a query that reads all current records, also of new partitions."""
    return offsets_of(bounds, {one: known.latest for one, known in bounds.items()}).not_before(
        start
    )


def advanced(former: Bounds, found: Bounds) -> Bounds:
    """Return `found`, in which no end is before the former end of the same stream and history.

    A new leader may briefly know a lower high watermark than the previous leader reported.
    """
    return {
        one: known._replace(latest=max(known.latest, before.latest))
        if (before := former.get(one)) is not None
        and (before.stream_id, before.unclean_epoch) == (known.stream_id, known.unclean_epoch)
        else known
        for one, known in found.items()
    }


def _id_of(bounds: Bounds, stream: str) -> int | None:
    return next((known.stream_id for one, known in bounds.items() if one.stream == stream), None)


def next_end(
    start: Offsets, ends: Ends, limits: Limits, waited_ns: int, target: Offsets | None
) -> Offsets:
    """Decide where the next micro-batch ends; `start` if none is due.

    Args:
        start: Start of the micro-batch.
        ends: Current ends of the logs.
        limits: Bounds on its size, and on the wait for it.
        waited_ns: Time since the last batch.
        target: End of the query, if it reads only records that existed at its start; then it never
            waits.
    """
    latest = ends.latest if target is None else _not_behind(ends.latest, target)
    count = sum(backlog_of(start, latest).values())
    is_few = count < (limits.offsets_min or 0)
    if target is None and is_few and waited_ns < limits.delay_ns:
        return start
    return limited(start, latest, limits, ends.mean_bytes)


def _not_behind(latest: Offsets, target: Offsets) -> Offsets:
    """Cut `latest` at `target`, and leave out partitions that are newer than `target`."""
    streams: dict[str, StreamOffsets] = {}
    for name, aim in target.streams.items():
        stream = latest.streams.get(name)
        if stream is not None and stream.stream_id == aim.stream_id:
            streams[name] = stream._replace(
                next_offsets=_least(stream.next_offsets, aim.next_offsets)
            )
    return Offsets(streams)


def _least(one: Mapping[int, int], other: Mapping[int, int]) -> Mapping[int, int]:
    return {number: min(offset, other[number]) for number, offset in one.items() if number in other}

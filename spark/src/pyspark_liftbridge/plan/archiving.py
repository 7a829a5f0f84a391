"""Decide which records are archived next, from the bounds of the log and of the table."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pyspark_liftbridge.plan.histories import Read, divergence, has_diverged, read_of
from pyspark_liftbridge.plan.places import Known
from pyspark_liftbridge.plan.unified import Held

REMEDY: Final = "keep this archive, and start another one at another root"


class MissingError(RuntimeError):
    """Records to archive are missing, or the log lacks records that are already archived."""


class Part(NamedTuple):
    """Offsets of a partition that are archived next.

    Attributes:
        partition: Number of the partition.
        start: First offset.
        end: First offset not archived; more than `start`.
        begins_at: Log start offset, if the partition has no archived records.
        lost_from: Offset from which records up to `start` are lost; `None` for none.
        read: History in which the partition is read, `None` if the broker does not report it.
    """

    partition: int
    start: int
    end: int
    begins_at: int
    lost_from: int | None
    read: Read | None = None


def check_history(
    stream: str, partition: int, read: Read | None, known: Known, remedy: str
) -> None:
    """Check that a log still has its archived records, if the history was recorded.

    Raises:
        MissingError: The log may have other records at these offsets; the text ends with the
            remedy.
    """
    if read is not None and has_diverged(read, known):  # guard Archive.history
        raise MissingError(f"{divergence(stream, partition, read, known)}; {remedy}")


def check_histories(
    stream: str, bounds: Mapping[int, Known], archived: Mapping[int, Held], *, fails_on_loss: bool
) -> None:
    """Check that the log of each partition still has its archived records.

    Args:
        stream: Name of the stream, for errors.
        bounds: Bounds of the log of each partition.
        archived: Archived offsets of each partition.
        fails_on_loss: Whether it is also an error if the log no longer has any archived record, so
            that neither continuity nor divergence can be proven.

    Raises:
        MissingError: A log may have other records at these offsets.
    """
    for number, held in archived.items():
        known, remedy = bounds[number], REMEDY
        if held.end <= known.earliest:
            if not fails_on_loss:
                continue
            remedy = f"set --allow-loss to continue behind them, or {REMEDY}"
        check_history(stream, number, held.read, known, remedy)


def parts_of(
    stream: str, bounds: Mapping[int, Known], archived: Mapping[int, int], *, fails_on_loss: bool
) -> list[Part]:
    """List committed offsets that are not archived yet, by partition; omit complete partitions.

    Args:
        stream: Name of the stream, for errors.
        bounds: Bounds of the log of each partition.
        archived: End of each partition in the table; absent if nothing is archived.
        fails_on_loss: Whether missing records are an error.

    Raises:
        MissingError: Records are missing, or more is archived than the log holds.
    """
    parts: list[Part] = []
    for number, known in sorted(bounds.items()):
        end = archived.get(number)
        if end is not None and end > known.latest:
            raise MissingError(
                f"{stream}/{number}: offsets up to {end - 1} are archived, but the log ends at "
                f"{known.latest}: an unclean election removed archived records; {REMEDY}"
            )
        start, lost_from = known.earliest if end is None else end, None
        if start < known.earliest:
            if fails_on_loss:
                raise MissingError(
                    f"{stream}/{number}: offsets {start} to {known.earliest - 1} are gone: "
                    "retention removed them before they were archived. Set --allow-loss to record "
                    "the gap and continue"
                )
            start, lost_from = known.earliest, start
        if start < known.latest:
            read = read_of(known, known.latest)
            parts.append(Part(number, start, known.latest, known.earliest, lost_from, read))
    return parts

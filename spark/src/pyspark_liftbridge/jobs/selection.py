"""Selection of an archive's records, by offsets and times."""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_liftbridge.archive.delta_log.fields import WHOLE_MAX
from pyspark_liftbridge.archive.records import TIME_MAX, TIME_MIN, Wanted
from pyspark_liftbridge.jobs.comparing import Numbers
from pyspark_liftbridge.plan.options import OptionError
from pyspark_liftbridge.units import MICROSECOND_NS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Selection(NamedTuple):
    """Records to replay; ends are exclusive.

    Attributes:
        start: First offset, of each partition.
        end: First offset not selected.
        start_ns: First time, in nanoseconds since 1970.
        end_ns: First time not selected.
    """

    start: int = 0
    end: int = WHOLE_MAX
    start_ns: int = TIME_MIN
    end_ns: int = TIME_MAX

    def of(self, partition: int, start: int, end: int) -> Wanted:
        """Cut the selection to a range of a partition."""
        first, last = max(start, self.start), min(end, self.end)
        return Wanted(partition, first, max(first, last), self.start_ns, self.end_ns)

    def has(self, batch: pa.RecordBatch) -> Numbers:
        """Return the selected offsets of a batch."""
        offsets = batch.column("offset").to_numpy()
        times = batch.column("timestamp_ns").to_numpy()
        chosen: Numbers = offsets[
            (self.start <= offsets)
            & (offsets < self.end)
            & (self.start_ns <= times)
            & (times < self.end_ns)
        ]
        return chosen


def selection_of(offsets: str, times: str) -> Selection:
    """Parse two ranges to a selection; each is open where a side of its colon is empty.

    Raises:
        OptionError: A text is not a range.
    """
    first, colon, last = offsets.partition(":")
    if not (colon and _is_offset(first) and _is_offset(last)):
        raise OptionError(f"--offsets {offsets}: must be A:B, each a whole number or empty")
    given = {"start": first, "end": last}
    chosen = {name: int(text) for name, text in given.items() if text}
    chosen |= {name: at for name, at in _times(times).items() if at is not None}
    selection = Selection(**chosen)
    if selection.start >= selection.end or selection.start_ns >= selection.end_ns:
        raise OptionError(f"--offsets {offsets} --time {times}: a range must end after its start")
    return selection


def _is_offset(text: str) -> bool:
    return not text or (text.isascii() and text.isdecimal() and len(text) < 19)  # below 2^63


def _times(text: str) -> dict[str, int | None]:
    """Parse both ends to nanoseconds; times also have colons, so find the separating colon."""
    times = []
    for at in (at for at, one in enumerate(text) if one == ":"):
        try:
            times.append({"start_ns": _time(text[:at]), "end_ns": _time(text[at + 1 :])})
        except ValueError:
            continue
    if len(times) != 1:
        raise OptionError(f"--time {text}: must be FROM:TO, each as 2026-01-31T12:00:00Z or empty")
    return times[0]


def _time(text: str) -> int | None:
    """Parse a time to nanoseconds since 1970, in UTC if it has no zone; `None` for no text."""
    if not text:
        return None
    time = datetime.fromisoformat(text)
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (time - _EPOCH) // _MICROSECOND * MICROSECOND_NS

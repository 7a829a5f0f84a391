"""Decide whether offsets may be committed, based only on the end of their partition in the table.

The table keeps the end of each partition as the version of an application,
`liftbridge/<stream id>/<partition>`. A claim to `[a, b)` is valid only if that end is `a`. The
decision is made on a snapshot and written under exactly the next number, so no other entry can come
between.

A rewrite replaces files and changes no such end. It is valid only if all files that it removes are
still part of the table. So a rewrite never blocks a claim, and of two rewrites of one file, the
second is repeated.
"""

from collections.abc import Container, Iterable
from enum import Enum
from typing import NamedTuple

from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import ClaimError
from pyspark_liftbridge.plan.histories import Read


class Written(NamedTuple):
    """Files that a task has written.

    Attributes:
        span: Offsets of the task.
        adds: Files with all records of the span, in order; empty if it has no record.
    """

    span: delta.Span
    adds: tuple[delta.Add, ...]


class Claim(NamedTuple):
    """Offsets and files of one partition to commit.

    Attributes:
        pieces: Results of tasks in order; each begins at the end of the previous piece.
        begins_at: Log start offset, for a partition without archived records.
        lost_from: Offset from which records up to the first piece were lost before they could be
            archived, `None` for none lost. Valid only if the partition ends exactly there.
        read: History in which the partition was read, `None` if the broker did not report it.
    """

    pieces: tuple[Written, ...]
    begins_at: int = 0
    lost_from: int | None = None
    read: Read | None = None

    @property
    def span(self) -> delta.Span:
        """Return the offsets of all pieces."""
        first, last = self.pieces[0].span, self.pieces[-1].span
        return delta.Span(first.partition, first.start, last.end)


class Rewrite(NamedTuple):
    """Files of a partition that replace others.

    Attributes:
        span: Offsets that were examined; all files lie within.
        removes: Files to remove, in the order of offsets.
        adds: Files to add, in the order of offsets.
        is_by_key: Whether records with a later record of their key were left out. Otherwise the
            added files hold exactly the records of the removed files.
    """

    span: delta.Span
    removes: tuple[delta.Add, ...]
    adds: tuple[delta.Add, ...]
    is_by_key: bool = False


class Verdict(Enum):
    """Outcome of a claim or a rewrite."""

    COMMITTED = "committed"
    DONE = "done"
    """All of it was committed before, by this or another writer."""

    PLAN_AGAIN = "plan again"
    """The claim does not begin at the end of the partition, or a file to remove is gone."""


def app_id(stream_id: int, partition: int) -> str:
    """Return the application whose version is the end of a partition in the table."""
    return f"liftbridge/{stream_id}/{partition}"


def partition_of(app: str) -> int | None:
    """Return the partition of an application of this package, `None` for any other."""
    parts = app.split("/")
    is_ours = len(parts) == 3 and all(part.isdecimal() for part in parts[1:])
    if not is_ours or app != app_id(int(parts[1]), int(parts[2])):
        return None
    return int(parts[2])


def begin_id(stream_id: int, partition: int) -> str:
    """Return the application whose version is the beginning of a partition, unless it is 0.

    Entries have it as well, but this saves reading all of them.
    """
    return f"{app_id(stream_id, partition)}/begin"


def gap_id(stream_id: int, gap: delta.Span) -> str:
    """Return the application whose version is the end of lost offsets."""
    return f"{app_id(stream_id, gap.partition)}/gap/{gap.start}"


def history_id(stream_id: int, partition: int, read: Read) -> str:
    """Return the application whose version is the offset up to which a history was archived.

    The leader epoch is that of the last record before that offset. With it, a later check decides
    whether the log still has all records below.
    """
    return f"{app_id(stream_id, partition)}/history/{read.unclean_epoch}/{read.leader_epoch}"


def by_key_id(stream_id: int, partition: int) -> str:
    """Return the application whose version is the end of a partition's compaction by key.

    Below that offset, a compaction may have removed an absent record.
    """
    return f"{app_id(stream_id, partition)}/by-key"


def judge(claim: Claim, committed: int | None) -> Verdict:
    """Judge a claim, based on a snapshot.

    Args:
        claim: Claim, checked by `check`.
        committed: End of the partition in that snapshot, `None` without archived records.

    Returns:
        `COMMITTED` if the claim may be written as the next entry.
    """
    _, start, end = claim.span
    if committed is not None and end <= committed:  # guard Archive.done
        return Verdict.DONE
    is_next = start == _next_of(claim, committed)  # guard Archive.start
    return Verdict.COMMITTED if is_next else Verdict.PLAN_AGAIN


def _next_of(claim: Claim, committed: int | None) -> int:
    """Return the offset that must be archived next."""
    if committed is None:
        return claim.begins_at  # guard Archive.begin
    if claim.lost_from == committed:  # guard Archive.lost
        return max(committed, claim.span.start)
    return committed


def gap_of(claim: Claim, committed: int | None) -> delta.Span | None:
    """Return the offsets recorded as lost when a claim is committed; `None` for none."""
    partition, start, _ = claim.span
    if committed is None or committed >= start:
        return None
    return delta.Span(partition, committed, start)


def beginning_of(claim: Claim, committed: int | None) -> delta.Span | None:
    """Return the beginning of a partition if a claim is its first; `None` for 0."""
    partition, start, _ = claim.span
    if committed is not None or start == 0:
        return None
    return delta.Span(partition, start, start)


def judge_rewrite(rewrite: Rewrite, live: Container[str]) -> Verdict:
    """Judge a rewrite, based on a snapshot.

    It suffices that the removed files are still live, also for a rewrite by key. A compaction that
    removes an old tombstone as the last record of a key removes all records of the key in the same
    entry. So no such record can be in a file that another rewrite adds at the same time.

    Args:
        rewrite: Rewrite, checked by `check_rewrite`.
        live: Paths of the files in that snapshot.

    Returns:
        `COMMITTED` if the rewrite may be written as the next entry.
    """
    is_there = all(remove.path in live for remove in rewrite.removes)  # guard Archive.rewrite
    return Verdict.COMMITTED if is_there else Verdict.PLAN_AGAIN


def check_rewrite(rewrite: Rewrite) -> None:
    """Check that a rewrite is consistent, and loses no record that it must keep.

    Raises:
        ClaimError: The rewrite is not consistent.
    """
    partition = rewrite.span.partition
    if not rewrite.removes:
        raise ClaimError(f"partition {partition}: a rewrite must take the place of some file")
    _check_order("read", rewrite.removes, rewrite.span)
    _check_order("written", rewrite.adds, rewrite.span)
    gone = _sum_of(rewrite.removes)
    kept = _sum_of(rewrite.adds)
    if kept.records > gone.records if rewrite.is_by_key else kept != gone:
        raise ClaimError(
            f"partition {partition}: added files hold {kept.text()}, removed files "
            f"{gone.text()}; a rewrite must hold the same records"
        )


def _origin_of(add: delta.Add) -> delta.Origin:
    if add.origin is None or add.stats is None:
        raise ClaimError(f"{add.path}: without range or statistics; only files of ours are joined")
    return add.origin


def _sum_of(adds: Iterable[delta.Add]) -> Digest:
    total = Digest()
    for add in adds:
        total = total.joined(_origin_of(add).digest)
    return total


def _check_order(done: str, adds: Iterable[delta.Add], span: delta.Span) -> None:
    """Check that files are of one partition, do not overlap, and stay within a span."""
    at = span.start
    for add in adds:
        one = _origin_of(add)
        if one.partition != span.partition or one.start < at or one.end > span.end:
            raise ClaimError(
                f"{add.path}: was {done} for {one.partition}/{one.start} to {one.end}, it must lie "
                f"within {span.partition}/{at} to {span.end}; hand files over in order"
            )
        at = one.end


def check(claim: Claim) -> None:
    """Check that a claim is consistent: results of tasks are not trusted.

    Raises:
        ClaimError: Pieces are not adjacent, or files do not fit their piece.
    """
    if not claim.pieces:
        raise ClaimError("a claim has no piece; claim at least one offset, or nothing")
    partition, at, _ = claim.span
    for piece in claim.pieces:
        span = piece.span
        is_next = (span.partition, span.start) == (partition, at)  # guard Archive.piece
        if not is_next or span.end <= span.start:
            raise ClaimError(
                f"partition {span.partition}: {span.start} to {span.end} does not continue at "
                f"{at} of partition {partition}; hand pieces over in order, without any missing"
            )
        _check_files(piece)
        at = span.end


def _check_files(piece: Written) -> None:
    at = piece.span.start
    for add in piece.adds:
        if add.origin is None or add.stats is None:
            raise ClaimError(f"{add.path}: without range or statistics; write it by `write_files`")
        origin = add.origin
        if origin.partition != piece.span.partition or origin.start != at:  # guard Archive.file
            raise ClaimError(
                f"{add.path}: holds {origin.partition}/{origin.start} to {origin.end}, but "
                f"{piece.span.partition}/{at} comes next; hand files over in order"
            )
        at = origin.end
    if piece.adds and at != piece.span.end:  # guard Archive.files_end
        raise ClaimError(
            f"partition {piece.span.partition}: files end at {at}, the piece at {piece.span.end}"
        )

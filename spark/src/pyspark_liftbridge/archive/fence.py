"""Decide whether offsets may be committed, by the end of their partition in the table alone.

The table keeps the end of each partition as the version of an application,
`liftbridge/<stream id>/<partition>`. A claim to `[a, b)` is valid only if that end is `a`. It is
decided on a snapshot and written under exactly the next number, so no other entry can come between.

A rewrite replaces files by others and changes no such end. It is valid only if all files that it
removes are still part of the table. So a rewrite never blocks a claim, and of two rewrites of one
file one is done again.
"""

from collections.abc import Container, Iterable
from enum import Enum
from typing import NamedTuple

from pyspark_liftbridge.archive import delta
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import ClaimError
from pyspark_liftbridge.plan.histories import Read


class Written(NamedTuple):
    """What a task has written.

    Attributes:
        span: Offsets it was to write.
        adds: Files of all records in it, in order; none when it holds no record.
    """

    span: delta.Span
    adds: tuple[delta.Add, ...]


class Claim(NamedTuple):
    """What is to be committed of one partition.

    Attributes:
        pieces: What tasks have written, in order; each begins where the one before ends.
        begins_at: Where the log began, for a partition of which nothing is archived yet.
        lost_from: Offset from which up to the first piece records were lost before they could be
            archived, `None` for none lost. It holds only where the partition ends exactly there.
        read: Where it was read, `None` if the broker did not tell.
    """

    pieces: tuple[Written, ...]
    begins_at: int = 0
    lost_from: int | None = None
    read: Read | None = None

    @property
    def span(self) -> delta.Span:
        """Offsets of all pieces."""
        first, last = self.pieces[0].span, self.pieces[-1].span
        return delta.Span(first.partition, first.start, last.end)


class Rewrite(NamedTuple):
    """Files of a partition that are to replace others.

    Attributes:
        span: Offsets that were looked at; all files lie within.
        removes: Files that go, in the order of offsets.
        adds: Files that come, likewise.
        is_by_key: Whether records were left out that have a later one of their key. Else the files
            that come hold exactly the records of those that go.
    """

    span: delta.Span
    removes: tuple[delta.Add, ...]
    adds: tuple[delta.Add, ...]
    is_by_key: bool = False


class Verdict(Enum):
    """Outcome of a claim or a rewrite."""

    COMMITTED = "committed"
    DONE = "done"
    """All of it was committed before, by whomever."""

    PLAN_AGAIN = "plan again"
    """The partition ends elsewhere than where the claim begins; or a file that the rewrite removes
    is no longer part of the table."""


def app_id(stream_id: int, partition: int) -> str:
    """Application by whose version the table keeps the end of a partition."""
    return f"liftbridge/{stream_id}/{partition}"


def partition_of(app: str) -> int | None:
    """Partition of an application of ours, `None` of any other."""
    found = app.split("/")
    is_ours = len(found) == 3 and all(part.isdecimal() for part in found[1:])
    if not is_ours or app != app_id(int(found[1]), int(found[2])):
        return None
    return int(found[2])


def begin_id(stream_id: int, partition: int) -> str:
    """Application by whose version the table keeps where a partition begins that does not at 0.

    Entries say so as well, but nobody wants to read all of them to learn it.
    """
    return f"{app_id(stream_id, partition)}/begin"


def gap_id(stream_id: int, gap: delta.Span) -> str:
    """Application by whose version the table keeps the end of offsets that were lost."""
    return f"{app_id(stream_id, gap.partition)}/gap/{gap.start}"


def history_id(stream_id: int, partition: int, read: Read) -> str:
    """Application by whose version the table keeps how far a history was archived.

    The leader epoch is that of the last record before it, by which a later log shows whether it
    still has all of that.
    """
    return f"{app_id(stream_id, partition)}/history/{read.unclean_epoch}/{read.leader_epoch}"


def by_key_id(stream_id: int, partition: int) -> str:
    """Application by whose version the table keeps how far a partition was compacted by key.

    Below that offset a record that is not there may have been removed by a compaction.
    """
    return f"{app_id(stream_id, partition)}/by-key"


def judge(claim: Claim, committed: int | None) -> Verdict:
    """Verdict on a claim, based on a snapshot.

    Args:
        claim: Sound by `check`.
        committed: End of its partition in that snapshot, `None` if nothing is archived of it.

    Returns:
        `COMMITTED` when it may be written as the next entry.
    """
    _, start, end = claim.span
    if committed is not None and end <= committed:  # guard Archive.done
        return Verdict.DONE
    is_next = start == _next_of(claim, committed)  # guard Archive.start
    return Verdict.COMMITTED if is_next else Verdict.PLAN_AGAIN


def _next_of(claim: Claim, committed: int | None) -> int:
    """Offset that must be archived next."""
    if committed is None:
        return claim.begins_at  # guard Archive.begin
    if claim.lost_from == committed:  # guard Archive.lost
        return max(committed, claim.span.start)
    return committed


def gap_of(claim: Claim, committed: int | None) -> delta.Span | None:
    """What is lost for good when a claim is committed; `None` if there is nothing."""
    partition, start, _ = claim.span
    if committed is None or committed >= start:
        return None
    return delta.Span(partition, committed, start)


def beginning_of(claim: Claim, committed: int | None) -> delta.Span | None:
    """Where a partition begins when a claim is committed as its first; `None` for at 0."""
    partition, start, _ = claim.span
    if committed is not None or start == 0:
        return None
    return delta.Span(partition, start, start)


def judge_rewrite(rewrite: Rewrite, live: Container[str]) -> Verdict:
    """Verdict on a rewrite, based on a snapshot.

    That the files which go are still there is enough by key as well. Who removes the last record of
    a key, as an old tombstone, removes all records of the key in the same entry; so none of them
    can be in a file that another one puts in place at the same time.

    Args:
        rewrite: Sound by `check_rewrite`.
        live: Paths of the files in that snapshot.

    Returns:
        `COMMITTED` when it may be written as the next entry.
    """
    is_there = all(one.path in live for one in rewrite.removes)  # guard Archive.rewrite
    return Verdict.COMMITTED if is_there else Verdict.PLAN_AGAIN


def check_rewrite(rewrite: Rewrite) -> None:
    """Check that a rewrite is consistent, and loses nothing that it must keep.

    Raises:
        ClaimError: It does not.
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
            f"partition {partition}: files that come hold {kept.text()}, those that go "
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
    """Check that files are of one partition, and neither overlap nor leave a span."""
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
    """Check that a claim is consistent: what tasks gave back may come from anywhere.

    Raises:
        ClaimError: Pieces do not adjoin, or files are not of their piece.
    """
    if not claim.pieces:
        raise ClaimError("a claim has no piece; claim at least one offset, or nothing")
    partition, at, _ = claim.span
    for piece in claim.pieces:
        span = piece.span
        is_next = (span.partition, span.start) == (partition, at)  # guard Archive.piece
        if not is_next or span.end <= span.start:
            raise ClaimError(
                f"partition {span.partition}: {span.start} to {span.end} does not go on from "
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

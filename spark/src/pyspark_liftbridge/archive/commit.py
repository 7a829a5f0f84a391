"""Commit archived or rewritten files exactly once, despite other writers and lost answers.

A round checks proposals against a snapshot and writes the entry after it. If the write fails, the
entry of that number is read. It is

- our own: an answer was lost, or the store retried; it is committed;
- another writer's: this round lost. The next round judges on the snapshot after that entry;
- absent: the next round writes the same entry to the same number. If a delayed put of the earlier
    round arrives first, the result is the same.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from pyspark_liftbridge.archive import fence
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.delta_log.log import Snapshot
from pyspark_liftbridge.archive.errors import (
    ClaimError,
    ConflictError,
    ContentionError,
    OtherStreamError,
    StoreError,
    UnknownOutcomeError,
)
from pyspark_liftbridge.archive.fence import Claim, Rewrite, Verdict
from pyspark_liftbridge.archive.stores.store import Store

ROUNDS_MAX: Final = 100
"""Maximum number of rounds of a commit; another writer won each round but the last."""

FAILURES_MAX: Final = 5
"""Maximum number of failures of the store during one commit; the store has retried before each."""

FILE_AGE_MS_MAX: Final = 12 * 3_600_000
"""Maximum age of a file to commit: half of the age at which files in no entry are removed."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Claims that one entry is to commit.

    Attributes:
        run_id: Random; unique to this proposal.
        stream_id: Id of the stream of the table.
        claims: One for each partition.
        cursors: Positions of consumers, recorded with the entry.
        now_ms: Current time in milliseconds since 1970.
    """

    run_id: str
    stream_id: int
    claims: Sequence[Claim]
    cursors: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    now_ms: int


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """Rewrites that one entry is to commit.

    Attributes:
        run_id: Random; unique to this compaction.
        stream_id: Id of the stream of the table.
        rewrites: Rewrites, of which no two remove the same file; by key, there is one for each
            partition.
        now_ms: Current time in milliseconds since 1970.
    """

    run_id: str
    stream_id: int
    rewrites: Sequence[Rewrite]
    now_ms: int


class Outcome(NamedTuple):
    """Outcome of a proposal.

    Attributes:
        snapshot: Snapshot that the verdicts are based on; the next plan uses it.
        verdicts: Verdicts of claims by partition, or of rewrites by index. Claims and rewrites to
            plan again were not written.
        version: Number of the entry, `None` if there was nothing to write.
    """

    snapshot: Snapshot
    verdicts: Mapping[int, Verdict]
    version: int | None


def commit(store: Store, snapshot: Snapshot, proposal: Proposal) -> Outcome:
    """Commit the valid claims, each exactly once.

    Args:
        store: The folder of the table.
        snapshot: A recent snapshot of the table.
        proposal: The claims.

    Raises:
        ClaimError: A claim is inconsistent, or its files are too old.
        OtherStreamError: The table is of another stream.
        ContentionError: Other writers won each of `ROUNDS_MAX` rounds.
        UnknownOutcomeError: The store failed more than `FAILURES_MAX` times; the log may have the
            entry, or get it later. Plan again from a new snapshot.
        DamagedError, UnsupportedTableError: The log is damaged.
    """
    _check(proposal)

    def draft(snapshot: Snapshot) -> _Draft:
        ends = _ends(snapshot, proposal)
        verdicts = {claim.span.partition: _judge(claim, ends) for claim in proposal.claims}
        return _Draft(verdicts, lambda: _entry(proposal, verdicts, ends))

    return _commit(store, snapshot, proposal.run_id, draft)


def commit_rewrites(store: Store, snapshot: Snapshot, compaction: Compaction) -> Outcome:
    """Commit the valid rewrites, in one entry; ends of partitions do not change.

    Args:
        store: The folder of the table.
        snapshot: A recent snapshot of the table.
        compaction: The rewrites.

    Raises:
        ClaimError: A rewrite is inconsistent, or its files are too old.
        OtherStreamError, ContentionError, UnknownOutcomeError: As for `commit`.
        DamagedError, UnsupportedTableError: The log is damaged.
    """
    _check_rewrites(compaction)

    def draft(snapshot: Snapshot) -> _Draft:
        _check_stream(snapshot, compaction.stream_id)
        verdicts = {
            at: fence.judge_rewrite(one, snapshot.files)
            for at, one in enumerate(compaction.rewrites)
        }
        return _Draft(verdicts, lambda: _compaction_entry(snapshot, compaction, verdicts))

    return _commit(store, snapshot, compaction.run_id, draft)


class _Draft(NamedTuple):
    """The part of a proposal that can be committed on a snapshot.

    Attributes:
        verdicts: Verdicts, as in `Outcome`.
        entry: Builds the entry of the valid part.
    """

    verdicts: Mapping[int, Verdict]
    entry: Callable[[], Sequence[delta.Action]]


def _commit(
    store: Store, snapshot: Snapshot, run_id: str, draft: Callable[[Snapshot], _Draft]
) -> Outcome:
    failures = _Failures()
    for _ in range(ROUNDS_MAX):
        verdicts, entry = draft(snapshot)
        if Verdict.COMMITTED not in verdicts.values():
            return Outcome(snapshot, verdicts, None)
        version = snapshot.version + 1
        try:
            written = log.append(store, snapshot, entry())
            return Outcome(written, verdicts, version)
        except ConflictError:
            pass
        except StoreError as error:
            failures.count(error)
        found = _read(store, version, failures)
        if found is None:
            continue
        snapshot = snapshot.after([found])
        if _run_id(found) == run_id:  # guard Archive.run
            return Outcome(snapshot, verdicts, version)
    raise ContentionError(
        f"run {run_id}: other writers won all {ROUNDS_MAX} rounds, up to entry "
        f"{snapshot.version}; let fewer of them write to one table"
    )


class _Failures:
    """Failures of the store during one commit."""

    def __init__(self) -> None:
        self._count = 0

    def count(self, error: StoreError) -> None:
        self._count += 1
        if self._count > FAILURES_MAX:
            raise UnknownOutcomeError(
                f"the store failed {self._count} times during a commit, most recently: "
                f"{error}; the entry may exist: read the log and plan from it"
            ) from error


def _read(store: Store, version: int, failures: _Failures) -> Sequence[delta.Action] | None:
    """Read the entry of a number, `None` if there is none."""
    for _ in range(FAILURES_MAX + 1):
        try:
            return log.read_entry(store, version)
        except StoreError as error:
            failures.count(error)
    raise AssertionError("failures are counted")  # unreachable: the count raises before


def _check(proposal: Proposal) -> None:
    for claim in proposal.claims:
        fence.check(claim)
        _check_ages((add for piece in claim.pieces for add in piece.adds), proposal.now_ms)
    partitions = [one.span.partition for one in proposal.claims]
    if len(set(partitions)) < len(partitions):  # guard Archive.one_claim
        raise ClaimError(f"claims to partitions {partitions}; there must be one for each")


def _check_rewrites(compaction: Compaction) -> None:
    gone: set[str] = set()
    by_key: set[int] = set()
    for rewrite in compaction.rewrites:
        fence.check_rewrite(rewrite)
        _check_ages(rewrite.adds, compaction.now_ms)
        paths = {add.path for add in rewrite.removes}
        is_second = rewrite.is_by_key and rewrite.span.partition in by_key
        if is_second or not gone.isdisjoint(paths):
            raise ClaimError(
                f"partition {rewrite.span.partition}: two rewrites of the same files; "
                "make one of them"
            )
        gone |= paths
        by_key |= {rewrite.span.partition} if rewrite.is_by_key else set()


def _check_ages(adds: Iterable[delta.Add], now_ms: int) -> None:
    for add in adds:
        if add.modified_ms < now_ms - FILE_AGE_MS_MAX:  # guard Archive.file_age
            raise ClaimError(
                f"{add.path}: written more than {FILE_AGE_MS_MAX // 3_600_000} hours ago, it "
                "may be removed as one in no entry; write the records again"
            )


def _check_stream(snapshot: Snapshot, stream_id: int) -> None:
    metadata = snapshot.metadata
    if metadata is None or metadata.stream_id != stream_id:  # guard Archive.stream
        actual = "no stream" if metadata is None else f"stream id {metadata.stream_id}"
        raise OtherStreamError(
            f"the table is of {actual}, but the records are of stream id {stream_id}; "
            "open the table of that stream"
        )


def _ends(snapshot: Snapshot, proposal: Proposal) -> dict[int, int]:
    """Return the end of each claimed partition that has archived records."""
    _check_stream(snapshot, proposal.stream_id)
    partitions = [claim.span.partition for claim in proposal.claims]
    found_ends = {
        partition: _end(snapshot, proposal.stream_id, partition) for partition in partitions
    }
    return {one: end for one, end in found_ends.items() if end is not None}


def _end(snapshot: Snapshot, stream_id: int, partition: int) -> int | None:
    txn = snapshot.ends.get(fence.app_id(stream_id, partition))
    return None if txn is None else txn.version


def _judge(claim: Claim, ends: Mapping[int, int]) -> Verdict:
    return fence.judge(claim, ends.get(claim.span.partition))


def _entry(
    proposal: Proposal, verdicts: Mapping[int, Verdict], ends: Mapping[int, int]
) -> list[delta.Action]:
    """Build the entry of the valid claims."""
    held = [
        claim for claim in proposal.claims if verdicts[claim.span.partition] is Verdict.COMMITTED
    ]
    known = [(one, ends.get(one.span.partition)) for one in held]
    gaps = [gap for gap in (fence.gap_of(*one) for one in known) if gap is not None]
    begins = [begin for begin in (fence.beginning_of(*one) for one in known) if begin is not None]
    run = delta.Run(
        proposal.run_id,
        tuple(piece.span for one in held for piece in one.pieces),
        tuple(gaps),
        tuple(begins),
        proposal.cursors,
    )
    stream_id, now_ms = proposal.stream_id, proposal.now_ms
    return [
        delta.CommitInfo(proposal.now_ms, "ARCHIVE", delta.ENGINE, run),
        *(
            delta.Txn(fence.app_id(stream_id, one.span.partition), one.span.end, now_ms)
            for one in held
        ),
        *(delta.Txn(fence.begin_id(stream_id, one.partition), one.start, now_ms) for one in begins),
        *(delta.Txn(fence.gap_id(stream_id, one), one.end, now_ms) for one in gaps),
        *(
            delta.Txn(
                fence.history_id(stream_id, one.span.partition, one.read), one.span.end, now_ms
            )
            for one in held
            if one.read is not None
        ),
        *(add for one in held for piece in one.pieces for add in piece.adds),
    ]


def _compaction_entry(
    snapshot: Snapshot, compaction: Compaction, verdicts: Mapping[int, Verdict]
) -> list[delta.Action]:
    """Build the entry of the valid rewrites."""
    held = [one for at, one in enumerate(compaction.rewrites) if verdicts[at] is Verdict.COMMITTED]
    by_key = tuple(one.span for one in held if one.is_by_key)
    run = delta.Run(compaction.run_id, compacted=by_key)
    return [
        delta.CommitInfo(compaction.now_ms, "OPTIMIZE", delta.ENGINE, run),
        *(_by_key_txn(snapshot, compaction, span) for span in by_key),
        *(
            delta.Remove(add.path, compaction.now_ms, is_change=one.is_by_key, size=add.size)
            for one in held
            for add in one.removes
        ),
        *(replace(add, is_change=one.is_by_key) for one in held for add in one.adds),
    ]


def _by_key_txn(snapshot: Snapshot, compaction: Compaction, span: delta.Span) -> delta.Txn:
    """Record the end of the compaction by key of a partition; never lower than before."""
    name = fence.by_key_id(compaction.stream_id, span.partition)
    known = snapshot.ends.get(name)
    end = span.end if known is None else max(span.end, known.version)
    return delta.Txn(name, end, compaction.now_ms)


def _run_id(actions: Sequence[delta.Action]) -> str | None:
    """Return the run that wrote an entry, `None` for another writer's."""
    infos = (action for action in actions if isinstance(action, delta.CommitInfo))
    return next((info.run.run_id for info in infos if info.run is not None), None)

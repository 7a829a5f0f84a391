"""Runners that compact the stream that runners of `archive_runs` archive at the same time.

Every record has a key, which follows from its offset, and some are tombstones: old ones, so that a
compaction by key removes them as soon as it may.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final

from liftbridge_testkit.archive_runs import NOW_MS, STREAM, STREAM_ID, TRIES_MAX
from pyspark_liftbridge.archive import fence, files
from pyspark_liftbridge.archive.commit import Compaction, commit_rewrites
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import StoreError, UnknownOutcomeError
from pyspark_liftbridge.archive.fence import Rewrite
from pyspark_liftbridge.archive.stores.store import Below, Store

ROUNDS: Final = 4
"""Compactions of one runner."""

Runner = Callable[[Store, Random], None]
Plan = Callable[[Store, log.Snapshot, Random], list[Rewrite]]


def key_of(offset: int) -> int:
    """Return the key of a record."""
    return offset % 3


def is_tombstone(offset: int) -> bool:
    """Return whether a record says that its key is gone."""
    return offset % 5 == 0


def compact_small_files(*, rounds: int = ROUNDS) -> Runner:
    """Return a runner that joins any neighbouring files."""
    return _runner(_joined, rounds)


def compact_by_key(*, rounds: int = ROUNDS) -> Runner:
    """Return a runner that keeps the last record of each key."""
    return _runner(_last_of_keys, rounds)


def _runner(plan: Plan, rounds: int) -> Runner:
    def run(store: Store, random: Random) -> None:
        table = Below(store, f"{STREAM}/")
        done = 0
        for _ in range(TRIES_MAX):
            if done == rounds:
                return
            try:
                _compact(table, random, plan)
                done += 1
            except (StoreError, UnknownOutcomeError):
                continue
        raise AssertionError(f"not done in {TRIES_MAX} rounds")

    return run


def _compact(table: Store, random: Random, plan: Plan) -> None:
    snapshot = log.load(table)
    rewrites = plan(table, snapshot, random) if snapshot.metadata is not None else []
    if rewrites:
        commit_rewrites(
            table,
            snapshot,
            Compaction(
                run_id=f"{random.getrandbits(64):016x}",
                stream_id=STREAM_ID,
                rewrites=rewrites,
                now_ms=NOW_MS,
            ),
        )


def _joined(table: Store, snapshot: log.Snapshot, random: Random) -> list[Rewrite]:
    found = []
    for adds in _by_partition(snapshot):
        if len(adds) > 1:
            first = random.randrange(len(adds) - 1)
            some = tuple(adds[first : random.randint(first + 2, len(adds))])
            offsets = [offset for add in some for offset in _offsets(table, add)]
            found.append(Rewrite(_span(some), some, _written(table, some, offsets, random)))
    return found


def _last_of_keys(table: Store, snapshot: log.Snapshot, random: Random) -> list[Rewrite]:
    found = []
    for adds in _by_partition(snapshot):
        held = {add.path: _offsets(table, add) for add in adds}
        kept = kept_of(offset for offsets in held.values() for offset in offsets)
        removes = tuple(add for add in adds if not kept.issuperset(held[add.path]))
        comes: list[delta.Add] = []
        for add in removes:
            offsets = [one for one in held[add.path] if one in kept]
            comes += _written(table, (add,), offsets, random)
        if removes:
            found.append(Rewrite(_span(adds), removes, tuple(comes), is_by_key=True))
    return found


def kept_of(offsets: Iterable[int]) -> set[int]:
    """Return the records that a compaction by key keeps."""
    last = {key_of(offset): offset for offset in sorted(offsets)}
    return {one for one in last.values() if not is_tombstone(one)}


def _by_partition(snapshot: log.Snapshot) -> Iterator[list[delta.Add]]:
    found: dict[int, list[delta.Add]] = {}
    for add in snapshot.files.values():
        assert add.origin is not None, add.path
        found.setdefault(add.origin.partition, []).append(add)
    for _, adds in sorted(found.items()):
        yield sorted(adds, key=lambda one: one.origin.start if one.origin else 0)


def _offsets(table: Store, add: delta.Add) -> list[int]:
    data = table.read(add.path, bytes_max=1 << 20)
    assert data is not None, add.path
    offsets: list[int] = json.loads(data)
    return offsets


def _written(
    table: Store, gone: Sequence[delta.Add], offsets: Sequence[int], random: Random
) -> tuple[delta.Add, ...]:
    """Return a file as those of `archive_runs`, which answers for the range of those that go."""
    if not offsets:
        return ()
    span = _span(gone)
    path = f"{files.FOLDER}{span.partition}/c-{random.getrandbits(64):016x}"
    data = json.dumps(list(offsets)).encode()
    table.create(path, data)
    stats = delta.Stats(len(offsets), None, (offsets[0], offsets[-1]), None)
    origin = delta.Origin(*span, Digest(len(offsets)))
    return (delta.Add(path, len(data), NOW_MS, True, stats.text(), stats, origin),)  # noqa: FBT003 - as the log says it


def _span(adds: Sequence[delta.Add]) -> delta.Span:
    first, last = adds[0].origin, adds[-1].origin
    assert first is not None, adds[0].path
    assert last is not None, adds[-1].path
    return delta.Span(first.partition, first.start, last.end)


def held_after(table: Store, version: int) -> dict[int, tuple[list[int], int]]:
    """Return the offsets that the table held after an entry, and the end, by partition."""
    snapshot = log.Snapshot().after(log.read_entry(table, at) or () for at in range(version + 1))
    found = {}
    for app, txn in snapshot.ends.items():
        if app.count("/") == 2:
            partition = int(app.rpartition("/")[2])
            assert app == fence.app_id(STREAM_ID, partition), app
            found[partition] = (list[int](), txn.version)
    for adds in _by_partition(snapshot):
        for add in adds:
            assert add.origin is not None, add.path
            found[add.origin.partition][0].extend(_offsets(table, add))
    return found

"""Decide the next changes to publish of an archive, in the order of its log.

A step changes a published table from the files of one entry to those of a later entry. It spans
several entries if the table lags by many entries. It also does if an added file is no longer part
of the archive: such a file may be deleted, and its records are in the files that replaced it.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple
from urllib.parse import unquote

from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.errors import DamagedError
from pyspark_liftbridge.archive.stores.store import Store

FILES_MAX: Final = 1_000
"""Number of files at which a step ends, if possible; publishing a file opens it."""


class Step(NamedTuple):
    """One change of a published table.

    Attributes:
        version: Number of the entry whose files the table has afterwards.
        added: Paths of added files, as in the store.
        removed: Paths of removed files.
    """

    version: int
    added: tuple[str, ...]
    removed: tuple[str, ...]


def steps(
    store: Store, head: log.Snapshot, published: int, present: frozenset[str], *, entries_max: int
) -> Iterator[Step]:
    """Plan the steps from the published state to a snapshot of the archive, without empty steps.

    Args:
        store: The folder of the archive's table.
        head: Snapshot of the archive's log.
        published: Number of the entry that is published, -1 for none.
        present: Paths of the files that are published.
        entries_max: Number of entries at which a step ends, if possible.

    Raises:
        DamagedError: The archive is behind the published state.
        UnsupportedTableError, StoreError: As for `log.load`.
    """
    if published > head.version:
        raise DamagedError(
            f"entry {published} is published, but the archive ends at entry {head.version}: it was "
            "restored to an earlier state; publish it under another name"
        )
    if published == head.version:
        return iter(())
    live = frozenset(file.object_path for file in head.files.values())
    there = [at for at in log.versions_there(store) if published < at <= head.version]
    if there[:1] == [published + 1]:
        entries = ((at, log.read_entry(store, at) or ()) for at in there)
        return planned(entries, present, live, entries_max=entries_max)
    # Entries before a checkpoint were removed: only their result is left.
    return _between(head.version, present, live)


def planned(
    entries: Iterable[tuple[int, Sequence[delta.Action]]],
    present: frozenset[str],
    live: frozenset[str],
    *,
    entries_max: int,
) -> Iterator[Step]:
    """Plan the steps over entries.

    Args:
        entries: Numbers and actions of all unpublished entries, in order.
        present: Paths of the files that are published.
        live: Paths of the archive's files after at least the last entry.
        entries_max: Number of entries at which a step ends, if possible.
    """
    wanted = set(present)
    count, version = 0, -1
    for version, actions in entries:
        for action in actions:
            match action:
                case delta.Add():
                    wanted.add(action.object_path)
                case delta.Remove():
                    wanted.discard(unquote(action.path))
                case _:
                    pass
        count += 1
        fresh = wanted - present
        if (count >= entries_max or len(fresh) >= FILES_MAX) and fresh <= live:
            yield from _between(version, present, wanted)
            present, count = frozenset(wanted), 0
    yield from _between(version, present, wanted)


def _between(version: int, before: AbstractSet[str], after: AbstractSet[str]) -> Iterator[Step]:
    """Yield the step between two sets of files, unless they are equal."""
    if before != after:
        yield Step(version, tuple(sorted(after - before)), tuple(sorted(before - after)))

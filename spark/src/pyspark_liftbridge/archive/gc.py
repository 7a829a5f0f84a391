"""Remove files that are not part of a table.

These are files that killed writers left (data files that no entry names, and partial files in
folders), and files that a compaction has replaced.

A file may be written but not committed yet. So only old files are removed, the log is read *after*
the files are listed, and a commit refuses files of half that age. A reader that read the log
earlier may still read a removed file, so its age counts from its removal.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from pyspark_liftbridge.archive import files
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.stores.folder import LEFT_OVER
from pyspark_liftbridge.archive.stores.found import Found
from pyspark_liftbridge.archive.stores.store import Store
from pyspark_liftbridge.plan.options import OptionError

AGE_MS_MIN: Final = 24 * 3_600_000
"""Minimum age of a file to remove, and minimum time since it was part of the table."""

_HALF: Final = re.compile(rf".+{re.escape(LEFT_OVER)}[0-9a-f]{{16}}")


def orphans(store: Store, *, now_ms: int) -> Sequence[Found]:
    """List the files that may be removed.

    Args:
        store: The folder of a table.
        now_ms: Current time in milliseconds since 1970.

    Raises:
        OptionError: There is no log, so it is unknown which files belong to the table.
        DamagedError, UnsupportedTableError, StoreError: As for `log.load`.
    """
    before_ms = now_ms - AGE_MS_MIN
    old = [one for one in store.listing("") if one.modified_ms < before_ms]  # guard Archive.gc_age
    snapshot = log.load(store)
    if snapshot.version < 0:  # guard Archive.no_log
        raise OptionError("there is no archive here: check the name and the root")
    named = _named(store, snapshot, before_ms)
    return [one for one in old if _is_left_over(one.path, named)]


def remove_orphans(store: Store, *, now_ms: int) -> Sequence[Found]:
    """Remove the files that `orphans` lists.

    Args:
        store: The folder of a table.
        now_ms: Current time in milliseconds since 1970.

    Returns:
        The removed files.

    Raises:
        OptionError: As for `orphans`.
        DamagedError, UnsupportedTableError, StoreError: As for `orphans`; earlier removals stay,
            and another run continues.
    """
    found = orphans(store, now_ms=now_ms)
    for one in found:
        store.delete(one.path)
    return found


def _named(store: Store, snapshot: log.Snapshot, before_ms: int) -> set[str]:
    """List files that the table has, or that were removed at `before_ms`, later or unknown."""
    named: set[str] = set()
    removed: dict[str, int] = {}
    for version in log.versions_there(store):
        for action in log.read_entry(store, version) or ():
            match action:
                case delta.Add():
                    named.add(unquote(action.path))
                case delta.Remove():
                    path = unquote(action.path)
                    removed[path] = max(removed.get(path, 0), action.deleted_ms)
                case _:
                    pass
    for found in snapshot.removed.values():
        path = unquote(found.path)
        removed[path] = max(removed.get(path, 0), found.deleted_ms)
    live = {unquote(path) for path in snapshot.files}
    # 0: the time is not recorded.
    gone = {path for path, time_ms in removed.items() if 0 < time_ms < before_ms}
    return live | ((named | removed.keys()) - gone)


def _is_left_over(path: str, named: set[str]) -> bool:
    """Return whether a file is data in no entry, or a partial file of a writer that died.

    Files of other writers elsewhere are left to them.
    """
    is_data = path.startswith(files.FOLDER) and path not in named  # guard Archive.named
    return is_data or _HALF.fullmatch(path) is not None

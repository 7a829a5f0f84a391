"""Opens the store of a data directory: its identity, its journal, and the kind of last stop."""

from collections.abc import Callable

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.ports.files import Files, Token
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.storage.cleaning.compaction import SubmitCompaction
from liftbridge_broker.storage.directory import JOURNAL, DataDirectory, Identity
from liftbridge_broker.storage.journal import open_journal
from liftbridge_broker.storage.last_stop import LastStop
from liftbridge_broker.storage.store import LogStore, StoreOptions


def open_store(
    files: Files,
    fresh: Identity,
    options: StoreOptions,
    *,
    observer: Observer,
    new_token: Callable[[], Token],
    now: Instant,
    wall_ns: int,
    runner: SubmitCompaction | None = None,
) -> LogStore:
    """Read the state of a data directory; `LogStore.open` and `LogStore.begin` follow.

    Args:
        files: The data directory, locked.
        fresh: Identity for an empty directory.
        options: Settings.
        observer: Receives transitions.
        new_token: Returns tokens that are used nowhere else.
        now: Current time.
        wall_ns: Current Unix time in nanoseconds.
        runner: Compacts logs in another process; `None` compacts in this process, in steps.

    Raises:
        FilesError: The disk failed to read or write; the state of the directory is unknown.
    """
    directory = DataDirectory.open(files, fresh, options.known_names)
    journal, loaded = open_journal(files, JOURNAL, options.rewrite_bytes_min)
    if loaded.damaged_count or loaded.torn_bytes:
        reason = f"{loaded.damaged_count} damaged places, {loaded.torn_bytes} torn bytes"
        observer.transition("journal_repaired", {"path": JOURNAL, "reason": reason})
    store = LogStore(
        files,
        directory,
        journal,
        loaded,
        LastStop(directory, loaded),
        options,
        observer=observer,
        new_token=new_token,
        runner=runner,
        now=now,
    )
    store.start(wall_ns)
    return store

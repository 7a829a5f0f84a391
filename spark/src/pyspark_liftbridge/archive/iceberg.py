"""Publish an archive as an Iceberg table: the same files, in the order of the archive's log.

The archive is authoritative, and the table lags. The summary of each snapshot has the entry of the
log whose files it contains, and each snapshot is based on the previous one: the catalog accepts it
only while the previous snapshot is the newest. So the catalog refuses one of two publishers, which
then reads the published state and continues from there. A publisher that was killed, or does not
know the outcome of a snapshot, does the same. pyiceberg would repeat a refused snapshot on top of
the winner's; `commit.retry.num-retries=0` prevents that.

Only this module uses pyiceberg. The errors of its catalogs have no common class.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import TableProperties

from pyspark_liftbridge.archive import publishing
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.errors import (
    ArchiveError,
    CatalogError,
    ContentionError,
    OtherStreamError,
    UnsupportedTableError,
)
from pyspark_liftbridge.archive.publishing import Step
from pyspark_liftbridge.archive.stores.store import Store
from pyspark_liftbridge.plan.options import OptionError

VERSION: Final = "liftbridge.version"
"""Key in a snapshot's summary: the entry of the archive's log that is published."""

ARCHIVE_ID: Final = "liftbridge.archiveId"
FAILURES_MAX: Final = 5
"""Maximum number of consecutive attempts without progress."""

_PROPERTIES: Final = {
    TableProperties.COMMIT_NUM_RETRIES: "0",
    # Each snapshot adds a manifest; readers are faster with few.
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
}
_SCHEMA: Final = pa.schema([one.with_nullable(True) for one in SCHEMA])  # noqa: FBT003 - Arrow's
"""All columns are nullable for readers, since other writers of Delta may compact the files."""

# Properties that Iceberg needs to read data files in the archive's own store.
_STORE_OPTIONS: Final = {"endpoint": "s3.endpoint", "region": "s3.region"}


class Target(NamedTuple):
    """Iceberg table to which an archive is published.

    Attributes:
        catalog: Name of the catalog, as in pyiceberg's configuration.
        properties: Properties of the catalog, in addition to the configuration's.
        table: Namespace and name, with dots between.
    """

    catalog: str
    properties: Mapping[str, str]
    table: str


@dataclass
class Published:
    """Result of a run.

    Attributes:
        table: Namespace and name of the table.
        version: Entry of the archive's log that is published; -1 for none.
        snapshots: Snapshots that this run created.
        added: Files that it added.
        removed: Files that it removed.
    """

    table: str
    version: int = -1
    snapshots: int = 0
    added: int = 0
    removed: int = 0


def with_store(properties: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Add properties for files to a catalog's properties, from the options of the store."""
    found = {
        name: options[option] for option, name in _STORE_OPTIONS.items() if options.get(option)
    }
    return {**found, **properties}


def publish(store: Store, root: str, target: Target, *, entries_max: int) -> Published:
    """Publish all records that any writer has archived when the run begins.

    Args:
        store: The folder of the archive's table.
        root: Address of that folder.
        target: Table to publish to.
        entries_max: Maximum number of entries of the log in a snapshot.

    Raises:
        OptionError: The archive does not exist.
        CatalogError: The catalog, or its store, does not answer properly.
        ContentionError: Other writers won each of `FAILURES_MAX` attempts.
        OtherStreamError: The table is of another archive.
        UnsupportedTableError: Other writers have changed the table, or the archive's log.
        DamagedError, StoreError: The archive cannot be read, or is behind the table.
    """
    head = log.load(store)
    if head.metadata is None:
        raise OptionError(f"{root}: there is no archive; archive the stream first")
    with _translated_errors(target):
        catalog = load_catalog(target.catalog, **target.properties)
    done = Published(target.table)
    failure: Exception | None = None
    failures = 0
    while failures < FAILURES_MAX:
        before = done.version
        try:
            with _translated_errors(target):
                table = _opened(catalog, target, head.metadata)
                _Run(table, store, head, _address(root), done).steps(entries_max)
                return done
        except (CatalogError, ContentionError) as error:
            failure = error
            failures = 1 if done.version > before else failures + 1
    assert failure is not None, "it has failed"
    raise failure


@dataclass
class _Run:
    """Steps of one publisher, until another publisher takes a step.

    Attributes:
        table: Latest known state of the table.
        store: The folder of the archive's table.
        root: Address of that folder.
        done: Result so far.
    """

    table: IcebergTable
    store: Store
    head: log.Snapshot
    address: str
    done: Published
    _files: dict[str, DataFile] = field(default_factory=dict)

    def steps(self, entries_max: int) -> None:
        """Take all steps up to the archive's current state."""
        self.done.version = max(self.done.version, _version_of(self.table))
        published = self.done.version
        self._files = {task.file.file_path: task.file for task in self.table.scan().plan_files()}
        present = frozenset(path.removeprefix(f"{self.address}/") for path in self._files)
        for step in publishing.steps(
            self.store, self.head, published, present, entries_max=entries_max
        ):
            self._take(step)
            self.done.version = step.version
            self.done.snapshots += 1
            self.done.added += len(step.added)
            self.done.removed += len(step.removed)

    def _take(self, step: Step) -> None:
        """Create a snapshot based on the newest known snapshot."""
        transaction = self.table.transaction()
        if self.table.metadata.name_mapping() is None:
            mapping = self.table.schema().name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        update = transaction.update_snapshot(snapshot_properties={VERSION: str(step.version)})
        change = update.overwrite() if step.removed else update.merge_append()
        added = [
            parquet_file_to_data_file(
                io=self.table.io, table_metadata=self.table.metadata, file_path=self._path(one)
            )
            for one in step.added
        ]
        for file in added:
            change.append_data_file(file)
        for path in step.removed:
            change.delete_data_file(self._files.pop(self._path(path)))
        change.commit()
        transaction.commit_transaction()
        self._files.update({file.file_path: file for file in added})

    def _path(self, path: str) -> str:
        return f"{self.address}/{path}"


def _opened(catalog: Catalog, target: Target, metadata: delta.Metadata) -> IcebergTable:
    """Open the table; create it if it does not exist.

    Raises:
        OtherStreamError: The table is of another archive.
        UnsupportedTableError: The table lets pyiceberg retry refused snapshots.
    """
    own = {
        delta.STREAM: metadata.stream,
        delta.STREAM_ID: str(metadata.stream_id),
        ARCHIVE_ID: metadata.table_id,
    }
    try:
        table = catalog.load_table(target.table)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(target.table.rpartition(".")[0])
        try:
            table = catalog.create_table(target.table, _SCHEMA, properties={**_PROPERTIES, **own})
        except TableAlreadyExistsError:
            table = catalog.load_table(target.table)
    properties = {name: table.properties.get(name) for name in own}
    if properties != own:
        raise OtherStreamError(
            f"{target.table} of catalog {target.catalog}: the table is of {_shown(properties)}, "
            f"but the archive of {_shown(own)}; name another table with --table"
        )
    retries = table.properties.get(TableProperties.COMMIT_NUM_RETRIES)
    if retries != "0":
        raise UnsupportedTableError(
            f"{target.table} of catalog {target.catalog}: {TableProperties.COMMIT_NUM_RETRIES} "
            f"must be 0, not {retries}: otherwise files can be added twice; set it back"
        )
    return table


def _version_of(table: IcebergTable) -> int:
    """Return the published entry, -1 for none.

    Later snapshots of other writers, such as rewritten manifests, do not count.

    Raises:
        UnsupportedTableError: No remaining snapshot has the entry.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return -1
    for _ in range(len(table.metadata.snapshots)):
        version = None if snapshot.summary is None else snapshot.summary[VERSION]
        if version is not None and version.isascii() and version.isdigit():
            return int(version)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
        if snapshot is None:
            break
    raise UnsupportedTableError(
        f"{'.'.join(table.name())}: none of its snapshots has {VERSION}: others have written to "
        "it; publish under another name"
    )


def _address(root: str) -> str:
    """Convert the address of the archive's folder for Iceberg: unescaped, no trailing slash."""
    if urlsplit(root).scheme == "file":
        root = unquote(urlsplit(root).path)
    whole = root if "://" in root else f"file://{Path(root).absolute()}"
    return whole.rstrip("/")


def _shown(properties: Mapping[str, str | None]) -> str:
    stream, stream_id, archive = properties.values()
    return f"stream {stream} of id {stream_id} (archive {archive})"


@contextmanager
def _translated_errors(target: Target) -> Iterator[None]:
    """Translate errors of pyiceberg, its catalogs and stores to those of an archive."""
    place = f"{target.table} of catalog {target.catalog}"
    try:
        yield
    except ArchiveError:
        raise
    except CommitFailedException as error:
        raise ContentionError(
            f"{place}: other writers won {FAILURES_MAX} attempts in a row; try again"
        ) from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise CatalogError(f"{place}: {type(error).__name__}: {text}") from error

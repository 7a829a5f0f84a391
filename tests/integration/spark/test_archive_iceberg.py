"""An archive published to catalogs of Iceberg: the same rows, whoever is killed or races."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random
from threading import Thread
from time import monotonic
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table as IcebergTable

from liftbridge_client.cli.app import run as command_line
from liftbridge_testkit.archive_runs import NOW_MS, records
from liftbridge_testkit.lossy_proxy import Fate, LossyProxy, Request
from liftbridge_testkit.object_store import KEY_ID, SECRET, ObjectStore
from pyspark_liftbridge.archive import fence, iceberg
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.errors import (
    CatalogError,
    ContentionError,
    DamagedError,
    OtherStreamError,
    UnsupportedTableError,
)
from pyspark_liftbridge.archive.fence import Claim
from pyspark_liftbridge.archive.files import Chance, Place, write_files
from pyspark_liftbridge.archive.iceberg import Published, Target, publish
from pyspark_liftbridge.archive.stores.folder import LocalFolder
from pyspark_liftbridge.archive.stores.store import Store, open_store
from pyspark_liftbridge.archive.table import Making, Table, open_table

COMMAND = Path(sys.executable).parent / "liftbridge"
STREAM_ID = 7
ROWS = 5
"""Of an entry."""

KILLS, ENTRIES = 10, 15
SECONDS_MAX = 90.0


class Shelf(NamedTuple):
    """An archive and where it is published.

    Attributes:
        archive: The archive.
        root: Address of its folder.
        target: Where it is published.
    """

    archive: Table
    root: str
    target: Target

    def publish(self, entries_max: int = 1) -> Published:
        return publish(self.archive.store, self.root, self.target, entries_max=entries_max)

    def catalog(self) -> Catalog:
        return load_catalog(self.target.catalog, **self.target.properties)

    def table(self) -> IcebergTable:
        return self.catalog().load_table(self.target.table)


def grow(archive: Table, entries: int) -> Table:
    """The archive with so many more entries, of `ROWS` records each."""
    snapshot = log.follow(archive.store, archive.snapshot)
    for _ in range(entries):
        known = snapshot.ends.get(fence.app_id(STREAM_ID, 0))
        start = 0 if known is None else known.version
        span = delta.Span(0, start, start + ROWS)
        written = write_files(
            archive.store,
            Place("orders", STREAM_ID, span),
            [records(range(start, start + ROWS))],
            Chance(lambda: uuid4().hex, NOW_MS),
        )
        run_id = f"{start}"
        claims = [Claim((written,))]
        proposal = Proposal(run_id=run_id, stream_id=STREAM_ID, claims=claims, now_ms=NOW_MS)
        snapshot = commit(archive.store, snapshot, proposal).snapshot
    return archive._replace(snapshot=snapshot)


def new_archive(store: Store, table_id: str = "an archive") -> Table:
    return open_table(store, "orders", STREAM_ID, Making(table_id, NOW_MS))


@pytest.fixture
def local(tmp_path: Path) -> Shelf:
    """An archive and a catalog in folders, as whoever tries it out has them."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    target = Target("local", properties, "liftbridge.orders")
    root = tmp_path / "an archive"
    return Shelf(new_archive(LocalFolder(root)), f"{root}/orders/", target)


@pytest.fixture(scope="module")
def warehouse(object_store: ObjectStore) -> str:
    """Where the catalog that is asked by HTTP keeps its tables."""
    object_store.make_table_bucket("lake")
    return "s3://lake"


@pytest.fixture
def rest(s3: ObjectStore, warehouse: str, name: str) -> Shelf:
    """An archive in S3, and a catalog that is asked by HTTP."""
    options = {"endpoint": s3.url, "allow_http": "true", "region": "us-east-1"}
    given = {
        "type": "rest",
        "uri": s3.catalog_url,
        "warehouse": warehouse,
        "credential": f"{KEY_ID}:{SECRET}",
        "oauth2-server-uri": f"{s3.catalog_url}/v1/oauth/tokens",
    }
    root = f"s3://archives/{name}"
    table = f"liftbridge.{name.replace('-', '_')}"
    target = Target("lake", iceberg.with_store(given, options), table)
    return Shelf(new_archive(open_store(root, options)), f"{root}/orders/", target)


@pytest.fixture(params=["local", "rest"])
def place(request: pytest.FixtureRequest) -> Shelf:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Shelf)
    return found


def sorted_rows(table: pa.Table) -> list[dict[str, object]]:
    """Rows of a table by partition and offset."""
    order = pc.sort_indices(table, [("partition", "ascending"), ("offset", "ascending")])
    rows: list[dict[str, object]] = table.take(order).to_pylist()
    return rows


def archived_rows(archive: Table) -> list[dict[str, object]]:
    """Rows of the files that the archive's log names."""
    tables = []
    for add in log.load(archive.store).files.values():
        data = archive.store.read(add.object_path, bytes_max=1 << 30)
        assert data is not None
        tables.append(pq.read_table(pa.BufferReader(data)))
    return sorted_rows(pa.concat_tables(tables))


def versions(table: IcebergTable) -> list[int]:
    """Entries of the archive by its snapshots."""
    found = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    return [int(one.summary[iceberg.VERSION] or -1) for one in found if one.summary is not None]


def check(place: Shelf) -> IcebergTable:
    """See that the published table is the archive."""
    table = place.table()
    assert sorted_rows(table.scan().to_arrow()) == archived_rows(place.archive)
    files = {task.file.file_path for task in table.scan().plan_files()}
    live = log.load(place.archive.store).files.values()
    base = place.root.rstrip("/") if "://" in place.root else f"file://{place.root.rstrip('/')}"
    assert files == {f"{base}/{one.object_path}" for one in live}
    return table


def test_published_table_is_the_archive(place: Shelf) -> None:
    grow(place.archive, 4)
    name = place.target.table
    assert place.publish() == Published(name, 4, 4, 4, 0)
    assert versions(check(place)) == [1, 2, 3, 4]
    assert place.publish().snapshots == 0
    grow(place.archive, 5)
    assert place.publish(entries_max=100) == Published(name, 9, 1, 5, 0)
    assert versions(check(place)) == [1, 2, 3, 4, 9]


def test_files_that_were_compacted_are_replaced_in_one_snapshot(local: Shelf) -> None:
    grow(local.archive, 3)
    local.publish()
    before = local.table().current_snapshot()
    assert before is not None
    compacted = DeltaTable(local.root)
    assert compacted.optimize.compact()["numFilesRemoved"] == 3
    grow(local.archive, 1)
    assert local.publish() == Published("liftbridge.orders", 5, 2, 2, 3)
    table = check(local)
    assert versions(table) == [1, 2, 3, 4, 5]
    whole = sorted_rows(table.scan().to_arrow())
    # Who reads an older snapshot finds the older files.
    assert sorted_rows(table.scan(snapshot_id=before.snapshot_id).to_arrow()) == whole[: 3 * ROWS]
    # And who was behind takes no file that is gone by now.
    late = local._replace(target=local.target._replace(table="liftbridge.late"))
    compacted.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert late.publish() == Published("liftbridge.late", 5, 2, 2, 0)
    check(late)


def test_many_snapshots_keep_few_manifests(local: Shelf) -> None:
    """Those of snapshots are merged, at the number that the table says: 100 if it says nothing."""
    grow(local.archive, 1)
    local.publish()
    with local.table().transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "5"})
    grow(local.archive, 14)
    assert local.publish().snapshots == 14
    table = check(local)
    newest = table.current_snapshot()
    assert newest is not None
    assert len(newest.manifests(table.io)) <= 5


def test_publishers_that_race_and_are_killed_publish_each_entry_once(local: Shelf) -> None:
    """Two at any time, `kill -9` in the middle, and as many snapshots as there are entries."""
    grow(local.archive, ENTRIES)
    processes = get_context("forkserver")
    processes.set_forkserver_preload(
        ["pyspark_liftbridge.archive.iceberg", "pyiceberg.catalog.sql"]
    )

    def start() -> ForkServerProcess:
        given = (local.archive.store, local.root, local.target)
        process = processes.Process(
            target=publish, args=given, kwargs={"entries_max": 1}, daemon=True
        )
        process.start()
        return process

    random = Random(10)
    last, head, middles = -1, ENTRIES, 0
    deadline = monotonic() + SECONDS_MAX
    for _ in range(KILLS):
        if head - last < ENTRIES:
            grow(local.archive, ENTRIES)
            head += ENTRIES
        running = [start(), start()]
        while published_so_far(local) <= last:
            assert monotonic() < deadline
            running[0].join(0.05)
        running[0].join(random.uniform(0, 0.1))
        for process in running:
            process.kill()
            process.join()
        last = published_so_far(local)
        middles += last < head
    assert middles > KILLS // 2
    for process in [start(), start()]:
        process.join(SECONDS_MAX)
        assert process.exitcode == 0
    assert versions(check(local)) == list(range(1, head + 1))


def published_so_far(place: Shelf) -> int:
    catalog = place.catalog()
    if not catalog.table_exists(place.target.table):
        return -1
    return max(versions(catalog.load_table(place.target.table)), default=-1)


def test_publishers_that_race_by_http_publish_each_entry_once(rest: Shelf) -> None:
    grow(rest.archive, 12)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            rest.publish()
        except BaseException as error:  # noqa: BLE001 - told by the thread of the test
            errors.append(error)

    threads = [Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert versions(check(rest)) == list(range(1, 13))


@pytest.fixture
def proxy(s3: ObjectStore) -> Iterator[LossyProxy]:
    with LossyProxy(s3.catalog_port) as running:
        yield running


def commits(table: str, fate: Fate) -> Callable[[Request], Fate]:
    """Let each second commit to a table meet a fate."""
    seen = 0

    def decide(request: Request) -> Fate:
        nonlocal seen
        if request.method != "POST" or not request.path.endswith(f"/tables/{table}"):
            return Fate.PASS
        seen += 1
        return fate if seen % 2 else Fate.PASS

    return decide


@pytest.mark.parametrize("fate", [Fate.LOSE_ANSWER, Fate.LOSE_REQUEST])
def test_commits_whose_answers_are_lost_are_not_repeated(
    rest: Shelf, proxy: LossyProxy, fate: Fate
) -> None:
    grow(rest.archive, 6)
    properties = {**rest.target.properties, "uri": proxy.url}
    through = rest._replace(target=rest.target._replace(properties=properties))
    proxy.decide = commits(rest.target.table.removeprefix("liftbridge."), fate)
    assert through.publish().version == 6
    assert proxy.count(fate) >= 3
    assert versions(check(rest)) == list(range(1, 7))


def test_catalog_that_is_not_there_is_told(local: Shelf) -> None:
    grow(local.archive, 1)
    away = {"type": "rest", "uri": "http://127.0.0.1:1"}
    with pytest.raises(CatalogError, match=r"^liftbridge.orders of catalog local: .*refused"):
        local._replace(target=local.target._replace(properties=away)).publish()
    with pytest.raises(CatalogError, match=r"of catalog nowhere: "):
        local._replace(target=Target("nowhere", {}, "liftbridge.orders")).publish()


def test_table_of_another_archive_is_not_touched(local: Shelf, tmp_path: Path) -> None:
    grow(local.archive, 1)
    local.publish()
    other = new_archive(LocalFolder(tmp_path / "other"), "another")
    grow(other, 2)
    with pytest.raises(OtherStreamError, match=r"the table is of stream orders .*name another"):
        Shelf(other, f"{tmp_path}/other/orders/", local.target).publish()
    check(local)


def test_table_that_others_have_written_to_is_not_touched(local: Shelf) -> None:
    grow(local.archive, 2)
    catalog = local.catalog()
    catalog.create_namespace("liftbridge")
    local.publish()
    table = local.table()
    with table.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "4"})
    with pytest.raises(UnsupportedTableError, match="num-retries must be 0, not 4"):
        local.publish()
    with table.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "0"})
    assert local.publish().version == 2
    # A snapshot behind ours does no harm; one in the place of ours does.
    table = local.table()
    table.append(table.scan().to_arrow().slice(0, 0))
    assert local.publish().version == 2
    for snapshot in local.table().metadata.snapshots[:-1]:
        local.table().maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    with pytest.raises(UnsupportedTableError, match=r"none of its snapshots has liftbridge"):
        local.publish()


def test_archive_that_was_put_back_is_told(local: Shelf) -> None:
    grow(local.archive, 3)
    local.publish()
    local.archive.store.delete(log.entry_path(3))
    with pytest.raises(DamagedError, match="entry 3 is published, but the archive ends at entry 2"):
        local.publish()


class Overtaken(LocalFolder):
    """An archive of which others publish whenever an entry of it is read."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf.root)
        self._shelf = shelf

    def read(self, path: str, *, bytes_max: int) -> bytes | None:
        """See `Store`."""
        if path == log.entry_path(3):
            with self._shelf.table().transaction() as transaction:
                transaction.append(self._shelf.table().scan().to_arrow().slice(0, 0))
        return super().read(path, bytes_max=bytes_max)


def test_writers_that_are_always_first_are_told(local: Shelf) -> None:
    grow(local.archive, 2)
    local.publish()
    grow(local.archive, 1)
    overtaken = local._replace(archive=local.archive._replace(store=Overtaken(local)))
    with pytest.raises(ContentionError, match="other writers won 5 attempts in a row"):
        overtaken.publish()
    assert local.publish().snapshots == 1
    check(local)


# The command


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "spark", "publish", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_command_publishes(local: Shelf) -> None:
    grow(local.archive, 3)
    root = local.root.removesuffix("orders/")
    words = ["orders", root, "--iceberg", "local", "-o", "json"]
    for name, value in local.target.properties.items():
        words += ["--catalog", f"{name}={value}"]
    done = run(*words)
    assert done.returncode == 0, done.stderr
    wanted = {"table": "liftbridge.orders", "version": 3, "snapshots": 1, "added": 3, "removed": 0}
    assert json.loads(done.stdout) == wanted
    check(local)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--catalog", "token=x"), 2, "--catalog token: secrets must come from the environment"),
        (
            ("--catalog", "uri=postgresql://me:pw@host/db"),
            2,
            "--catalog uri: secrets must come from",
        ),
        (("--catalog", "uri"), 2, "--catalog uri: must be NAME=VALUE"),
        (("--table", "orders"), 2, "--table orders: must be a namespace and a name"),
        ((), 2, "there is no archive; archive the stream first"),
    ],
)
def test_what_cannot_be_published_is_told_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    given = ["spark", "publish", "orders", str(tmp_path), "--iceberg", "local", *words]
    assert command_line(given) == code
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("root", "address"),
    [
        ("/a b/c%20/orders/", "file:///a b/c%20/orders"),
        ("file:///a%20b/orders/", "file:///a b/orders"),
        ("s3://bucket/a/orders@9/", "s3://bucket/a/orders@9"),
    ],
)
def test_files_are_named_as_readers_of_iceberg_find_them(root: str, address: str) -> None:
    assert iceberg._address(root) == address


BLOCKED = """
import sys
sys.modules["pyiceberg"] = None
from liftbridge_client.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    words = ("spark", "publish", "orders", str(tmp_path), "--iceberg", "local")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "pyiceberg is not installed: pip install 'liftbridge-spark[iceberg]'" in done.stderr


def test_nothing_but_publishing_imports_pyiceberg() -> None:
    program = (
        "import sys, liftbridge_client.cli.app, pyspark_liftbridge.archive.verify\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pyspark_liftbridge" in done.stdout.split()
    assert "pyiceberg" not in done.stdout.split()

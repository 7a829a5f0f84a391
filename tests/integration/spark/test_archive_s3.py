"""Archives in a real S3 server, also one whose answers are lost: each record once."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from threading import Barrier, Thread

import pytest
from deltalake import DeltaTable
from obstore.store import S3Store

from liftbridge_client import SyncClient
from liftbridge_testkit.archive_runs import NOW_MS, records
from liftbridge_testkit.lossy_proxy import Fate, LossyProxy, Request
from liftbridge_testkit.object_store import (
    ENVIRONMENT,
    KEY_ID,
    OPEN_BUCKET,
    SECRET,
    ObjectStore,
)
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.archive import gc
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.errors import (
    DamagedError,
    StoreError,
    UnknownOutcomeError,
    UnsupportedStoreError,
)
from pyspark_liftbridge.archive.fence import Claim, Verdict
from pyspark_liftbridge.archive.files import Chance, Place, write_files
from pyspark_liftbridge.archive.stores.objects import Objects
from pyspark_liftbridge.archive.stores.store import Below, Store, open_store, opened
from pyspark_liftbridge.archive.table import Making, Table, open_table
from pyspark_liftbridge.archive.verify import verify
from pyspark_liftbridge.jobs.archive import Job, archive_once, do

BUCKET = "s3://archives"
DAY_MS = 86_400_000
WRITERS, NUMBERS = 4, 60
LOST_IN_A_ROW_MAX = 4
"""Of requests for one object; obstore gives up after ten."""


def options(url: str) -> dict[str, str]:
    return {"endpoint": url, "allow_http": "true", "region": "us-east-1"}


def at_once(url: str, root: str) -> Objects:
    """A store whose client tells of a failure at once, instead of trying again by itself."""
    bucket = S3Store(
        "archives",
        prefix=root,
        endpoint=url,
        region="us-east-1",
        access_key_id=KEY_ID,
        secret_access_key=SECRET,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    return Objects(bucket, f"{BUCKET}/{root}")


@pytest.fixture
def root(name: str) -> str:
    return f"{BUCKET}/{name}"


@pytest.fixture
def store(s3: ObjectStore, root: str) -> Store:
    return open_store(root, options(s3.url))


@pytest.fixture
def proxy(s3: ObjectStore) -> Iterator[LossyProxy]:
    # A bucket is made by the first object that is written to it, and may not be there yet.
    opened(f"{BUCKET}/made", options(s3.url)).create("by", b"the first")
    with LossyProxy(s3.port) as running:
        yield running


def test_objects_are_created_once_listed_in_order_and_removed(store: Store) -> None:
    assert store.read("log/1", bytes_max=10) is None
    for name in ("log/10", "log/9", "log/1", "data/x/y", "logs"):
        assert store.create(name, name.encode())
        assert not store.create(name, b"another")
    found = store.listing("log/")
    assert [(one.path, one.size) for one in found] == [("log/1", 5), ("log/10", 6), ("log/9", 5)]
    assert [one.path for one in store.listing("log/", after="log/1.")] == ["log/10", "log/9"]
    assert [one.path for one in store.listing("log/", after="log/10")] == ["log/9"]
    assert len(store.listing("")) == 5
    store.replace("log/1", b"third")
    assert store.read("log/1", bytes_max=5) == b"third"
    with pytest.raises(DamagedError, match="5 bytes, more than the maximum of 4"):
        store.read("log/1", bytes_max=4)
    store.delete("log/1")
    store.delete("log/1")
    assert store.read("log/1", bytes_max=10) is None
    assert list(store.listing("nothing/")) == []


def test_listing_of_many_pages_is_whole(store: Store) -> None:
    """S3 lists a thousand at a time."""
    paths = [f"log/{number:04}" for number in range(1_050)]
    threads = [
        Thread(target=lambda part: [store.create(one, b"") for one in part], args=(paths[at::8],))
        for at in range(8)
    ]
    in_parallel(threads)
    assert [one.path for one in store.listing("log/")] == paths
    assert [one.path for one in store.listing("log/", after="log/0020.")] == paths[21:]


def in_parallel(threads: Sequence[Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_one_of_four_writers_wins_each_number(s3: ObjectStore, root: str) -> None:
    wins: list[tuple[int, bytes]] = []
    barrier = Barrier(WRITERS, timeout=60)

    def race(name: bytes) -> None:
        own = opened(root, options(s3.url))
        for number in range(NUMBERS):
            barrier.wait()
            if own.create(f"log/{number:02}", name):
                wins.append((number, name))

    in_parallel([Thread(target=race, args=(b"%d" % at,)) for at in range(WRITERS)])
    kept = opened(root, options(s3.url))
    held = [(n, kept.read(f"log/{n:02}", bytes_max=9)) for n in range(NUMBERS)]
    assert sorted(wins) == held


def test_store_that_passes_over_conditions_is_refused(
    s3: ObjectStore, proxy: LossyProxy, name: str
) -> None:
    address = f"s3://{OPEN_BUCKET}/{name}"
    opened(f"s3://{OPEN_BUCKET}/made", options(s3.url)).create("by", b"one who may")
    unsigned = {**options(proxy.url), "skip_signature": "true"}
    proxy.decide = lambda _request: Fate.NO_CONDITION
    with pytest.raises(UnsupportedStoreError, match="was overwritten when it was created again"):
        open_store(address, unsigned)
    proxy.decide = lambda _request: Fate.PASS
    assert open_store(address, unsigned).listing("") == []


def test_wrong_credentials_are_told_in_one_line(
    s3: ObjectStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(StoreError) as caught:
        open_store(root, options(s3.url))
    told = str(caught.value)
    assert told.startswith(f"{root}/_probe/")
    assert "403 Forbidden: SignatureDoesNotMatch: The request signature" in told
    assert "\n" not in told


# Commits whose answers are lost


def table_at(store: Store) -> Table:
    return open_table(store, "orders", 7, Making("7a3c2f52-6f0e-4a3e-9d0e-0c1f4f5b6a7d", NOW_MS))


def proposal(table: Table, start: int, end: int, run_id: str) -> Proposal:
    """Records of a range, written as files."""
    span = delta.Span(0, start, end)
    written = write_files(
        table.store,
        Place("orders", 7, span),
        [records(range(start, end))],
        Chance(lambda: run_id, NOW_MS),
    )
    return Proposal(run_id=run_id, stream_id=7, claims=[Claim((written,))], now_ms=NOW_MS)


def lose_entries(fate: Fate, times: int = 1_000) -> Callable[[Request], Fate]:
    """Let the next puts of entries of the log meet a fate."""
    left = iter([fate] * times)

    def decide(request: Request) -> Fate:
        is_entry = request.method == "PUT" and request.path.endswith(".json")
        return next(left, Fate.PASS) if is_entry else Fate.PASS

    return decide


def offsets(table: Table) -> list[int]:
    """Offsets that the log says are archived, by the ranges of its files."""
    origins = [one.origin for one in log.load(table.store).files.values()]
    return sorted(at for one in origins if one for at in range(one.start, one.end))


@pytest.mark.parametrize("fate", [Fate.LOSE_ANSWER, Fate.LOSE_REQUEST])
def test_commit_whose_answer_is_lost_is_found_by_its_run(
    proxy: LossyProxy, name: str, fate: Fate
) -> None:
    table = table_at(at_once(proxy.url, name))
    proxy.decide = lose_entries(fate, 1)
    outcome = commit(table.store, table.snapshot, proposal(table, 0, 10, "mine"))
    assert proxy.count(fate) == 1
    assert (outcome.version, outcome.verdicts) == (1, {0: Verdict.COMMITTED})
    assert log.load(table.store) == outcome.snapshot
    assert offsets(table) == list(range(10))


def test_commit_that_loses_and_hears_nothing_of_it_plans_again(
    s3: ObjectStore, proxy: LossyProxy, name: str
) -> None:
    table = table_at(at_once(proxy.url, name))
    rival = table_at(at_once(s3.url, name))
    mine = proposal(table, 0, 10, "mine")
    commit(rival.store, rival.snapshot, proposal(rival, 0, 6, "other"))
    proxy.decide = lose_entries(Fate.LOSE_ANSWER)
    outcome = commit(table.store, table.snapshot, mine)
    assert (outcome.version, outcome.verdicts) == (None, {0: Verdict.PLAN_AGAIN})
    assert offsets(table) == list(range(6))


def test_client_that_tries_again_by_itself_meets_its_own_entry(
    proxy: LossyProxy, root: str
) -> None:
    """obstore repeats a put whose answer was lost, and hears that the object is there."""
    table = table_at(open_store(root, options(proxy.url)))
    proxy.decide = lose_entries(Fate.LOSE_ANSWER, 2)
    outcome = commit(table.store, table.snapshot, proposal(table, 0, 10, "mine"))
    assert proxy.count(Fate.LOSE_ANSWER) == 2
    assert (outcome.version, outcome.verdicts) == (1, {0: Verdict.COMMITTED})
    assert [one.path for one in table.store.listing("_delta_log/")] == [
        log.entry_path(version) for version in (0, 1)
    ]


def test_outcome_that_stays_unknown_is_seen_by_the_next_run(
    s3: ObjectStore, proxy: LossyProxy, name: str
) -> None:
    table = table_at(at_once(proxy.url, name))
    mine = proposal(table, 0, 10, "mine")

    def nothing_is_heard(request: Request) -> Fate:
        return Fate.LOSE_ANSWER if "/_delta_log/" in request.path else Fate.PASS

    proxy.decide = nothing_is_heard
    with pytest.raises(UnknownOutcomeError, match="read the log and plan from it"):
        commit(table.store, table.snapshot, mine)
    later = table_at(at_once(s3.url, name))
    again = commit(later.store, later.snapshot, proposal(later, 0, 10, "again"))
    assert (again.version, again.verdicts) == (None, {0: Verdict.DONE})
    assert offsets(later) == list(range(10))
    orphans = gc.orphans(later.store, now_ms=later_ms(later))
    assert [one.path for one in orphans] == ["data/0/1970-01-01/0-10-again.parquet"]


def later_ms(table: Table) -> int:
    """A time at which all that is there is old enough to be removed."""
    return max(one.modified_ms for one in table.store.listing("")) + 2 * DAY_MS


# Runs that archive a stream


def in_turn(works: Sequence[str]) -> list[str]:
    return [do(one) for one in works]


def job(broker: Broker, stream: str, root: str, url: str) -> Job:
    return Job(stream, root, {"servers": broker.address}, options(url), fails_on_loss=True)


def publish(lb: SyncClient, stream: str, partition: int, count: int) -> None:
    begin = lb.streams.get(stream).bounds(partition)[0].high_watermark
    with lb.streams.get(stream).publisher() as publisher:
        publisher.publish_batch(
            [b"%d" % number for number in range(begin, begin + count)], partition=partition
        )


def rows_in_deltalake(s3: ObjectStore, address: str) -> list[tuple[int, int, bytes]]:
    """What another reader of Delta finds."""
    storage = {
        **ENVIRONMENT,
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    table = DeltaTable(address, storage_options=storage)
    rows = table.to_pyarrow_table(columns=["partition", "offset", "value"]).to_pydict()
    return sorted(zip(*rows.values(), strict=True))


def expected(counts: dict[int, int]) -> list[tuple[int, int, bytes]]:
    return [(p, n, b"%d" % n) for p, count in counts.items() for n in range(count)]


def test_stream_is_archived_in_s3(
    broker: Broker, lb: SyncClient, s3: ObjectStore, name: str, root: str
) -> None:
    lb.streams.create(name, partitions=2)
    publish(lb, name, 0, 300)
    whole = job(broker, name, root, s3.url)
    assert archive_once(whole, in_turn).records == 300
    publish(lb, name, 1, 40)
    assert archive_once(whole, in_turn).records == 40
    assert archive_once(whole, in_turn).records == 0
    assert rows_in_deltalake(s3, f"{root}/{name}") == expected({0: 300, 1: 40})
    table = Below(opened(root, options(s3.url)), f"{name}/")
    assert verify(table) == []
    assert gc.orphans(table, now_ms=NOW_MS * 2) == []


def test_rivals_whose_answers_are_lost_archive_each_record_once(
    broker: Broker, lb: SyncClient, s3: ObjectStore, proxy: LossyProxy, name: str, root: str
) -> None:
    """Requests of all kinds are lost by chance, those of writing files and entries above all."""
    lb.streams.create(name, partitions=2)
    publish(lb, name, 0, 50)
    random = Random(16)
    fates = (Fate.LOSE_ANSWER, Fate.LOSE_REQUEST, Fate.PASS)
    lost = Counter[tuple[str, str]]()

    def by_chance(request: Request) -> Fate:
        what = (request.method, request.path)
        lost[what] += 1
        if lost[what] > LOST_IN_A_ROW_MAX:
            return Fate.PASS
        weights = (40, 15, 45) if request.method == "PUT" else (3, 2, 95)
        return random.choices(fates, weights)[0]

    whole = job(broker, name, root, proxy.url)
    archived: list[int] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            archived.append(archive_once(whole, in_turn).records)
        except BaseException as error:  # noqa: BLE001 - told by the thread of the test
            errors.append(error)

    proxy.decide = by_chance
    total = 50
    for _ in range(5):
        in_parallel([Thread(target=run) for _ in range(2)])
        publish(lb, name, 1, 10)
        total += 10
    proxy.decide = lambda _request: Fate.PASS
    run()
    assert errors == []
    assert proxy.count(Fate.LOSE_ANSWER) > 10
    assert proxy.count(Fate.LOSE_REQUEST) > 3
    assert sum(archived) == total
    assert rows_in_deltalake(s3, f"{root}/{name}") == expected({0: 50, 1: 50})
    table = table_of(root, name, s3)
    assert verify(table) == []
    # What rivals and repeated writes left behind is in no entry, and goes.
    named = set(log.load(table).files)
    late = max(one.modified_ms for one in table.listing("")) + 2 * DAY_MS
    removed = {one.path for one in gc.remove_orphans(table, now_ms=late)}
    assert removed
    assert removed.isdisjoint(named)
    assert {one.path for one in table.listing("data/")} == named
    assert verify(table) == []


def table_of(root: str, folder: str, s3: ObjectStore) -> Below:
    return Below(opened(root, options(s3.url)), f"{folder}/")

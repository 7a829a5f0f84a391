"""Processes that archive one stream into a folder, killed at any moment: each record once."""

import subprocess
import sys
from random import Random

import pyarrow.parquet as pq
from deltalake import DeltaTable

from liftbridge_testkit.archive_runner import ENOUGH, PARTITIONS
from liftbridge_testkit.archive_runs import NOW_MS
from pyspark_liftbridge.archive import gc
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.stores.folder import LocalFolder
from pyspark_liftbridge.archive.stores.store import Below
from pyspark_liftbridge.archive.verify import verify

KILLS = 4


def start(folder, seed):
    command = [sys.executable, "-m", "liftbridge_testkit.archive_runner"]
    return subprocess.Popen([*command, str(folder), str(seed)], stdout=subprocess.PIPE, text=True)


def test_runners_killed_at_any_moment_lose_nothing_and_repeat_nothing(tmp_path):
    random = Random(16)
    runners = [start(tmp_path, 0), start(tmp_path, 1)]
    for seed in range(2, 2 + KILLS):
        victim = runners.pop(random.randrange(2))
        # The runner goes on while its lines are read: the moment is anybody's guess.
        assert all(victim.stdout.readline() for _ in range(random.randint(1, 25)))
        victim.kill()
        victim.communicate()
        assert victim.returncode == -9
        runners.append(start(tmp_path, seed))
    (tmp_path / ENOUGH).touch()
    for runner in runners:
        runner.communicate()
    assert [runner.returncode for runner in runners] == [0, 0]

    table = Below(LocalFolder(tmp_path), "orders/")
    assert verify(table) == []
    found = [
        (row["partition"], row["offset"])
        for uri in DeltaTable(str(tmp_path / "orders")).file_uris()
        for row in pq.read_table(uri, columns=["partition", "offset"]).to_pylist()
    ]
    ends = [txn.version for _, txn in sorted(log.load(table).ends.items())]
    assert sorted(found) == [(one, at) for one in PARTITIONS for at in range(ends[one])]
    left = gc.remove_orphans(table, now_ms=2 * NOW_MS)
    names = {one.path for one in table.listing("data/")}
    assert names == set(log.load(table).files)
    assert left, "nothing was killed half-way, nor lost a race"
    assert verify(table) == []

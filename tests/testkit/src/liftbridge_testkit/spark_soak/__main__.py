"""Soak test: kill a continuous archive repeatedly; the table must have each record once.

`python -m liftbridge_testkit.spark_soak --kills 30` starts three brokers, publishes records whose
contents follow from their offsets, and archives them with two runners of `liftbridge spark archive
--every`. A random one of the two is killed at a random moment with its JVM and all of its workers,
and restarts. In the middle of the run the leader of a partition is killed as well. Twice, late in
the run when the log has checkpoints, these and all local files of a runner are removed. In the end
three readers must see each record in the table once, as it was published. `gc` must remove all
files that killed runners left.

Needs the interpreter of `.spark`. With `--s3` the archive is in an S3 server that the test starts;
with `--root s3://...` and `--store` it is in any other. The keys are in the usual environment
variables.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from liftbridge_client import connect_sync
from liftbridge_testkit.bench.report import machine, table
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.object_store import ENVIRONMENT, ObjectStore
from liftbridge_testkit.progress import say
from liftbridge_testkit.spark_soak import checks
from liftbridge_testkit.spark_soak.records import Publishing, counts
from liftbridge_testkit.spark_soak.runners import Runner
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.gc import AGE_MS_MIN, remove_orphans
from pyspark_liftbridge.archive.stores.store import Below, opened
from pyspark_liftbridge.archive.verify import verify
from pyspark_liftbridge.session import session, stop_within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark_liftbridge.archive.stores.store import Store

STREAM: Final = "soak"
PARTITIONS: Final = 3
CONFIG: Final = {"cursors.stream.partitions": 1}
"""Settings of brokers: runners keep a cursor with their progress."""
FRESH_SECONDS_MAX: Final = 180.0
"""Seconds after its start after which a runner is killed even if it archived nothing."""

END_SECONDS_MAX: Final = 900.0
ENDS: Final = frozenset({3, 4, 6})
"""Allowed exit codes of a runner: no broker or no answer for too long, or the other runner won."""

_POLL_SECONDS: Final = 0.1
_MUST_BE_0: Final = (
    "lost", "twice", "wrong", "orphans left after gc", "findings of verify",
    "unexpected exits of runners", "partitions not at their end", "readers that differ",
)  # fmt: skip


class Soak:
    """One run.

    Args:
        options: Options of the command line.
        work_dir: Folder for all files.
        cluster: Brokers with the stream.
        servers: Their addresses.
    """

    def __init__(
        self, options: argparse.Namespace, work_dir: Path, cluster: ClusterKit, servers: str
    ) -> None:
        self.options = options
        self.work_dir = work_dir
        self.cluster = cluster
        self.root = options.root or str(work_dir / "archive")
        self.store_options = dict(one.split("=", 1) for one in options.store)
        self.wanted = counts(options.records, PARTITIONS)
        self._servers = servers
        self._random = Random(options.seed)
        words = [
            *(STREAM, self.root, "--servers", servers),
            *("--every", str(options.every), "--master", "local[1]"),
            *("--conf", "spark.ui.showConsoleProgress=false"),
            *(part for one in options.store for part in ("--store", one)),
        ]
        self.runners = [Runner(work_dir / f"runner-{one}", words) for one in (1, 2)]
        self.checkpoints_removed = self.kills_at_work = 0

    @property
    def store(self) -> Store:
        """The folder of the table."""
        return Below(opened(self.root, self.store_options), f"{STREAM}/")

    def run(self) -> dict[str, float]:
        """Publish, archive, kill, and check the outcome."""
        publishing = Publishing(self._servers, STREAM, self.wanted, self.options.rate)
        try:
            for runner in self.runners:
                runner.start()
            for number in range(1, self.options.kills + 1):
                publishing.is_done()
                publishing.allow(self.options.records * number // self.options.kills)
                self._kill_one(number)
            publishing.hurry()
            self._await_all(publishing)
        except BaseException:
            for runner in self.runners:
                say(f"--- {runner.folder.name}\n{runner.log_end()}")
            raise
        finally:
            for runner in self.runners:
                runner.kill()
        return self._examine()

    def _kill_one(self, number: int) -> None:
        victim = self._random.choice(self.runners)
        began = monotonic()
        # One in four dies during its start; others have archived something and continue.
        if self._random.random() < 0.75:
            while not victim.has_told() and monotonic() - began < FRESH_SECONDS_MAX:
                self._ensure()
                sleep(_POLL_SECONDS)
        delay = self._random.uniform(0.0, self.options.pause)
        sleep(delay)
        told = victim.has_told()
        self.kills_at_work += told
        victim.kill()
        say(
            f"kill {number} of {self.options.kills}: {victim.folder.name} "
            f"{'while it archived' if told else 'before its first commit'}; "
            f"archived so far: {sum(self._ends().values()):,} of {self.options.records:,}"
        )
        if number in (2 * self.options.kills // 3, self.options.kills - 1):
            victim.forget()
            self.checkpoints_removed += checks.remove_checkpoints(self.store)
            say("removed: all that it kept locally, and all checkpoints of the log")
        if number == self.options.kills // 2:
            leader = self.cluster.leader_of(STREAM)
            self.cluster[leader].kill()
            self.cluster.await_leader(STREAM, other_than=leader)
            self.cluster.start(leader)
            say(f"killed: {leader}, which led {STREAM}/0; it is back")
        self._ensure()

    def _ensure(self) -> None:
        for runner in self.runners:
            runner.ensure()

    def _ends(self) -> dict[int, int]:
        """Return the end of the archive of each partition."""
        ends = log.load(self.store).ends.values()
        return {int(end.app_id.rsplit("/", 1)[1]): end.version for end in ends}

    def _await_all(self, publishing: Publishing) -> None:
        deadline = monotonic() + END_SECONDS_MAX
        while not (publishing.is_done() and self._ends() == self.wanted):
            if monotonic() > deadline:
                raise TimeoutError(f"not archived in {END_SECONDS_MAX} s: {self._ends()}")
            self._ensure()
            sleep(_POLL_SECONDS)
        say(f"all archived: {self._ends()}")

    def _examine(self) -> dict[str, float]:
        store = self.store
        exits = [code for runner in self.runners for code in runner.codes]
        left = len(checks.strangers(store))
        now_ms = time.time_ns() // 1_000_000
        removed = remove_orphans(store, now_ms=now_ms + 2 * AGE_MS_MIN)
        say(f"gc removed {len(removed)} of {left} files in no entry")
        spark = session("local[2]", {"spark.ui.showConsoleProgress": "false"})
        read = {
            "deltalake": checks.by_deltalake(f"{self.root}/{STREAM}", self.store_options),
            "our source": checks.by_our_source(
                {
                    "servers": self._servers,
                    "subscribe": STREAM,
                    "archive": self.root,
                    **{f"archive.{name}": value for name, value in self.store_options.items()},
                }
            ),
            "Spark": checks.by_spark(spark, store, self.work_dir / "copies"),
        }
        ledgers = {who: checks.Ledger(self.wanted).filled(found) for who, found in read.items()}
        stop_within(spark)
        for finding in (findings := verify(store)):
            say(f"{finding.place}: {finding.text}")
        return {
            "records published": self.options.records,
            **{
                f"records in the table, by {who}": one.digest.records
                for who, one in ledgers.items()
            },
            "entries of the log": log.load(store).version + 1,
            "kills": self.options.kills,
            "kills while it archived": self.kills_at_work,
            "checkpoints removed": self.checkpoints_removed,
            "runners that ended by themselves": len(exits),
            "orphans removed by gc": len(removed),
            "lost": max(ledger.lost for ledger in ledgers.values()),
            "twice": max(ledger.twice for ledger in ledgers.values()),
            "wrong": max(ledger.wrong for ledger in ledgers.values()),
            "readers that differ": len({ledger.digest for ledger in ledgers.values()}) - 1,
            "partitions not at their end": sum(
                self._ends().get(one) != count for one, count in self.wanted.items()
            ),
            "orphans left after gc": len(checks.strangers(store)),
            "findings of verify": len(findings),
            "unexpected exits of runners": sum(code not in ENDS for code in exits),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and report; return 0 only if each record is stored once and nothing else."""
    options = _parse(arguments)
    about = machine(0.0)
    with (
        tempfile.TemporaryDirectory(prefix="spark-soak-") as name,
        _object_store(options, Path(name)),
        ClusterKit(Path(name), config=CONFIG, has_proxies=False) as cluster,
    ):
        servers = ",".join(broker.address for broker in cluster.brokers.values())
        with connect_sync(servers) as client:
            client.streams.create(STREAM, partitions=PARTITIONS, replication=3)
        found = Soak(options, Path(name), cluster, servers).run()
    is_good = not any(found[one] for one in _MUST_BE_0)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": about, "seed": options.seed, "is_good": is_good, "counts": found}
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    rows = [
        [what, f"{count:,.0f}", "0" if what in _MUST_BE_0 else ""] for what, count in found.items()
    ]
    say(f"\n{table(['what', 'count', 'must be'], rows)}\n\nseed: {options.seed}")
    say(f"written: {options.json}")
    return 0 if is_good else 1


@contextmanager
def _object_store(options: argparse.Namespace, work_dir: Path) -> Iterator[None]:
    """Start an S3 server for the archive, if requested."""
    if not options.s3:
        yield
        return
    # Runners and readers read their keys from these.
    os.environ.update(ENVIRONMENT)
    with ObjectStore(work_dir) as server:
        options.root = "s3://soak/archive"
        options.store = [f"endpoint={server.url}", "allow_http=true", "region=us-east-1"]
        yield


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spark-soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30, help="of runners (30)")
    parser.add_argument("--records", type=int, default=5_000_000, help="to archive (5,000,000)")
    parser.add_argument("--seed", type=int, default=1, help="of moments and victims (1)")
    parser.add_argument("--rate", type=float, default=10_000.0, help="records a second (10,000)")
    parser.add_argument("--pause", type=float, default=12.0, help="seconds before a kill (0 to 12)")
    parser.add_argument("--every", type=float, default=0.1, help="seconds between rounds (0.1)")
    parser.add_argument("--s3", action="store_true", help="archive into an S3 server of its own")
    parser.add_argument("--root", default="", help="address of an empty archive (a new folder)")
    parser.add_argument(
        "--store", action="append", default=[], metavar="NAME=VALUE", help="option of its store"
    )
    parser.add_argument("--json", type=Path, default=Path(".bench/spark-soak.json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

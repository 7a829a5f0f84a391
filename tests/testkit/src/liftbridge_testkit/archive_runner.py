"""A process that archives a made-up stream into a folder, to be killed at any moment.

    python -m liftbridge_testkit.archive_runner <folder> <seed>

It writes real files, and a line to standard output before each step. It ends when the folder holds
a file `enough`.
"""

import sys
from pathlib import Path
from random import Random
from uuid import uuid4

from liftbridge_testkit.archive_runs import NOW_MS, STREAM, STREAM_ID, records
from pyspark_liftbridge.archive.commit import Proposal, commit
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.fence import Claim, Written, app_id
from pyspark_liftbridge.archive.files import Chance, Place, write_files
from pyspark_liftbridge.archive.stores.folder import LocalFolder
from pyspark_liftbridge.archive.stores.store import Store
from pyspark_liftbridge.archive.table import Making, open_table

PARTITIONS = (0, 1)
ROWS_MAX = 60
COMMITS_MAX = 100_000
ENOUGH = "enough"


def main() -> None:
    """Archive all partitions, as far as there is time."""
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    random = Random(seed)
    table = open_table(LocalFolder(folder), STREAM, STREAM_ID, Making(str(uuid4()), NOW_MS))
    snapshot = table.snapshot
    for _ in range(COMMITS_MAX):
        claims = []
        for partition in PARTITIONS:
            txn = snapshot.ends.get(app_id(STREAM_ID, partition))
            start = 0 if txn is None else txn.version
            span = delta.Span(partition, start, start + random.randint(1, ROWS_MAX))
            claims.append(Claim((_written(table.store, span),)))
        proposal = Proposal(run_id=uuid4().hex, stream_id=STREAM_ID, claims=claims, now_ms=NOW_MS)
        _tell("commits")
        snapshot = commit(table.store, snapshot, proposal).snapshot
        if (folder / ENOUGH).exists():
            return
        if snapshot.version - snapshot.checkpoint_version >= 5:
            _tell("checkpoint")
            snapshot = log.write_checkpoint(table.store, snapshot, now_ms=NOW_MS)


def _written(store: Store, span: delta.Span) -> Written:
    _tell("writes")
    batch = records(range(span.start, span.end), partition=span.partition)
    chance = Chance(lambda: uuid4().hex, NOW_MS)
    return write_files(store, Place(STREAM, STREAM_ID, span), [batch], chance)


def _tell(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

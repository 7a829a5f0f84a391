"""Measure the data source and the jobs of Spark (`make bench-spark`).

Run: `.spark/bin/python tests/bench/bench_spark.py [--only NAME ...]`, where PySpark is. One broker
and one Spark share the machine. A bulk read drops its rows behind Spark's pipe, and is compared in
the same run with a source that yields one prepared Arrow batch again and again, which is all that
the pipe carries, and with `spark.read.parquet` of the same rows. The processor time a row is told
by process. Writes `.bench/spark.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from liftbridge_client import connect_sync
from liftbridge_testkit.bench.report import machine, replace_marked
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.progress import say
from liftbridge_testkit.spark_bench.rows import tables
from liftbridge_testkit.spark_bench.works import Bench
from pyspark_liftbridge.session import session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftbridge_testkit.spark_bench.rows import Row

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/internals/performance.md"
BEGIN = "<!-- bench-spark: begin -->"
END = "<!-- bench-spark: end -->"
ROWS = 2_000_000
CONF = {
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
KAFKA = (
    f"Spark's Kafka source: not measured. It needs a Kafka broker and the jar "
    f"spark-sql-kafka-0-10_2.13 of {pyspark.__version__}, which PySpark does not bring."
)


def main() -> int:
    """Run the benchmark; 0 when everything could be measured, whatever the figures."""
    options = parse()
    load_before = os.getloadavg()[0]
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-", dir=options.work_dir) as name,
        Broker(Path(name), config={"cursors.stream.partitions": 1}) as broker,
        connect_sync(broker.address) as client,
    ):
        spark = session("local[2]", CONF)
        bench = Bench(spark, broker, client, Path(name), options.rows)
        for work, act in bench.works().items():
            if options.only and work not in options.only:
                continue
            found = act()
            say(tables(found))
            rows += found
        spark.stop()
    about = machine(load_before)
    document = {
        "machine": about,
        "pyspark": pyspark.__version__,
        "rows": options.rows,
        "figures": [{**row._asdict(), "is_met": row.is_met} for row in rows],
        "left_out": [KAFKA],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    shown = f"{tables(rows)}\n\n{textwrap.fill(KAFKA, 99)}\n\n{conditions(about, options.rows)}\n"
    say(f"\n{shown}\nwritten: {options.output}")
    if options.docs:
        replace_marked(PAGE, shown, begin_mark=BEGIN, end_mark=END)
        say(f"written: {PAGE}")
    return 0


def conditions(about: Mapping[str, str | float], rows: int) -> str:
    """Machine, versions and sizes in one paragraph."""
    text = (
        f"{str(about['time'])[:10]}, {about['cores']} cores ({about['cpu']}), "
        f"{about['memory_gib']} GiB, Linux {about['kernel']}, Python {about['python']}, PySpark "
        f"{pyspark.__version__}; {rows:,} rows in the large streams; load average "
        f"{about['load_before']:.1f} before and {about['load_after']:.1f} at the end."
    )
    return textwrap.fill(text, 99, break_long_words=False, break_on_hyphens=False)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of the large streams ({ROWS:,})")
    parser.add_argument("--only", nargs="+", help="these works only, as read-equal or archive")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / ".bench/spark.json")
    parser.add_argument("--docs", action="store_true", help=f"put the tables into {PAGE.name}")
    parser.add_argument("--work-dir", type=Path, help="where data is written (the system's /tmp)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

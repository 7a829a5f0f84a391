"""Answer one SQL statement over streams, each of which is a temporary view of its name."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from pyspark_liftbridge.plan.options import OptionError


class Answer(NamedTuple):
    """Rows of an answer.

    Attributes:
        rows: Values by the names of columns, as in JSON.
        is_cut: Whether there are more rows.
    """

    rows: Sequence[Mapping[str, object]]
    is_cut: bool


def query(
    spark: SparkSession,
    statement: str,
    streams: Sequence[str],
    source: Mapping[str, str],
    *,
    rows_max: int,
) -> Answer:
    """Run a statement and return its rows.

    Args:
        spark: The session, in which the views are created.
        statement: Statement in Spark SQL.
        streams: Names of streams.
        source: Options of the data source for the connection to brokers.
        rows_max: Maximum number of rows to return.

    Raises:
        OptionError: Two columns of the answer have one name.
        PySparkException: Spark cannot answer.
    """
    for name in streams:
        frame_of(spark, name, source).createOrReplaceTempView(quoted(name))
    return answer_of(spark.sql(statement), rows_max)


def frame_of(spark: SparkSession, stream: str, source: Mapping[str, str]) -> DataFrame:
    """Create the frame of a stream: the records committed when the frame is used."""
    return spark.read.format("liftbridge").options(**source).option("subscribe", stream).load()


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def answer_of(frame: DataFrame, rows_max: int) -> Answer:
    """Return the first rows of a frame; Spark converts rows of any type to JSON.

    Raises:
        OptionError: Two columns have one name.
    """
    names = frame.columns
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"two columns of the result are named {name!r}: rename one with AS")
    if not names:
        return Answer((), is_cut=False)
    record = sql.to_json(sql.struct("*"), {"ignoreNullFields": "false"})
    found = frame.limit(rows_max + 1).select(record.alias("record")).collect()
    rows = [json.loads(row.record) for row in found[:rows_max]]
    return Answer(rows, len(found) > rows_max)

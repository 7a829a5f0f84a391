"""The table of options: names, values, rules, defaults and meanings.

Options are parsed by this table, and the reference is checked against it. An option that has the
name of one of Spark's Kafka source also has its meaning.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from pyspark_liftbridge.plan import values
from pyspark_liftbridge.units import MILLISECOND_NS

EARLIEST: Final = -2
LATEST: Final = -1

STORE_OPTIONS: Final = ("endpoint", "region", "allow_http", "virtual_hosted_style_request")
"""Options of an object store that may appear in plans; secrets come from the environment."""


class Use(StrEnum):
    """Operation that an option applies to."""

    BATCH = "batch"
    STREAM = "stream"
    SINK = "sink"


READS: Final = frozenset({Use.BATCH, Use.STREAM})
_ALL: Final = frozenset(Use)


class Option(NamedTuple):
    """One option.

    Attributes:
        name: Name as users write it; Spark converts it to lower case.
        kind: Parser of its value.
        rule: Rule for a value, as part of a sentence.
        default: Default as text; `None` for none.
        uses: Operations that accept it.
        meaning: Description, for the reference.
    """

    name: str
    kind: values.Parse
    rule: str
    default: str | None
    uses: frozenset[Use]
    meaning: str


_FLAG: Final = "true or false"
_COUNT: Final = "a whole number of at least 1"
_OFFSETS: Final = 'earliest, latest or JSON such as {"orders": {"0": 123, "1": -2, "2": -1}}'
_TIMES: Final = 'JSON such as {"orders": {"0": 1764000000000}}, milliseconds since 1970'
_MILLISECONDS: Final = "milliseconds since 1970"
_PATH: Final = "a path"
_count = values.whole(1, values.OFFSET_MAX)
_time = values.whole(0, values.OFFSET_MAX // MILLISECOND_NS)


def _offsets(given: str) -> object:
    word = given.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    return values.numbers(EARLIEST)(given)


def _factor(given: str) -> int:
    value: int = values.whole(-1, 1_000)(given)
    if not value:
        raise ValueError
    return value


def _one(use: Use) -> frozenset[Use]:
    return frozenset({use})


OPTIONS: Final = (
    Option(
        "servers",
        values.names,
        "brokers as host:port, separated by commas",
        None,
        _ALL,
        "Brokers to connect to first; they return the addresses of all brokers.",
    ),
    Option(
        "tls.ca",
        values.text,
        _PATH,
        None,
        _ALL,
        "Certificate authorities that sign the brokers' certificates.",
    ),
    Option("tls.cert", values.text, _PATH, None, _ALL, "Client certificate."),
    Option("tls.key", values.text, _PATH, None, _ALL, "Private key of the client certificate."),
    Option(
        "token.file",
        values.text,
        _PATH,
        None,
        _ALL,
        "File with a bearer token, on every node; read again when it changes. Needs TLS.",
    ),
    Option(
        "subscribe",
        values.names,
        "names of streams, separated by commas, each once",
        None,
        READS,
        "Streams to read, with all their partitions.",
    ),
    Option(
        "subscribePattern",
        values.pattern,
        "a regular expression",
        None,
        READS,
        "Streams to read: those whose full name matches.",
    ),
    Option(
        "assign",
        values.partitions,
        'JSON such as {"orders": [0, 1]}',
        None,
        READS,
        "Partitions to read.",
    ),
    Option(
        "readPreference",
        values.choice("leader", "replica"),
        "leader or replica",
        "leader",
        READS,
        "Replica to read from: the leader, or any replica in sync.",
    ),
    Option(
        "startingOffsets",
        _offsets,
        _OFFSETS,
        None,
        READS,
        "Where a new query starts: by default at earliest for a batch, at latest for a stream. In "
        "JSON -2 means earliest and -1 latest. Partitions found later start at earliest.",
    ),
    Option(
        "startingTimestamp",
        _time,
        _MILLISECONDS,
        None,
        READS,
        "Start at the first record with this time or later; overrides the other two.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        values.numbers(0),
        _TIMES,
        None,
        READS,
        "The same for each partition; overrides startingOffsets.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        values.choice("error", "latest"),
        "error or latest",
        "error",
        READS,
        "Position if no record has that time or a later one.",
    ),
    Option(
        "endingOffsets",
        _offsets,
        _OFFSETS,
        None,
        _one(Use.BATCH),
        "Where a batch ends: latest by default; earliest is not allowed.",
    ),
    Option(
        "endingTimestamp",
        _time,
        _MILLISECONDS,
        None,
        _one(Use.BATCH),
        "End before the first record with this time or later; overrides the other two.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        values.numbers(0),
        _TIMES,
        None,
        _one(Use.BATCH),
        "The same for each partition; overrides endingOffsets.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        _count,
        _COUNT,
        None,
        _one(Use.STREAM),
        "Maximum number of offsets in a micro-batch, divided in proportion to the backlog; at "
        "least one for each partition that has any.",
    ),
    Option(
        "minOffsetsPerTrigger",
        _count,
        _COUNT,
        None,
        _one(Use.STREAM),
        "Number of offsets that a micro-batch waits for, up to maxTriggerDelay.",
    ),
    Option(
        "maxTriggerDelay",
        values.duration,
        "a time such as 500ms, 30s or 15m",
        "15m",
        _one(Use.STREAM),
        "Maximum wait for minOffsetsPerTrigger.",
    ),
    Option(
        "maxBytesPerTrigger",
        values.size,
        "a size such as 1048576, 512k or 64m",
        None,
        _one(Use.STREAM),
        "Approximate maximum size of a micro-batch in bytes, estimated from some records at its "
        "start.",
    ),
    Option(
        "minPartitions",
        _count,
        _COUNT,
        None,
        READS,
        "Number of tasks to aim for: large ranges are split until there are that many.",
    ),
    Option(
        "maxRecordsPerPartition",
        _count,
        _COUNT,
        None,
        READS,
        "Maximum number of offsets in a task.",
    ),
    Option(
        "minRecordsPerTask",
        values.whole(0, values.OFFSET_MAX),
        "a whole number of at least 0",
        "10000",
        READS,
        "Ranges with fewer offsets share a task; with 0 each range has its own.",
    ),
    Option(
        "includeHeaders",
        values.flag,
        _FLAG,
        "false",
        _ALL,
        "Whether the frame has a column headers.",
    ),
    Option(
        "columns",
        values.names,
        "names of columns, separated by commas, each once",
        None,
        READS,
        "Columns to read; no others are decoded.",
    ),
    Option(
        "schema",
        values.choice("liftbridge", "kafka"),
        "liftbridge or kafka",
        "liftbridge",
        READS,
        "Names of columns: those of this source, or those of Spark's Kafka source.",
    ),
    Option(
        "pushdown",
        values.flag,
        _FLAG,
        "false",
        _one(Use.BATCH),
        "Whether to push filters down; needs spark.sql.python.filterPushdown.enabled.",
    ),
    Option(
        "failOnDataLoss",
        values.flag,
        _FLAG,
        "true",
        READS,
        "Whether the query fails if offsets are missing or a stream was created again.",
    ),
    Option(
        "fetch.timeout",
        values.duration,
        "a time such as 500ms, 30s or 15m",
        "120s",
        READS,
        "How long a task waits for a broker that can serve its range.",
    ),
    Option(
        "fetch.retries",
        values.whole(0, 1_000),
        "a whole number from 0 to 1000",
        "3",
        READS,
        "How often a failed request for offsets is retried while a query is planned.",
    ),
    Option(
        "fetch.maxBytes",
        values.size,
        "a size such as 1048576, 512k or 64m",
        "4m",
        READS,
        "Maximum size of one fetch in bytes.",
    ),
    Option(
        "fetch.encoding",
        values.choice("auto", "raw", "subscribe"),
        "auto, raw or subscribe",
        "auto",
        READS,
        "How to fetch records: as stored batches, or one by one, which servers of the original "
        "need.",
    ),
    Option("resume", values.flag, _FLAG, "false", READS, "Whether to resume paused partitions."),
    Option(
        "cursorId",
        values.text,
        "a name",
        None,
        _one(Use.STREAM),
        "Cursor that shows the progress of the query and keeps where it started.",
    ),
    Option(
        "archive",
        values.text,
        "the address of an archive: a folder, s3://bucket/path, gs:// or az://",
        None,
        READS,
        "Archive of the streams: offsets below its end are read from it, later ones from brokers.",
    ),
    Option(
        "archive.endpoint",
        values.text,
        "a URL",
        None,
        READS,
        "URL of the object store of the archive; keys and secrets come from the environment.",
    ),
    Option("archive.region", values.text, "a name", None, READS, "Region of the object store."),
    Option(
        "archive.allow_http",
        values.choice("true", "false"),
        _FLAG,
        None,
        READS,
        "Whether the object store may be used without TLS.",
    ),
    Option(
        "archive.virtual_hosted_style_request",
        values.choice("true", "false"),
        _FLAG,
        None,
        READS,
        "Whether the bucket is part of the host name.",
    ),
    Option(
        "stream",
        values.text,
        "the name of a stream",
        None,
        _one(Use.SINK),
        "Stream to write to; overrides the column stream.",
    ),
    Option(
        "ackPolicy",
        values.choice("all", "leader"),
        "all or leader",
        "all",
        _one(Use.SINK),
        "Which replicas must have a record before it counts as written.",
    ),
    Option(
        "partitioner",
        values.choice("key", "roundrobin", "column"),
        "key, roundrobin or column",
        "key",
        _one(Use.SINK),
        "How records are assigned to partitions.",
    ),
    Option(
        "createStream.partitions",
        values.whole(1, values.PARTITION_MAX),
        _COUNT,
        None,
        _one(Use.SINK),
        "Create the stream, with this many partitions, if it does not exist.",
    ),
    Option(
        "createStream.replicationFactor",
        _factor,
        "a whole number from 1 to 1000, or -1 for all brokers",
        None,
        _one(Use.SINK),
        "Number of replicas of a stream that is created.",
    ),
    Option(
        "delivery",
        values.choice("at-least-once", "exactly-once"),
        "at-least-once or exactly-once",
        "at-least-once",
        _one(Use.SINK),
        "Whether a retried task may write its rows again, or writes each row once.",
    ),
)

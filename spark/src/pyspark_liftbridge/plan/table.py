"""The table of options: names, values, rules, defaults and meanings.

Options are read by it, and the reference is checked against it. A name that Spark's Kafka source
has means the same here.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from pyspark_liftbridge.plan import values

EARLIEST: Final = -2
LATEST: Final = -1

STORE_OPTIONS: Final = ("endpoint", "region", "allow_http", "virtual_hosted_style_request")
"""Options of an object store that may be written down; secrets come by the environment."""


class Use(StrEnum):
    """What options are given for."""

    BATCH = "batch"
    STREAM = "stream"
    SINK = "sink"


READS: Final = frozenset({Use.BATCH, Use.STREAM})
_ALL: Final = frozenset(Use)


class Option(NamedTuple):
    """One option.

    Attributes:
        name: As users write it; case does not matter, Spark lowers it.
        kind: Makes its value.
        rule: What a value must be, as part of a sentence.
        default: Value when it is not given, as text; `None` means none.
        uses: Where it may be given.
        meaning: What it does, for the reference.
    """

    name: str
    kind: values.Parse
    rule: str
    default: str | None
    uses: frozenset[Use]
    meaning: str


_FLAG: Final = "true or false"
_COUNT: Final = "a whole number of at least 1"
_OFFSETS: Final = 'earliest, latest or JSON as {"orders": {"0": 123, "1": -2, "2": -1}}'
_TIMES: Final = 'JSON as {"orders": {"0": 1764000000000}}, milliseconds since 1970'
_MILLISECONDS: Final = "milliseconds since 1970"
_PATH: Final = "a path"
_count = values.whole(1, values.OFFSET_MAX)
_time = values.whole(0, values.OFFSET_MAX // values.MILLISECOND_NS)


def _offsets(given: str) -> object:
    word = given.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    return values.numbers(EARLIEST)(given)


def _factor(given: str) -> int:
    found: int = values.whole(-1, 1_000)(given)
    if not found:
        raise ValueError
    return found


def _one(use: Use) -> frozenset[Use]:
    return frozenset({use})


OPTIONS: Final = (
    Option(
        "servers",
        values.names,
        "brokers as host:port with commas between",
        None,
        _ALL,
        "Brokers to connect to; the others are found by them.",
    ),
    Option("tls.ca", values.text, _PATH, None, _ALL, "Authorities of the brokers' certificates."),
    Option("tls.cert", values.text, _PATH, None, _ALL, "Certificate shown to brokers."),
    Option("tls.key", values.text, _PATH, None, _ALL, "Its private key."),
    Option(
        "subscribe",
        values.names,
        "names of streams with commas between, each once",
        None,
        READS,
        "Streams to read, all their partitions.",
    ),
    Option(
        "subscribePattern",
        values.pattern,
        "a regular expression",
        None,
        READS,
        "Streams to read: those whose whole name matches.",
    ),
    Option(
        "assign",
        values.partitions,
        'JSON as {"orders": [0, 1]}',
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
        "Who is read: the leader, or a replica in sync.",
    ),
    Option(
        "startingOffsets",
        _offsets,
        _OFFSETS,
        None,
        READS,
        "Where a new query begins: earliest by default for a batch, latest for a stream. In JSON "
        "-2 is earliest and -1 latest. Partitions found later begin at earliest.",
    ),
    Option(
        "startingTimestamp",
        _time,
        _MILLISECONDS,
        None,
        READS,
        "Begin at the first record of this time or later; goes before the other two.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        values.numbers(0),
        _TIMES,
        None,
        READS,
        "The same by partition; goes before startingOffsets.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        values.choice("error", "latest"),
        "error or latest",
        "error",
        READS,
        "What happens where no record is as late as the time.",
    ),
    Option(
        "endingOffsets",
        _offsets,
        _OFFSETS,
        None,
        _one(Use.BATCH),
        "Where a batch ends: latest by default, and never earliest.",
    ),
    Option(
        "endingTimestamp",
        _time,
        _MILLISECONDS,
        None,
        _one(Use.BATCH),
        "End before the first record of this time or later; goes before the other two.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        values.numbers(0),
        _TIMES,
        None,
        _one(Use.BATCH),
        "The same by partition; goes before endingOffsets.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        _count,
        _COUNT,
        None,
        _one(Use.STREAM),
        "Offsets of a micro-batch, shared out by backlog, at least one for each partition that "
        "has any.",
    ),
    Option(
        "minOffsetsPerTrigger",
        _count,
        _COUNT,
        None,
        _one(Use.STREAM),
        "Offsets that a micro-batch waits for, for maxTriggerDelay at most.",
    ),
    Option(
        "maxTriggerDelay",
        values.duration,
        "a time as 500ms, 30s or 15m",
        "15m",
        _one(Use.STREAM),
        "Longest wait for minOffsetsPerTrigger.",
    ),
    Option(
        "maxBytesPerTrigger",
        values.size,
        "a size as 1048576, 512k or 64m",
        None,
        _one(Use.STREAM),
        "Bytes of a micro-batch, about: by the mean size of some records where it begins.",
    ),
    Option(
        "minPartitions",
        _count,
        _COUNT,
        None,
        READS,
        "Tasks wished for: large ranges are split until there are as many.",
    ),
    Option("maxRecordsPerPartition", _count, _COUNT, None, READS, "Offsets of a task."),
    Option(
        "minRecordsPerTask",
        values.whole(0, values.OFFSET_MAX),
        "a whole number of at least 0",
        "10000",
        READS,
        "Ranges of fewer offsets share a task; 0 gives each its own.",
    ),
    Option(
        "includeHeaders", values.flag, _FLAG, "false", _ALL, "Whether there is a column headers."
    ),
    Option(
        "columns",
        values.names,
        "names of columns with commas between, each once",
        None,
        READS,
        "Columns that are read; nothing else is decoded.",
    ),
    Option(
        "schema",
        values.choice("liftbridge", "kafka"),
        "liftbridge or kafka",
        "liftbridge",
        READS,
        "Names of columns: ours, or those of Spark's Kafka source.",
    ),
    Option(
        "pushdown",
        values.flag,
        _FLAG,
        "false",
        _one(Use.BATCH),
        "Whether filters are pushed down; needs spark.sql.python.filterPushdown.enabled.",
    ),
    Option(
        "failOnDataLoss",
        values.flag,
        _FLAG,
        "true",
        READS,
        "Whether offsets that are gone, and streams made anew, fail the query.",
    ),
    Option(
        "fetch.timeout",
        values.duration,
        "a time as 500ms, 30s or 15m",
        "120s",
        READS,
        "How long a task waits for a broker that can serve it.",
    ),
    Option(
        "fetch.retries",
        values.whole(0, 1_000),
        "a whole number of 0 to 1000",
        "3",
        READS,
        "How often offsets are asked for again while a query is planned.",
    ),
    Option(
        "fetch.maxBytes",
        values.size,
        "a size as 1048576, 512k or 64m",
        "4m",
        READS,
        "Bytes asked for at a time.",
    ),
    Option(
        "fetch.encoding",
        values.choice("auto", "raw", "subscribe"),
        "auto, raw or subscribe",
        "auto",
        READS,
        "How records are fetched: as stored batches, or one by one, as servers of "
        "the original need it.",
    ),
    Option("resume", values.flag, _FLAG, "false", READS, "Whether paused partitions are resumed."),
    Option(
        "cursorId",
        values.text,
        "a name",
        None,
        _one(Use.STREAM),
        "Cursor that shows the progress, and keeps where the query began.",
    ),
    Option(
        "archive",
        values.text,
        "the address of an archive: a folder, s3://bucket/path, gs:// or az://",
        None,
        READS,
        "Archive of the streams: offsets below its end come from there, those above from brokers.",
    ),
    Option(
        "archive.endpoint",
        values.text,
        "a URL",
        None,
        READS,
        "Where the object store of the archive is; keys and secrets come by the environment.",
    ),
    Option("archive.region", values.text, "a name", None, READS, "Region of the object store."),
    Option(
        "archive.allow_http",
        values.choice("true", "false"),
        _FLAG,
        None,
        READS,
        "Whether the object store may be reached without TLS.",
    ),
    Option(
        "archive.virtual_hosted_style_request",
        values.choice("true", "false"),
        _FLAG,
        None,
        READS,
        "Whether the bucket is part of the host's name.",
    ),
    Option(
        "stream",
        values.text,
        "the name of a stream",
        None,
        _one(Use.SINK),
        "Stream to write to; goes before the column stream.",
    ),
    Option(
        "ackPolicy",
        values.choice("all", "leader"),
        "all or leader",
        "all",
        _one(Use.SINK),
        "Who must have a record before it counts as written.",
    ),
    Option(
        "partitioner",
        values.choice("key", "roundrobin", "column"),
        "key, roundrobin or column",
        "key",
        _one(Use.SINK),
        "How records are spread over partitions.",
    ),
    Option(
        "createStream.partitions",
        values.whole(1, values.PARTITION_MAX),
        _COUNT,
        None,
        _one(Use.SINK),
        "Create the stream with so many partitions when it is not there.",
    ),
    Option(
        "createStream.replicationFactor",
        _factor,
        "a whole number of 1 to 1000, or -1 for all brokers",
        None,
        _one(Use.SINK),
        "Replicas of a stream that is created.",
    ),
    Option(
        "delivery",
        values.choice("at-least-once", "exactly-once"),
        "at-least-once or exactly-once",
        "at-least-once",
        _one(Use.SINK),
        "What a repeated task does: may write again, or writes each row once.",
    ),
)

"""Options of the source and of the sink, checked before anything is read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from pyspark_liftbridge.plan import values
from pyspark_liftbridge.plan.table import (
    EARLIEST,
    LATEST,
    OPTIONS,
    STORE_OPTIONS,
    Option,
    Use,
)

SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
SPARKS_OWN: Final = frozenset(("checkpointlocation",))
"""Options of a query that Spark also passes to its sink, in lower case."""

SHOWN_MAX: Final = 80
"""Maximum number of characters of an invalid value in an error."""


class OptionError(ValueError):
    """An option is unknown, missing or wrong; the text names it, its value and the rule."""


_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}


class Places(NamedTuple):
    """Offsets or times at which partitions begin or end.

    Attributes:
        everywhere: Number for all partitions, `None` if each has its own.
        by_partition: Numbers by stream and partition.
        is_time: Whether the numbers are milliseconds since 1970, instead of offsets.
    """

    everywhere: int | None
    by_partition: Mapping[str, Mapping[int, int]]
    is_time: bool = False


class Limits(NamedTuple):
    """Bounds on the size of a micro-batch, `None` for no bound.

    Attributes:
        offsets_max: Maximum number of offsets.
        offsets_min: Minimum number of offsets to wait for.
        delay_ns: Maximum wait for them.
        bytes_max: Maximum number of bytes, by the mean size of records.
    """

    offsets_max: int | None
    offsets_min: int | None
    delay_ns: int
    bytes_max: int | None


class Split(NamedTuple):
    """Rules to divide ranges into tasks.

    Attributes:
        tasks_min: Number of tasks to aim for, `None` for any number.
        records_max: Maximum number of offsets of a task, `None` for no bound.
        records_min: Number of offsets below which ranges share a task; 0 for no sharing.
    """

    tasks_min: int | None
    records_max: int | None
    records_min: int


class Fetch(NamedTuple):
    """Options of fetching records.

    Attributes:
        timeout_ns: Maximum wait for a broker that can serve.
        retries: Number of retries of requests for offsets while a query is planned.
        bytes_max: Bytes to request at a time.
        encoding: `auto`, `raw` or `subscribe`.
        read_replica: Whether to read from in-sync replicas.
        resumes: Whether to resume paused partitions.
    """

    timeout_ns: int
    retries: int
    bytes_max: int
    encoding: str
    read_replica: bool
    resumes: bool


class Connection(NamedTuple):
    """Brokers, and files for TLS and with a bearer token, empty for none."""

    servers: tuple[str, ...]
    ca: str
    cert: str
    key: str
    token_file: str


class Subscription(NamedTuple):
    """Streams or partitions to read: exactly one field is not `None`."""

    streams: tuple[str, ...] | None
    pattern: re.Pattern[str] | None
    partitions: Mapping[str, tuple[int, ...]] | None


class ArchivePlace(NamedTuple):
    """Location of an archive.

    Attributes:
        root: Address of the archive.
        store: Options of an object store, as pairs of name and value.
    """

    root: str
    store: tuple[tuple[str, str], ...] = ()


class Shape(NamedTuple):
    """Columns of the rows.

    Attributes:
        columns: Requested columns, `None` for all of the schema.
        has_headers: Whether there is a column of headers.
        is_kafka_schema: Whether columns have the names of Spark's Kafka source.
    """

    columns: tuple[str, ...] | None
    has_headers: bool
    is_kafka_schema: bool


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of a batch or a stream, checked.

    Attributes:
        connection: Brokers.
        subscription: Streams or partitions to read.
        start: Start of a new query.
        end: End of a batch.
        is_latest_without_match: Whether a time after all records means latest.
        limits: Size of a micro-batch.
        split: Tasks.
        fetch: Options of fetching records.
        shape: Columns of the rows.
        has_pushdown: Whether filters are pushed down.
        fails_on_loss: Whether missing records fail the query.
        cursor_id: Cursor of the query, empty for none.
        archive: Archive to read below its end, `None` for none.
    """

    connection: Connection
    subscription: Subscription
    start: Places
    end: Places
    is_latest_without_match: bool
    limits: Limits
    split: Split
    fetch: Fetch
    shape: Shape
    has_pushdown: bool
    fails_on_loss: bool
    cursor_id: str
    archive: ArchivePlace | None


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Options of a sink, checked.

    Attributes:
        connection: Brokers.
        stream: Stream to write to, empty if a column names it.
        ack_policy: `all` or `leader`.
        partitioner: `key`, `roundrobin` or `column`.
        has_headers: Whether to write the column of headers.
        partitions: Partitions of a stream to create, `None` to create none.
        replication_factor: Replicas of that stream, -1 for all brokers, `None` for the brokers'
            default.
        is_exactly_once: Whether a repeated task writes each row once.
    """

    connection: Connection
    stream: str
    ack_policy: str
    partitioner: str
    has_headers: bool
    partitions: int | None
    replication_factor: int | None
    is_exactly_once: bool


def read_source(given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Check the options of a source.

    Args:
        given: Options as Spark passes them.
        is_stream: Whether it is a stream, not a batch.

    Raises:
        OptionError: An option is unknown, missing, invalid, or conflicts with another.
    """
    found = _values(given, Use.STREAM if is_stream else Use.BATCH)
    chosen = [name for name in SUBSCRIPTIONS if name.lower() in found]
    if len(chosen) != 1:
        others = f"not {' and '.join(chosen)}" if chosen else "but none is given"
        raise OptionError(
            f"exactly one of {', '.join(SUBSCRIPTIONS[:-1])} and {SUBSCRIPTIONS[-1]} "
            f"is required, {others}"
        )
    start = _places(found, "starting", LATEST if is_stream else EARLIEST)
    end = _places(found, "ending", LATEST)
    if not is_stream and _has(start, LATEST):
        raise OptionError("option 'startingOffsets': a batch cannot start at latest (-1)")
    if _has(end, EARLIEST):
        raise OptionError("option 'endingOffsets': a batch cannot end at earliest (-2)")
    limits = Limits(
        found.get("maxoffsetspertrigger"),
        found.get("minoffsetspertrigger"),
        found.get("maxtriggerdelay", 0),
        found.get("maxbytespertrigger"),
    )
    if (limits.offsets_min or 0) > (limits.offsets_max or values.OFFSET_MAX):
        raise OptionError(
            f"option 'minOffsetsPerTrigger': {limits.offsets_min} is more than "
            f"maxOffsetsPerTrigger, {limits.offsets_max}"
        )
    return SourceOptions(
        connection=_connection(found),
        subscription=Subscription(*(found.get(name.lower()) for name in SUBSCRIPTIONS)),
        start=start,
        end=end,
        is_latest_without_match=found["startingoffsetsbytimestampstrategy"] == "latest",
        limits=limits,
        split=Split(
            found.get("minpartitions"),
            found.get("maxrecordsperpartition"),
            found["minrecordspertask"],
        ),
        fetch=Fetch(
            found["fetch.timeout"],
            found["fetch.retries"],
            found["fetch.maxbytes"],
            found["fetch.encoding"],
            found["readpreference"] == "replica",
            found["resume"],
        ),
        shape=_shape(found),
        has_pushdown=found.get("pushdown", False),
        fails_on_loss=found["failondataloss"],
        cursor_id=found.get("cursorid", ""),
        archive=_archive(found),
    )


def read_shape(given: Mapping[str, str]) -> Shape:
    """Check the options of a source that determine its columns; Spark asks for these first.

    Raises:
        OptionError: An option is invalid; `read_source` checks the rest.
    """
    names = ("columns", "includeheaders", "schema")
    return _shape(
        _values({name: text for name, text in given.items() if name.lower() in names}, Use.BATCH)
    )


def _shape(found: Mapping[str, Any]) -> Shape:
    return Shape(found.get("columns"), found["includeheaders"], found["schema"] == "kafka")


def read_sink(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of a sink.

    Raises:
        OptionError: As for `read_source`.
    """
    found = _values(
        {name: text for name, text in given.items() if name.lower() not in SPARKS_OWN}, Use.SINK
    )
    is_exactly_once = found["delivery"] == "exactly-once"
    partitions = found.get("createstream.partitions")
    factor = found.get("createstream.replicationfactor")
    if is_exactly_once and found["ackpolicy"] != "all":
        raise OptionError("option 'delivery': exactly-once needs ackPolicy all")
    if factor is not None and partitions is None:
        raise OptionError("option 'createStream.replicationFactor' needs createStream.partitions")
    return SinkOptions(
        connection=_connection(found),
        stream=found.get("stream", ""),
        ack_policy=found["ackpolicy"],
        partitioner=found["partitioner"],
        has_headers=found["includeheaders"],
        partitions=partitions,
        replication_factor=factor,
        is_exactly_once=is_exactly_once,
    )


def _values(given: Mapping[str, str], use: Use) -> dict[str, Any]:
    """Parse values, by lower-case name, with defaults; options without either are absent."""
    shown = {name.lower(): name for name in given}
    for name, written in shown.items():
        _check_known(name, written, use)
    found: dict[str, Any] = {}
    for option in OPTIONS:
        name = option.name.lower()
        text = given[shown[name]] if name in shown else option.default
        if use in option.uses and text is not None:
            found[name] = _parsed(option, text)
    return found


def _check_known(name: str, shown: str, use: Use) -> None:
    option = _BY_NAME.get(name)
    if option is None:
        near = get_close_matches(name, _BY_NAME, n=1)
        hint = f"; did you mean {_BY_NAME[near[0]].name}?" if near else ""
        raise OptionError(f"unknown option {shown!r}{hint}")
    if use not in option.uses:
        raise OptionError(
            f"option {option.name!r} is for a {' or a '.join(sorted(option.uses))}, not for a {use}"
        )


def _parsed(option: Option, text: str) -> object:
    try:
        return option.kind(text)
    except ValueError:
        shown = text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."
        raise OptionError(f"option {option.name!r}: {shown!r} must be {option.rule}") from None


def _connection(found: Mapping[str, Any]) -> Connection:
    if "servers" not in found:
        raise OptionError("option 'servers' is missing: brokers as host:port, separated by commas")
    if ("tls.cert" in found) != ("tls.key" in found):
        raise OptionError("options 'tls.cert' and 'tls.key' must be set together")
    files = (found.get(name, "") for name in ("tls.ca", "tls.cert", "tls.key", "token.file"))
    return Connection(found["servers"], *files)


def _archive(found: Mapping[str, Any]) -> ArchivePlace | None:
    store = tuple(
        (name, found[f"archive.{name}"]) for name in STORE_OPTIONS if f"archive.{name}" in found
    )
    if "archive" in found:
        return ArchivePlace(found["archive"], store)
    if store:
        raise OptionError(f"option 'archive.{store[0][0]}' needs archive")
    return None


def _places(found: Mapping[str, Any], prefix: str, default: int) -> Places:
    """Determine where to start or end, by the option that takes precedence."""
    if f"{prefix}timestamp" in found:
        return Places(found[f"{prefix}timestamp"], {}, is_time=True)
    if f"{prefix}offsetsbytimestamp" in found:
        return Places(None, found[f"{prefix}offsetsbytimestamp"], is_time=True)
    offsets = found.get(f"{prefix}offsets", default)
    if isinstance(offsets, int):
        return Places(offsets, {})
    return Places(None, offsets)


def _has(places: Places, wanted: int) -> bool:
    """Return whether a partition begins or ends at a given special number."""
    if places.is_time:
        return False
    given = [one for by_number in places.by_partition.values() for one in by_number.values()]
    return wanted in (places.everywhere, *given)

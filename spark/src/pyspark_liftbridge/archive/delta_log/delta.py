"""Actions of a Delta log as values, and as the JSON lines of an entry.

Follows the Delta transaction log protocol, reader version 1 and writer version 2. Input is not
trusted: fields are checked, sizes bounded; an action of a later protocol is refused rather than
ignored, since its meaning is unknown. Unknown fields are ignored, as the protocol requires.

Extensions of this package: `commitInfo.liftbridge` (the run that wrote an entry, and its ranges)
and tags of `add` that begin with `liftbridge.` (range and digest of a file).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import unquote

from pyspark_liftbridge.archive.delta_log.fields import WHOLE_MAX, Fields, parse_json
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA_STRING
from pyspark_liftbridge.archive.digest import Digest
from pyspark_liftbridge.archive.errors import DamagedError, UnsupportedTableError

READER_VERSION: Final = 1
WRITER_VERSION: Final = 2
ENTRY_BYTES_MAX: Final = 64 << 20
ENTRY_ACTIONS_MAX: Final = 200_000
PARTITION_MAX: Final = 2**24 - 1
ENGINE: Final = "liftbridge-spark"

STREAM: Final = "liftbridge.stream"
STREAM_ID: Final = "liftbridge.streamId"
_OURS: Final = "liftbridge"
_TAGS: Final = tuple(f"liftbridge.{name}" for name in ("partition", "start", "end", "digest"))
_PATH: Final = re.compile(r"(?!/)(?![A-Za-z][A-Za-z0-9+.-]*:)[^\x00-\x1f\\]{1,1024}")


class Versions(NamedTuple):
    """Action `protocol`: versions that a reader and a writer of the table must support."""

    reader: int = READER_VERSION
    writer: int = WRITER_VERSION


@dataclass(frozen=True)
class Metadata:
    """Action `metaData`.

    Attributes:
        table_id: Random id, chosen when the table was created.
        configuration: Properties of the table; the stream and its id among them.
        created_ms: Time of creation, `None` if not recorded.
    """

    table_id: str
    configuration: Mapping[str, str]
    created_ms: int | None

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self.configuration[STREAM]

    @property
    def stream_id(self) -> int:
        """Id of the stream."""
        return int(self.configuration[STREAM_ID])


class Txn(NamedTuple):
    """Action `txn`: progress of an application.

    Attributes:
        app_id: Id of the application.
        version: Version of the application, which never decreases.
        updated_ms: Time of the update, `None` if not recorded.
    """

    app_id: str
    version: int
    updated_ms: int | None


class Stats(NamedTuple):
    """Statistics of a file, by which readers skip files.

    Attributes:
        rows: Number of records.
        partitions: Minimum and maximum partition, `None` if not recorded; likewise below.
        offsets: Minimum and maximum offset, inclusive.
        timestamps: Minimum and maximum time, as text in UTC.
    """

    rows: int
    partitions: tuple[int, int] | None
    offsets: tuple[int, int] | None
    timestamps: tuple[str, str] | None

    def text(self) -> str:
        """Return the text for `add.stats`."""
        known = {
            "partition": self.partitions,
            "offset": self.offsets,
            "timestamp": self.timestamps,
        }
        known_bounds = {name: both for name, both in known.items() if both is not None}
        return _json(
            {
                "numRecords": self.rows,
                "minValues": {name: both[0] for name, both in known_bounds.items()},
                "maxValues": {name: both[1] for name, both in known_bounds.items()},
            }
        )


class Origin(NamedTuple):
    """Range that this package wrote a file for; files joined by another writer have none.

    Attributes:
        partition: Number of the partition.
        start: First offset that it covers.
        end: First offset that it does not cover.
        digest: Digest of the records.
    """

    partition: int
    start: int
    end: int
    digest: Digest


@dataclass(frozen=True)
class Add:
    """Action `add`: a file is part of the table.

    Attributes:
        path: Path below the table, escaped as in a URL.
        size: Size in bytes.
        modified_ms: Time at which it was written.
        is_change: Whether it changes the table's records; false if files are joined.
        stats_text: Statistics as written, empty for none.
        stats: Statistics, parsed and checked; `None` for none.
        origin: Range and digest, `None` for a file of another writer.
        tags: All other tags.
    """

    path: str
    size: int
    modified_ms: int
    is_change: bool
    stats_text: str
    stats: Stats | None
    origin: Origin | None
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def object_path(self) -> str:
        """Path in the store."""
        return unquote(self.path)

    def all_tags(self) -> dict[str, str]:
        """Return all tags, including those of this package."""
        if self.origin is None:
            return dict(self.tags)
        partition, start, end, digest = self.origin
        values = (str(partition), str(start), str(end), digest.text())
        return {**self.tags, **dict(zip(_TAGS, values, strict=True))}


class Remove(NamedTuple):
    """Action `remove`: a file is no longer part of the table.

    Attributes:
        path: As in `Add`.
        deleted_ms: Time of the removal, 0 if not recorded.
        is_change: As in `Add`.
        size: Size in bytes, `None` if not recorded.
    """

    path: str
    deleted_ms: int
    is_change: bool
    size: int | None


class Span(NamedTuple):
    """Offsets of a partition, the end exclusive.

    Attributes:
        partition: Number of the partition.
        start: First offset.
        end: First offset not in it.
    """

    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Run:
    """Part of `commitInfo` that this package writes.

    Attributes:
        run_id: Random id of this entry, by which a writer recognizes its own entry.
        ranges: Archived offsets, in adjacent pieces; a piece may hold no record.
        gaps: Offsets that were lost before they could be archived.
        beginnings: Beginnings of partitions that begin after 0, as empty spans.
        cursors: Positions of consumers when the entry was written, by cursor and partition.
        compacted: Offsets where only the last record of each key, and records without a key, were
            kept.
    """

    run_id: str
    ranges: tuple[Span, ...] = ()
    gaps: tuple[Span, ...] = ()
    beginnings: tuple[Span, ...] = ()
    cursors: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    compacted: tuple[Span, ...] = ()


@dataclass(frozen=True)
class CommitInfo:
    """Action `commitInfo`: origin of an entry.

    Attributes:
        timestamp_ms: Time of the entry, `None` if not recorded.
        operation: Name of the operation, for readers of the history.
        engine: Program that wrote the entry, empty if not recorded.
        run: Data of this package, `None` for another writer's entry.
    """

    timestamp_ms: int | None
    operation: str
    engine: str
    run: Run | None


Action = Versions | Metadata | Txn | Add | Remove | CommitInfo


def encode(actions: Iterable[Action]) -> bytes:
    """Encode an entry of the log: a line of JSON for each action."""
    return "".join(f"{_json(_as_json(action))}\n" for action in actions).encode()


def _json(found: object) -> str:
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def _as_json(action: Action) -> dict[str, object]:
    name = _NAMES[type(action)]
    return {name: {key: value for key, value in as_members(action).items() if value is not None}}


def as_members(action: Action) -> dict[str, object]:
    """Convert an action to members with the protocol's names; `None` if not recorded."""
    match action:
        case Versions():
            return {"minReaderVersion": action.reader, "minWriterVersion": action.writer}
        case Metadata():
            return {
                "id": action.table_id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": SCHEMA_STRING,
                "partitionColumns": [],
                "configuration": dict(action.configuration),
                "createdTime": action.created_ms,
            }
        case Txn():
            return {
                "appId": action.app_id,
                "version": action.version,
                "lastUpdated": action.updated_ms,
            }
        case Add():
            return {
                "path": action.path,
                "partitionValues": {},
                "size": action.size,
                "modificationTime": action.modified_ms,
                "dataChange": action.is_change,
                "stats": action.stats_text or None,
                "tags": action.all_tags() or None,
            }
        case Remove():
            return {
                "path": action.path,
                "deletionTimestamp": action.deleted_ms,
                "dataChange": action.is_change,
                "size": action.size,
            }
        case CommitInfo():
            return {
                "timestamp": action.timestamp_ms,
                "operation": action.operation,
                "operationParameters": {},
                "engineInfo": action.engine or None,
                _OURS: None if action.run is None else _run_members(action.run),
            }


def _run_members(run: Run) -> dict[str, object]:
    compacted = [span._asdict() for span in run.compacted]
    return {
        "runId": run.run_id,
        "ranges": [span._asdict() for span in run.ranges],
        "gaps": [span._asdict() for span in run.gaps],
        "beginnings": [span._asdict() for span in run.beginnings],
        "cursors": {
            name: {str(number): at for number, at in positions.items()}
            for name, positions in run.cursors.items()
        },
        **({"compacted": compacted} if compacted else {}),
    }


def decode(data: bytes, version: int) -> tuple[Action, ...]:
    """Decode the actions of an entry, in their order.

    Args:
        data: Content of the entry.
        version: Number of the entry, for errors.

    Raises:
        DamagedError: The bytes are not an entry; the text names the line and the field.
        UnsupportedTableError: The actions are of a later protocol.
    """
    place = f"entry {version}"
    lines = data.split(b"\n")
    if lines and not lines[-1].strip():
        lines.pop()  # the last line may have no newline
    if not 0 < len(lines) <= ENTRY_ACTIONS_MAX:
        raise DamagedError(f"{place}: {len(lines)} actions, must be 1 to {ENTRY_ACTIONS_MAX}")
    return tuple(_decode_line(line, f"{place}, line {at}") for at, line in enumerate(lines, 1))


def adds_of(text: str) -> tuple[Add, ...]:
    """Parse the files that a task has reported as actions; none for an empty text."""
    actions = decode(text.encode(), 0) if text else ()
    return tuple(action for action in actions if isinstance(action, Add))


def _decode_line(line: bytes, place: str) -> Action:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DamagedError(f"{place}: not UTF-8 ({error.reason})") from error
    members = Fields.of(parse_json(text, place), place).members
    if len(members) != 1:
        raise DamagedError(f"{place}: {len(members)} actions in a line, must be one")
    ((name, found),) = members.items()
    return decode_action(name, found, place)


def decode_action(name: str, found: object, place: str) -> Action:
    """Decode one action.

    Args:
        name: Name of the action in the protocol.
        found: Members of the action.
        place: Location of the action, for errors.

    Raises:
        DamagedError: A member is missing or wrong.
        UnsupportedTableError: The action is of a later protocol.
    """
    decoder = _DECODERS.get(name)
    if decoder is None:
        raise UnsupportedTableError(
            f"{place}: action {name[:60]!a} is not part of Delta reader 1 and writer 2; "
            "this package does not support it, a later one may"
        )
    return decoder(Fields.of(found, f"{place}, {name}"))


def _versions(fields: Fields) -> Versions:
    versions = Versions(
        fields.whole("minReaderVersion", least=1), fields.whole("minWriterVersion", least=1)
    )
    if versions.reader > READER_VERSION or versions.writer > WRITER_VERSION:
        raise UnsupportedTableError(
            f"{fields.place}: the table needs reader {versions.reader} and writer "
            f"{versions.writer}, this package is reader {READER_VERSION} and writer "
            f"{WRITER_VERSION}: another writer has raised "
            "them; archive to another root, or with a later package"
        )
    return versions


def _metadata(fields: Fields) -> Metadata:
    if fields.inner("format").text("provider") != "parquet":
        raise fields.wrong("format", "parquet")
    if fields.items("partitionColumns"):
        raise fields.wrong("partitionColumns", "empty: an archive has no partition columns")
    place = f"{fields.place}, schemaString"
    if parse_json(fields.text("schemaString"), place) != json.loads(SCHEMA_STRING):
        raise fields.wrong("schemaString", "that of an archive")
    configuration = fields.texts("configuration")
    stream_id = configuration.get(STREAM_ID, "")
    if not configuration.get(STREAM) or not _is_number(stream_id):
        raise fields.wrong("configuration", f"with {STREAM}, and a number as {STREAM_ID}")
    return Metadata(fields.text("id"), configuration, fields.whole_or_none("createdTime"))


def _txn(fields: Fields) -> Txn:
    return Txn(fields.text("appId"), fields.whole("version"), fields.whole_or_none("lastUpdated"))


def _add(fields: Fields) -> Add:
    if fields.inner("partitionValues").members:
        raise fields.wrong("partitionValues", "empty: an archive has no partition columns")
    if fields.has("deletionVector"):
        raise UnsupportedTableError(f"{fields.place}: deletion vectors need reader 3")
    text = fields.text_or("stats", "")
    tags = fields.texts("tags")
    return Add(
        path=_path(fields),
        size=fields.whole("size"),
        modified_ms=fields.whole("modificationTime"),
        is_change=fields.flag("dataChange"),
        stats_text=text,
        stats=_stats(text, f"{fields.place}, stats") if text else None,
        origin=_origin(tags, f"{fields.place}, tags"),
        tags={name: value for name, value in tags.items() if name not in _TAGS},
    )


def _path(fields: Fields) -> str:
    path = fields.text("path")
    parts = unquote(path).split("/")
    if not _PATH.fullmatch(unquote(path)) or not {"", ".", ".."}.isdisjoint(parts):
        raise fields.wrong("path", "a path below the table")
    return path


def _stats(text: str, place: str) -> Stats | None:
    fields = Fields.of(parse_json(text, place), place)
    least, most = fields.inner("minValues"), fields.inner("maxValues")

    def both(name: str) -> tuple[int, int] | None:
        if not (least.has(name) and most.has(name)):
            return None
        low = least.whole(name)
        return low, most.whole(name, least=low)

    times = None
    if least.has("timestamp") and most.has("timestamp"):
        times = (least.text("timestamp"), most.text("timestamp"))
    if not fields.has("numRecords"):
        return None
    return Stats(fields.whole("numRecords"), both("partition"), both("offset"), times)


def _origin(tags: Mapping[str, str], place: str) -> Origin | None:
    texts = [tags.get(name) for name in _TAGS]
    if all(text is None for text in texts):
        return None
    partition, start, end, digest = (text or "" for text in texts)
    summed = Digest.parse(digest)
    if not all(map(_is_number, (partition, start, end))) or summed is None:
        raise DamagedError(f"{place}: range and digest must be numbers, not {texts!r:.200}")
    origin = Origin(int(partition), int(start), int(end), summed)
    if not origin.start < origin.end or origin.partition > PARTITION_MAX:
        raise DamagedError(f"{place}: {origin.start} to {origin.end} is not a range of a partition")
    return origin


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,19}", text) is not None and int(text) <= WHOLE_MAX


def _remove(fields: Fields) -> Remove:
    return Remove(
        _path(fields),
        fields.whole_or_none("deletionTimestamp") or 0,
        fields.flag("dataChange"),
        fields.whole_or_none("size"),
    )


def _commit_info(fields: Fields) -> CommitInfo:
    ours = fields.inner(_OURS) if fields.has(_OURS) else None
    return CommitInfo(
        fields.whole_or_none("timestamp"),
        fields.text_or("operation", ""),
        fields.text_or("engineInfo", ""),
        None if ours is None else _run(ours),
    )


def _run(fields: Fields) -> Run:
    cursors = fields.inner("cursors")
    return Run(
        fields.text("runId"),
        _spans(fields, "ranges", shortest=1),
        _spans(fields, "gaps", shortest=1),
        _spans(fields, "beginnings", shortest=0),
        {name: _positions(cursors.inner(name)) for name in cursors.members},
        _spans(fields, "compacted", shortest=1),
    )


def _positions(fields: Fields) -> dict[int, int]:
    if not all(map(_is_number, fields.members)):
        raise DamagedError(f"{fields.place}: the names must be numbers of partitions")
    return {int(name): fields.whole(name) for name in fields.members}


def _spans(fields: Fields, name: str, *, shortest: int) -> tuple[Span, ...]:
    spans = []
    for at, found in enumerate(fields.items(name)):
        one = Fields.of(found, f"{fields.place}, {name} {at}")
        start = one.whole("start")
        end = one.whole("end", least=start + shortest)
        spans.append(Span(one.whole("partition", most=PARTITION_MAX), start, end))
    return tuple(spans)


_NAMES: Final[Mapping[type[Action], str]] = {
    Versions: "protocol",
    Metadata: "metaData",
    Txn: "txn",
    Add: "add",
    Remove: "remove",
    CommitInfo: "commitInfo",
}
_DECODERS: Final[Mapping[str, Callable[[Fields], Action]]] = {
    "protocol": _versions,
    "metaData": _metadata,
    "txn": _txn,
    "add": _add,
    "remove": _remove,
    "commitInfo": _commit_info,
}


def name_of(action: Action) -> str:
    """Return the name of an action in the protocol."""
    return _NAMES[type(action)]

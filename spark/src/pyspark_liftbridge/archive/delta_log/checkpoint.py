"""A checkpoint of a Delta log: actions as rows of a Parquet file, one struct column for each kind.

Actions read from a checkpoint are checked by the same rules as an entry.
"""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_liftbridge.archive.delta_log import delta
from pyspark_liftbridge.archive.delta_log.fields import Fields
from pyspark_liftbridge.archive.errors import DamagedError

EVERY: Final = 100
"""Entries from one checkpoint to the next."""

FORGET_AFTER_MS: Final = 7 * 86_400_000
"""Removed files are forgotten after a week, as is usual with Delta."""

ACTIONS_MAX: Final = 10_000_000

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_KINDS: Final = {
    "protocol": pa.struct(
        [
            pa.field("minReaderVersion", pa.int32(), nullable=False),
            pa.field("minWriterVersion", pa.int32(), nullable=False),
        ]
    ),
    "metaData": pa.struct(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("description", pa.string()),
            pa.field(
                "format",
                pa.struct(
                    [pa.field("provider", pa.string(), nullable=False), pa.field("options", _TEXTS)]
                ),
            ),
            pa.field("schemaString", pa.string(), nullable=False),
            pa.field("partitionColumns", pa.list_(pa.field("element", pa.string()))),
            pa.field("configuration", _TEXTS),
            pa.field("createdTime", pa.int64()),
        ]
    ),
    "txn": pa.struct(
        [
            pa.field("appId", pa.string(), nullable=False),
            pa.field("version", pa.int64(), nullable=False),
            pa.field("lastUpdated", pa.int64()),
        ]
    ),
    "add": pa.struct(
        [
            pa.field("path", pa.string(), nullable=False),
            pa.field("partitionValues", _TEXTS),
            pa.field("size", pa.int64(), nullable=False),
            pa.field("modificationTime", pa.int64(), nullable=False),
            pa.field("dataChange", pa.bool_(), nullable=False),
            pa.field("stats", pa.string()),
            pa.field("tags", _TEXTS),
        ]
    ),
    "remove": pa.struct(
        [
            pa.field("path", pa.string(), nullable=False),
            pa.field("deletionTimestamp", pa.int64()),
            pa.field("dataChange", pa.bool_(), nullable=False),
            pa.field("size", pa.int64()),
        ]
    ),
}
_SCHEMA: Final = pa.schema([pa.field(name, kind) for name, kind in _KINDS.items()])
_MAPS: Final = ("configuration", "partitionValues", "tags", "options")


def encode(actions: Sequence[delta.Action]) -> bytes:
    """Encode the actions of a snapshot as a checkpoint."""
    rows = [{delta.name_of(action): delta.as_members(action)} for action in actions]
    sink = io.BytesIO()
    # Readers of Delta expect only Parquet's basic features.
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), sink, compression="snappy")
    return sink.getvalue()


def encode_hint(version: int, actions: Sequence[delta.Action], size: int) -> bytes:
    """Encode the `_last_checkpoint` that refers to a checkpoint."""
    return json.dumps(
        {
            "version": version,
            "size": len(actions),
            "sizeInBytes": size,
            "numOfAddFiles": sum(isinstance(action, delta.Add) for action in actions),
        }
    ).encode()


def decode(data: bytes) -> tuple[delta.Action, ...]:
    """Decode the actions of a checkpoint.

    Args:
        data: A Parquet file.

    Raises:
        DamagedError: It is not a checkpoint, or an action in it is invalid.
        UnsupportedTableError: It is of a later protocol.
    """
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        count = file.metadata.num_rows
        if count > ACTIONS_MAX:
            raise DamagedError(f"{count} actions, more than {ACTIONS_MAX}")
        rows = file.read().to_pylist()
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise DamagedError(f"not a readable Parquet file ({error})") from error
    return tuple(_action(row, f"row {at}") for at, row in enumerate(rows, 1))


def _action(row: Mapping[str, object], place: str) -> delta.Action:
    there = {name: found for name, found in row.items() if found is not None}
    if len(there) != 1:
        raise DamagedError(f"{place}: {len(there)} actions in a row, must be one")
    ((name, found),) = there.items()
    return delta.decode_action(name, _members(Fields.of(found, place)), place)


def _members(fields: Fields) -> dict[str, object]:
    """Convert maps, which Parquet returns as pairs, to objects."""
    members = dict(fields.members)
    for name in _MAPS:
        if name in members:
            members[name] = _object(fields, name)
    if "format" in members:
        members["format"] = _members(fields.inner("format"))
    return members


def _object(fields: Fields, name: str) -> dict[str, object]:
    pairs = fields.items(name)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise fields.wrong(name, "a map")
    return {str(pair[0]): pair[1] for pair in pairs if isinstance(pair, tuple)}

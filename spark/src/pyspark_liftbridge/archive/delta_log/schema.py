"""Columns of an archive's table, as Arrow and as Delta schema.

They are the columns of the data source for a stream (a test compares both).
"""

import json
from typing import Final

import pyarrow as pa

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

SCHEMA: Final = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("timestamp_ns", pa.int64(), nullable=False),
        pa.field("key", pa.binary(), nullable=True),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("reply_subject", pa.string(), nullable=False),
        pa.field("headers", pa.list_(pa.field("element", _HEADER)), nullable=False),
        pa.field("leader_epoch", pa.int64(), nullable=True),
    ]
)

_WORDS: Final = {
    pa.string(): "string",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.binary(): "binary",
}


def headers_of_client(column: pa.ListArray) -> pa.MapArray:
    """Convert headers to the client's type, a map, without copying buffers."""
    entries = column.values
    return pa.MapArray.from_arrays(column.offsets, entries.field("key"), entries.field("value"))


def _struct(fields: list[pa.Field]) -> dict[str, object]:
    return {
        "type": "struct",
        "fields": [
            {
                "name": field.name,
                "type": _word(field.type),
                "nullable": field.nullable,
                "metadata": {},
            }
            for field in fields
        ],
    }


def _word(kind: pa.DataType) -> object:
    if pa.types.is_list(kind):
        inner = kind.value_field
        return {
            "type": "array",
            "elementType": _struct(list(inner.type)),
            "containsNull": inner.nullable,
        }
    return _WORDS[kind]


SCHEMA_STRING: Final = json.dumps(_struct(list(SCHEMA)), separators=(",", ":"))
"""Schema text in a table's `metaData`."""

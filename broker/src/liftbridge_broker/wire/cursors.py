"""Value of a record in `__cursors` <-> `Cursor` (field numbers of the original)."""

from google.protobuf.message import DecodeError

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.groups.cursors import Cursor
from liftbridge_proto.internal.v1 import metadata_pb2


def encode_cursor(cursor: Cursor) -> bytes:
    """Encode the value of the record that stores a cursor."""
    return metadata_pb2.Cursor(
        stream=cursor.stream,
        partition=cursor.partition,
        cursor_id=cursor.cursor_id,
        offset=cursor.offset,
        stream_id=cursor.stream_id,
        unclean_epoch=cursor.unclean_epoch,
    ).SerializeToString(deterministic=True)


def decode_cursor(value: bytes) -> Cursor:
    """Decode the cursor in the value of a record.

    Raises:
        CorruptionError: It is not a cursor; anyone may publish to the subject of `__cursors`,
            so the caller skips the record.
    """
    try:
        message = metadata_pb2.Cursor.FromString(value)
    except DecodeError as error:
        raise CorruptionError(f"value of a cursor: {error}") from error
    return Cursor(
        message.stream,
        message.partition,
        message.cursor_id,
        message.offset,
        message.stream_id,
        message.unclean_epoch,
    )

"""Stored batches as Arrow IPC, for readers that want columns (`FetchBatches`).

pyarrow is loaded at the first request: it costs memory that a broker without such readers keeps.
"""

from liftbridge_broker.errors import FailedPreconditionError
from liftbridge_broker.logformat.batch import HEADER_SIZE, walk
from liftbridge_broker.logformat.records import FRAME_PREFIX, FRAME_PREFIX_SIZE
from liftbridge_proto import api_pb2


def encode_arrow(data: bytes) -> bytes:
    """One Arrow IPC stream with all records of whole batches.

    Columns: offset int64, timestamp timestamp[ns, UTC], key binary (null without one), value
    binary, headers map<string, binary>.

    Raises:
        FailedPreconditionError: The broker was installed without pyarrow.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - see the module
    except ImportError as error:
        raise FailedPreconditionError("this broker is installed without pyarrow") from error
    messages = _messages(data)
    columns = [
        pa.array([message.offset for message in messages], pa.int64()),
        pa.array([message.timestamp for message in messages], pa.timestamp("ns", "UTC")),
        pa.array([message.key or None for message in messages], pa.binary()),
        pa.array([message.value for message in messages], pa.binary()),
        pa.array(
            [list(message.headers.items()) for message in messages],
            pa.map_(pa.string(), pa.binary()),
        ),
    ]
    names = ["offset", "timestamp", "key", "value", "headers"]
    batch = pa.record_batch(columns, names=names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _messages(data: bytes) -> list[api_pb2.Message]:
    """Every record of whole batches, decoded."""
    parse = api_pb2.Message.FromString
    unpack = FRAME_PREFIX.unpack_from
    messages: list[api_pb2.Message] = []
    for start, header in walk(data, 0, len(data)):
        position = start + HEADER_SIZE
        for _ in range(header.count):
            _, length = unpack(data, position)
            position += FRAME_PREFIX_SIZE
            messages.append(parse(data[position : position + length]))
            position += length
    return messages

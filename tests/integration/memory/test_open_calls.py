"""An open call takes no more memory than it is counted with."""

import asyncio
import gc
import tracemalloc
from functools import partial

import pytest

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.grpc import literal
from liftbridge_broker.http2.stream import STREAM_BYTES
from liftbridge_broker.server.memory import MemoryBroker
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.grpc_echo import eventually
from liftbridge_testkit.http2_peer import Http2Peer

CALLS = 400
NOW_NS = 1_700_000_000_000_000_000
PATHS = [
    f"/{service.full_name}/{method.name}"
    for file in (api_pb2, data_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.client_streaming or method.server_streaming
]


def silent_calls(path: str) -> bytes:
    """Calls with a deadline of which nothing but the head is sent."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, "grpc-timeout": "1H"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    block = b"".join(literal(name.encode(), value.encode()) for name, value in fields.items())
    return b"".join(
        frames.frame(frames.HEADERS, frames.FLAG_END_HEADERS, one, block)
        for one in range(1, 2 * CALLS, 2)
    )


def has_opened(broker: MemoryBroker, calls: int) -> bool:
    assert broker._life is not None
    assert broker._life._api is not None
    return broker._life._api.server.stats.streams_open == calls


@pytest.mark.parametrize("path", PATHS)
async def test_silent_call_takes_no_more_than_it_counts(path: str) -> None:
    broker = MemoryBroker({}, NOW_NS)
    await broker.start()
    try:
        sent = silent_calls(path)
        gc.collect()
        tracemalloc.start()
        _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(Http2Peer.hello() + sent)
        await eventually(partial(has_opened, broker, CALLS))
        taken = tracemalloc.get_traced_memory()[0]
        writer.transport.abort()
        await eventually(partial(has_opened, broker, 0))
    finally:
        tracemalloc.stop()
        await broker.aclose()
    assert taken / CALLS <= STREAM_BYTES + 200  # and the connection

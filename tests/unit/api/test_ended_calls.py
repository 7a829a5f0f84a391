"""A call of any method that ends leaves nothing to the garbage collector.

Clients end calls by the thousand a second. Cycles among what served them would be collected in
pauses that cost a broker its leaderships.
"""

import asyncio
import gc

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from liftbridge_broker.api.grpc.connection import GrpcConnection
from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.http2.frames import Http2Code, rst_stream_frame
from liftbridge_broker.server.admin import register_admin
from liftbridge_broker.server.services import make_api
from liftbridge_testkit.admin_calls import admin_of
from liftbridge_testkit.client_calls import WorldClock
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.http2_peer import Http2Peer, RecordingTransport
from liftbridge_testkit.request_lists import SERVICES, named

CALLS = 4
METHODS = [method for service in SERVICES for method in service.methods]


@pytest.fixture(autouse=True, scope="module")
def _only_new_objects() -> None:
    """Let the collections of this module walk what it makes, not all that other tests left."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("sent", ["nothing", "an empty request", "a request"])
@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.full_name)
async def test_call_that_is_reset_leaves_no_cycle(method: MethodDescriptor, sent: str) -> None:
    world = ClusterWorld(1)
    world.create("s", factor=1)
    world.commit(b"v")
    api = make_api(BrokerOptions(), world[1].node, WorldClock(world), world[1], Health())
    register_admin(api.server, admin_of(world, 1).context)
    connection, peer = GrpcConnection(api.server), Http2Peer()
    connection.connection_made(RecordingTransport())
    connection.data_received(peer.hello())
    request = GetMessageClass(method.input_type)()
    body = (named(request) if sent == "a request" else request).SerializeToString()
    path = f"/{method.containing_service.full_name}/{method.name}"
    gc.collect()
    gc.disable()
    try:
        for stream_id in range(1, 2 * CALLS, 2):
            connection.data_received(peer.request(stream_id, path))
            if sent != "nothing":
                connection.data_received(peer.message(stream_id, body, ends=True))
            await asyncio.sleep(0)
            connection.data_received(rst_stream_frame(stream_id, Http2Code.CANCEL))
            await asyncio.sleep(0)
        assert gc.collect() < CALLS
    finally:
        gc.enable()
        connection.connection_lost(None)

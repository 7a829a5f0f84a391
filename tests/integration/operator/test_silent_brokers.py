"""Brokers of which one takes connections and says nothing, as one whose node is gone."""

import asyncio
from collections import Counter

import grpc
import grpc.aio
import pytest

from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.pipelines.grpc_positions import BOUNDS, CURSOR, STREAMS, GrpcPositions
from liftbridge_operator.pipelines.port import SilentError
from liftbridge_operator.pipelines.positions import Place, Position
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

REQUESTS = {
    BOUNDS: data_pb2.PartitionBoundsRequest,
    CURSOR: api_pb2.FetchCursorRequest,
    STREAMS: data_pb2.ListStreamsRequest,
}
PARTITIONS = 8
CALL_SECONDS = 1.0


class Speaker(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic when it runs
    """A broker that leads each second partition, and the cursors of those.

    Attributes:
        turn: Which of the two halves; None says nothing at all.
        asked: How often, by method.
    """

    def __init__(self, turn):
        self.turn = turn
        self.asked = Counter()

    def service(self, details):
        async def answer(request, context):
            self.asked[details.method] += 1
            if self.turn is None:
                await asyncio.Event().wait()
            return await self._answer(details.method, request, context)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=REQUESTS[details.method].FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    async def _answer(self, method, request, context):
        if method == STREAMS:
            listed = data_pb2.ListStreamsResponse()
            one = listed.streams.add(partitions=PARTITIONS)
            one.settings.name = request.prefix
            return listed
        if method == BOUNDS:
            told = data_pb2.PartitionBoundsResponse()
            for number in range(self.turn, PARTITIONS, 2):
                told.partitions.add(partition=number, high_watermark=9)
            return told
        if request.partition % 2 != self.turn:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not the leader")
        return api_pb2.FetchCursorResponse(offset=5)


@pytest.fixture
async def served():
    """Addresses of three brokers, the first of which is silent, and the brokers."""
    speakers = [Speaker(None), Speaker(0), Speaker(1)]
    servers, endpoints = [], []
    for number, speaker in enumerate(speakers):
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([speaker])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
        endpoints.append(Endpoint(f"b-{number}", f"127.0.0.1:{port}"))
    yield endpoints, speakers
    for server in servers:
        await server.stop(None)


@pytest.fixture
async def brokers(served):
    """What asks them, and the brokers."""
    endpoints, speakers = served
    made = GrpcPositions(endpoints, call_seconds=CALL_SECONDS)
    yield made, speakers
    await made.close()


async def test_silent_broker_costs_the_time_of_one_call(brokers):
    made, speakers = brokers
    async with asyncio.timeout(6 * CALL_SECONDS):
        for number in range(10):
            found = await made.positions(f"s-{number}", "c")
            assert found[Place(f"s-{number}", 7)] == Position(0, 9, 4)
            assert len(found) == PARTITIONS
    silent = speakers[0].asked
    assert (silent[STREAMS], silent[CURSOR]) == (1, 0)


async def test_broker_that_has_answered_is_asked_first_over_new_connections(served, brokers):
    endpoints, speakers = served
    made, _ = brokers
    await made.positions("orders", "c")
    again = GrpcPositions(endpoints, first=made.answered, call_seconds=CALL_SECONDS)
    found = await again.positions("orders", "c")
    await again.close()
    assert len(found) == PARTITIONS
    assert speakers[0].asked[STREAMS] == 1


async def test_partition_of_a_silent_broker_is_waited_for(brokers):
    made, speakers = brokers
    speakers[2].turn = None
    with pytest.raises(SilentError, match="partition 1"):
        await made.positions("orders", "c")

"""Settings that an older broker cannot read: refused before anything is in the metadata."""

import pytest

from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.controller.commands import RegisterBroker
from liftbridge_broker.errors import GrpcStatus, LiftbridgeError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.server.services import make_api
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.client_calls import WorldClock
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.served_calls import Served

OPTIONS = data_pb2.StreamOptions(ack_reply=True)
REQUESTS = {
    "CreateStream": data_pb2.CreateStreamRequest(
        stream=api_pb2.CreateStreamRequest(name="new", subject="new"), options=OPTIONS
    ),
    "AlterStream": data_pb2.AlterStreamRequest(name="s", options=OPTIONS),
}


@pytest.fixture
def served() -> Served:
    world = ClusterWorld(1)
    world.create(factor=1)
    api = make_api(BrokerOptions(), world[1].node, WorldClock(world), world[1], Health())
    api.context.turns = None
    return Served(world, api.server)


@pytest.mark.parametrize("method", REQUESTS)
def test_setting_that_an_older_broker_cannot_read_is_refused(served: Served, method: str) -> None:
    path, request = f"/liftbridge.ext.v1.Data/{method}", REQUESTS[method].SerializeToString()
    world = served.world
    outcome = world.propose(
        RegisterBroker(
            broker=BrokerId("old"), incarnation_id="i", data_dir_id="disk-old", feature_level=2
        )
    )
    assert not isinstance(outcome, LiftbridgeError), outcome
    before = world[1].node.state.applied_index
    port = served.call(path, [request])
    text = "Invalid ack_reply: broker old is too old to know it, upgrade all brokers first"
    assert port.end == (GrpcStatus.FAILED_PRECONDITION, text)
    assert world[1].node.state.applied_index == before


@pytest.mark.parametrize("method", REQUESTS)
def test_setting_that_every_broker_can_read_is_in_force(served: Served, method: str) -> None:
    path, request = f"/liftbridge.ext.v1.Data/{method}", REQUESTS[method].SerializeToString()
    port = served.call(path, [request])
    assert port.end == (GrpcStatus.OK, "")
    state = served.world[1].node.state
    stream = state.stream("new" if method == "CreateStream" else "s")
    assert stream is not None
    assert served.world[1].node.context.options_of(stream).ack_reply

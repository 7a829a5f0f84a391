"""Reading while the metadata of the client name a broker that does not lead any more."""

from types import SimpleNamespace

import pytest
from grpc import StatusCode

from liftbridge_client import FailedPreconditionError, RetriableError, Start, Stop
from liftbridge_client.aio.stream import Stream
from liftbridge_client.aio.subscription import Subscription
from liftbridge_client.errors import error_of
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

FORMER, LEADER = "127.0.0.1:1", "127.0.0.1:2"
NOT_LEADER = "Server not partition leader"
PAUSED = "partition is paused"


class Answers:
    """A call that gives out what it was given, and ends with an error."""

    def __init__(self, responses, text):
        self._responses = list(responses)
        self._text = text

    async def read(self):
        if self._responses:
            return self._responses.pop(0)
        raise error_of(StatusCode.FAILED_PRECONDITION, self._text)

    async def metadata(self):
        return {}

    def cancel(self):
        pass


class Cluster:
    """A session whose metadata are old until it was refreshed so many times.

    The leader hands out the first message, and ends the call as a partition that is paused does.
    """

    timeout_seconds = 1.0
    has_data = False

    def __init__(self, *, refreshes_needed=1, retry_seconds=5.0):
        self.refreshes_needed = refreshes_needed
        self.retry_seconds = self.call_seconds = retry_seconds
        self.refreshed = 0
        self.doubted = []
        self.stats = SimpleNamespace(received=0, retries=0)
        self.hub = SimpleNamespace(emit=lambda _event: None)
        self.transport = SimpleNamespace(server_stream=self._server_stream)

    def _server_stream(self, address, _method, request):
        if address == FORMER:
            return Answers([], NOT_LEADER)
        if isinstance(request, data_pb2.FetchBatchesRequest):
            return Answers([], PAUSED)
        return Answers([api_pb2.Message(), api_pb2.Message(offset=0, value=b"first")], PAUSED)

    async def leader_address(self, *_partition):
        return LEADER if self.refreshed >= self.refreshes_needed else FORMER

    def doubt_leader(self, *partition):
        self.doubted.append(partition)

    async def refresh(self):
        self.refreshed += 1


def subscription(cluster):
    how = {"resume": False, "reverse": False, "read_replica": False, "codec": None}
    return Subscription(cluster, "s", 0, start=Start.earliest(), stop=Stop.never(), **how)


@pytest.mark.parametrize("refreshes_needed", [1, 3])
async def test_subscription_asks_who_leads_when_a_broker_says_it_does_not(refreshes_needed):
    cluster = Cluster(refreshes_needed=refreshes_needed)
    batches = subscription(cluster).batches()
    assert [message.value for message in await anext(batches)] == [b"first"]
    with pytest.raises(FailedPreconditionError, match=PAUSED):
        await anext(batches)
    assert cluster.refreshed == refreshes_needed


async def test_subscription_asks_who_leads_for_the_retry_time_only():
    cluster = Cluster(refreshes_needed=10**6, retry_seconds=0.6)
    with pytest.raises(RetriableError, match=NOT_LEADER):
        await anext(subscription(cluster).batches())
    assert cluster.refreshed > 1


async def test_bounded_read_that_is_refused_leaves_the_leader_in_doubt():
    cluster = Cluster(refreshes_needed=0)
    with pytest.raises(FailedPreconditionError):
        await anext(Stream(cluster, "s").fetch_arrow(partition=3))
    assert cluster.doubted == [("s", 3)]


async def test_bounded_read_goes_on_at_the_leader_for_the_retry_time():
    cluster = Cluster(refreshes_needed=10**6, retry_seconds=0.6)
    with pytest.raises(RetriableError, match=NOT_LEADER):
        await anext(Stream(cluster, "s").fetch_arrow(partition=3))
    assert len(cluster.doubted) > 1
    assert set(cluster.doubted) == {("s", 3)}

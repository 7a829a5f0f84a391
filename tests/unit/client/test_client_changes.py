"""Calls that change metadata: asked again when a broker denies them, never when it is in doubt."""

from types import SimpleNamespace

import pytest
from grpc import StatusCode

from liftbridge_client import ServerError
from liftbridge_client.aio.session import Session
from liftbridge_client.errors import error_of
from liftbridge_client.methods import INIT_PUBLISHER
from liftbridge_proto.ext.v1 import data_pb2

TEXT = "Failed to initialise publisher: not the metadata leader"
ANSWER = data_pb2.InitPublisherResponse(publisher_id=7)


class Brokers(Session):
    """A session whose calls end, one after the other, with what the brokers answer."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.retry_seconds = self.timeout_seconds = self.call_seconds = 5.0
        self.stats = SimpleNamespace(retries=0)
        self.hub = SimpleNamespace(emit=lambda _event: None)

    async def _address(self, _leader_of, **_how):
        return "broker"

    async def _unary(self, *_asked):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def failed(code):
    return error_of(StatusCode.INTERNAL, TEXT, code)


async def test_change_that_was_not_made_is_asked_for_again():
    brokers = Brokers(failed("CHANGE_NOT_MADE"), failed("NO_METADATA_LEADER"), ANSWER)
    assert await brokers.call(INIT_PUBLISHER, data_pb2.InitPublisherRequest()) == ANSWER
    assert brokers.stats.retries == 2


@pytest.mark.parametrize("code", ["", "INTERNAL", "OF_A_LATER_VERSION"])
async def test_change_in_doubt_is_not(code):
    brokers = Brokers(failed(code), ANSWER)
    with pytest.raises(ServerError, match=TEXT) as caught:
        await brokers.call(INIT_PUBLISHER, data_pb2.InitPublisherRequest())
    assert caught.value.may_be_done
    assert brokers.answers == [ANSWER]


async def test_doubt_about_an_earlier_attempt_outlives_a_denial():
    lost = error_of(StatusCode.UNAVAILABLE, "")
    refused = error_of(StatusCode.NOT_FOUND, "no such stream")
    brokers = Brokers(lost, failed("CHANGE_NOT_MADE"), refused)
    with pytest.raises(type(refused)) as caught:
        await brokers.call(INIT_PUBLISHER, data_pb2.InitPublisherRequest())
    assert caught.value.may_be_done

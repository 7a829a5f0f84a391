"""A stream that one broker of several has not heard of yet."""

from types import SimpleNamespace

import pytest

from liftbridge_client import NotFoundError
from liftbridge_client.aio.session import Session


class Brokers:
    """What a session has to do with: the brokers that answer, one after the other."""

    call_seconds = 5.0

    def __init__(self, count, answers):
        self._metadata = SimpleNamespace(streams={})
        self.brokers = dict.fromkeys(range(count))
        self.answers = list(answers)
        self.asked = 0

    async def refresh(self):
        self.asked += 1
        streams = self.answers.pop(0) if self.answers else {}
        return SimpleNamespace(streams=streams, brokers=self.brokers)


async def test_several_brokers_are_asked_again_for_a_moment():
    brokers = Brokers(3, [{}, {"s": "found"}])
    assert await Session.stream_info(brokers, "s") == "found"
    assert brokers.asked == 2


@pytest.mark.parametrize(("count", "asked"), [(1, 1), (3, 5)])
async def test_a_stream_that_nobody_knows_is_not_looked_for_for_ever(count, asked):
    brokers = Brokers(count, [])
    with pytest.raises(NotFoundError, match="no such stream: s"):
        await Session.stream_info(brokers, "s")
    assert brokers.asked == asked

"""Brokers that are too old for a setting or a call: that is told, never taken for done."""

import pytest

from liftbridge_client import StreamSettings, UnimplementedError, connect
from liftbridge_testkit.older_broker import older_broker

CURSOR = StreamSettings(retention_cursor="archive")
LATER = {"retention_cursor archive": CURSOR, "ack_reply True": StreamSettings(ack_reply=True)}
"""Settings that the first brokers did not know, as an error names them."""


@pytest.mark.parametrize("named", LATER)
async def test_setting_that_was_passed_over_is_told(named):
    async with older_broker() as address, connect(address) as lb:
        text = f"{named} of stream s is not in effect: .* upgrade all brokers"
        with pytest.raises(UnimplementedError, match=text):
            await lb.streams.create("s", settings=LATER[named])
        with pytest.raises(UnimplementedError, match=text):
            await lb.streams.get("s").alter(LATER[named])
        stream = await lb.streams.create("s", settings=StreamSettings(fsync_policy="commit"))
        await stream.alter(StreamSettings(retention_cursor=""))


async def test_cursor_of_one_stream_is_not_set_without_its_id():
    async with older_broker() as address, connect(address) as lb:
        with pytest.raises(UnimplementedError):
            await lb.streams.get("s").set_cursor("archive", 5, stream_id=1)


async def test_call_that_the_broker_lacks_is_refused():
    async with older_broker() as address, connect(address) as lb:
        with pytest.raises(UnimplementedError):
            await lb.who_am_i()


async def test_cursor_that_is_in_force_is_not_doubted(broker, name):
    async with connect(broker.address) as lb:
        stream = await lb.streams.create(name, settings=CURSOR)
        await stream.alter(StreamSettings(retention_cursor="another"))
        (found,) = [one async for one in lb.streams.describe(name)]
        assert found.settings.retention_cursor == "another"

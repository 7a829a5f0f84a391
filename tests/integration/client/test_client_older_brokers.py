"""Brokers that are too old for a setting or a call: that is told, never taken for done."""

import pytest

from liftbridge_client import StreamSettings, UnimplementedError, connect
from liftbridge_testkit.older_broker import older_broker

CURSOR = StreamSettings(retention_cursor="archive")


async def test_retention_cursor_that_was_passed_over_is_told():
    async with older_broker() as address, connect(address) as lb:
        text = "retention_cursor archive of stream s is not in effect: .* upgrade all brokers"
        with pytest.raises(UnimplementedError, match=text):
            await lb.streams.create("s", settings=CURSOR)
        with pytest.raises(UnimplementedError, match=text):
            await lb.streams.get("s").alter(CURSOR)
        stream = await lb.streams.create("s", settings=StreamSettings(fsync_policy="commit"))
        await stream.alter(StreamSettings(retention_cursor=""))


async def test_cursor_of_one_stream_is_not_set_without_its_id():
    async with older_broker() as address, connect(address) as lb:
        with pytest.raises(UnimplementedError):
            await lb.streams.get("s").set_cursor("archive", 5, stream_id=1)


async def test_cursor_that_is_in_force_is_not_doubted(broker, name):
    async with connect(broker.address) as lb:
        stream = await lb.streams.create(name, settings=CURSOR)
        await stream.alter(StreamSettings(retention_cursor="another"))
        (found,) = [one async for one in lb.streams.describe(name)]
        assert found.settings.retention_cursor == "another"

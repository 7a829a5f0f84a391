"""Events: what changed in the metadata, how listeners get them, how they read."""

import asyncio
from datetime import UTC, datetime
from typing import get_args

import pytest
from grpc import ChannelConnectivity

from liftbridge_client import RetriableError, events
from liftbridge_client.aio.listening import Hub
from liftbridge_client.channels import Watch
from liftbridge_client.core.changes import changes
from liftbridge_client.model import BrokerInfo, EventTimes, Metadata, PartitionInfo, StreamInfo

NONE = EventTimes(0, 0)
CAUSE = RetriableError("Socket closed")


def partition(number, leader):
    return PartitionInfo(
        number=number,
        leader=leader,
        replicas=(),
        isr=(),
        high_watermark=-1,
        newest_offset=-1,
        paused=False,
        readonly=False,
        messages_received=NONE,
        pause_changes=NONE,
        readonly_changes=NONE,
    )


def metadata(brokers, **leaders):
    """Brokers by id and port; streams by the leaders of their partitions."""
    created = datetime(2026, 1, 1, tzinfo=UTC)
    return Metadata(
        {name: BrokerInfo(name, "h", port, 0, 0) for name, port in brokers.items()},
        {
            name: StreamInfo(
                name, name, created, {n: partition(n, leader) for n, leader in enumerate(found)}
            )
            for name, found in leaders.items()
        },
    )


def test_first_metadata_changes_nothing():
    assert changes(Metadata({}, {}), metadata({"a": 1}, s=["a"])) == []


def test_same_metadata_changes_nothing():
    one = metadata({"a": 1, "b": 2}, s=["a", "b"])
    assert changes(one, metadata({"b": 2, "a": 1}, s=["a", "b"])) == []


def test_every_change_of_the_metadata_is_an_event():
    before = metadata({"a": 1, "b": 2}, kept=["a", "b"], gone=["a"])
    after = metadata({"b": 2, "c": 3}, kept=["c", "b"], fresh=["c"])
    assert changes(before, after) == [
        events.BrokersChanged(("h:1", "h:2"), ("h:2", "h:3")),
        events.StreamsChanged(("fresh",), ("gone",)),
        events.LeaderChanged("kept", 0, "a", "c"),
    ]


async def test_each_listener_gets_what_happens_from_its_beginning_on():
    hub = Hub()
    first = hub.listen(1.0)
    hub.emit(events.Connected("a:1"))
    second = hub.listen(1.0)
    hub.emit(events.Disconnected("a:1"))
    hub.close()
    both = [events.Connected("a:1"), events.Disconnected("a:1")]
    assert [event async for event in first] == both
    assert [event async for event in second] == both[1:]


async def test_listener_waits_for_what_happens_next():
    hub = Hub()
    listener = hub.listen(1.0)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(anext(listener))
        await asyncio.sleep(0)
        assert not waiting.done()
        hub.emit(events.Connected("a:1"))
    assert waiting.result() == events.Connected("a:1")


async def test_closed_listener_hears_no_more_and_others_do():
    hub = Hub()
    one, other = hub.listen(1.0), hub.listen(1.0)
    await one.aclose()
    hub.emit(events.Connected("a:1"))
    hub.close()
    assert [event async for event in one] == []
    assert [event async for event in other] == [events.Connected("a:1")]
    assert not hub.has_listeners


async def test_slow_listener_loses_the_oldest_events_and_is_told():
    hub = Hub()
    listener = hub.listen(1.0)
    more = 7
    for number in range(events.EVENTS_KEPT_MAX + more):
        hub.emit(events.Connected(f"a:{number}"))
    hub.close()
    found = [event async for event in listener]
    assert found[0] == events.EventsLost(more)
    assert found[1:] == [
        events.Connected(f"a:{n}") for n in range(more, events.EVENTS_KEPT_MAX + more)
    ]


async def test_each_listener_says_what_is_slow():
    hub = Hub()
    patient, hasty = hub.listen(2.0), hub.listen(0.5)
    calls = [events.SlowCall("/x", "a:1", seconds) for seconds in (0.1, 1.0, 3.0)]
    for call in calls:
        hub.emit(call)
    assert hub.slow_seconds == 0.5
    hub.close()
    assert [event async for event in hasty] == calls[1:]
    assert [event async for event in patient] == calls[2:]


@pytest.mark.parametrize(
    ("event", "parts"),
    [
        (events.Connected("a:1"), ["connected", "a:1"]),
        (events.Disconnected("a:1"), ["lost", "a:1"]),
        (events.ConnectFailed("a:1"), ["cannot reach a:1"]),
        (events.BrokersChanged(("a:1",), ()), ["a:1", "none"]),
        (events.StreamsChanged(("s",), ()), ["appeared: s", "vanished: none"]),
        (events.LeaderChanged("s", 3, "", "b"), ["s/3", "by b", "by none"]),
        (events.CallRetried("/x", 2, CAUSE), ["/x", "attempt 2", "Socket closed", CAUSE.advice]),
        (events.PublisherReconnects("s", 3, 9, CAUSE), ["s/3", "9 messages", "Socket closed"]),
        (events.SubscriptionReconnects("s", 3, 17, CAUSE), ["s/3", "17", "Socket closed"]),
        (events.SubscriptionReconnects("s", 3, None, CAUSE), ["s/3", "its start"]),
        (events.SubscriptionTruncated("s", 3, 17, 20), ["s/3", "17", "unclean election"]),
        (events.MembershipLost("g", "m", 3, CAUSE), ["3 partitions", "group g", CAUSE.advice]),
        (events.SlowCall("/x", "a:1", 1.5), ["/x", "a:1", "1.500 s"]),
        (events.SlowAcks("s", 3, 9, 1.5), ["s/3", "9 messages", "1.5 s"]),
        (events.EventsLost(4), ["4 events"]),
    ],
)
def test_every_event_is_told_in_one_line(event, parts):
    text = events.describe(event)
    assert all(part in text for part in parts), text
    assert "\n" not in text
    assert text.endswith(".")


def test_every_event_is_told_above():
    mark = next(m for m in test_every_event_is_told_in_one_line.pytestmark)
    assert {type(event) for event, _ in mark.args[1]} == set(get_args(events.Event))


class ScriptedChannel:
    """A channel that goes through states, one at each wait."""

    def __init__(self, *states):
        self._states = list(states)

    def get_state(self):
        return self._states[0]

    async def wait_for_state_change(self, last):
        assert self._states.pop(0) is last


async def test_connection_is_told_when_it_comes_and_goes_and_a_failure_once():
    state = ChannelConnectivity
    channel = ScriptedChannel(
        *(state.IDLE, state.CONNECTING, state.TRANSIENT_FAILURE),
        *(state.CONNECTING, state.TRANSIENT_FAILURE, state.CONNECTING, state.READY),
        *(state.IDLE, state.CONNECTING, state.READY, state.TRANSIENT_FAILURE, state.SHUTDOWN),
    )
    hub = Hub()
    listener = hub.listen(1.0)
    await Watch("a:1", channel, hub).task
    hub.close()
    assert [event async for event in listener] == [
        events.ConnectFailed("a:1"),
        events.Connected("a:1"),
        events.Disconnected("a:1"),
        events.Connected("a:1"),
        events.Disconnected("a:1"),
        events.ConnectFailed("a:1"),
    ]

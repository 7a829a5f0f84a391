"""The NATS adapter against a real nats-server: who hears what, and in which order."""

import asyncio
import json
from urllib.request import urlopen

import pytest

from liftbridge_broker.adapters.nats.headers import HEADERS_MAX
from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.ports.messaging import Arrival
from liftbridge_broker.wire.nats import header_block, publish_head
from liftbridge_testkit.nats_link import RecordingSink, frame, linked
from liftbridge_testkit.processes import NatsServer, free_port


@pytest.fixture(scope="module")
def nats(tmp_path_factory):
    monitor = free_port()
    with NatsServer(
        tmp_path_factory.mktemp("nats"), arguments=("-m", str(monitor)), config="max_payload: 200KB"
    ) as server:
        server.monitor = monitor
        yield server


def options(nats, server_id="a", **more):
    return NatsOptions(server_id=server_id, servers=(nats.url,), **more)


async def test_quiet_messages_do_not_come_back_and_echoed_ones_do(nats):
    async with linked(options(nats)) as (messaging, sink, _):
        messaging.subscribe(1, "own", "")
        await messaging.flushed()
        messaging.publish_quiet([frame("own", b"quiet")])
        await messaging.flushed()
        messaging.publish_echo([frame("own", b"echo")])
        await sink.until(lambda: sink.payloads(1))
        assert sink.payloads(1) == [b"echo"]


async def test_quiet_messages_reach_other_brokers_and_own_queue_groups(nats):
    async with (
        linked(options(nats)) as (a, sink_a, _),
        linked(options(nats, "b")) as (b, sink_b, _),
    ):
        a.subscribe(1, "shared.*", "group")
        b.subscribe(1, "shared.>", "")
        await a.flushed()
        await b.flushed()
        a.publish_quiet([frame("shared.x", b"1"), frame("shared.x", b"2")])
        await sink_a.until(lambda: sink_a.payloads(1) == [b"1", b"2"])
        await sink_b.until(lambda: sink_b.payloads(1) == [b"1", b"2"])
        assert [arrival.subject for arrival in sink_a.arrivals(1)] == ["shared.x", "shared.x"]


async def test_queue_group_gives_each_message_to_one_member(nats):
    async with (
        linked(options(nats)) as (a, sink_a, _),
        linked(options(nats, "b")) as (b, sink_b, _),
    ):
        for messaging in (a, b):
            messaging.subscribe(1, "work", "group")
            await messaging.flushed()
        sent = [str(i).encode() for i in range(300)]
        a.publish_echo([frame("work", payload) for payload in sent])
        await a.flushed()
        await sink_b.until(lambda: len(sink_a.payloads(1)) + len(sink_b.payloads(1)) == 300)
        assert sorted(sink_a.payloads(1) + sink_b.payloads(1)) == sorted(sent)
        assert sink_a.payloads(1)
        assert sink_b.payloads(1)


async def test_arrival_tells_subject_reply_and_headers(nats):
    block = header_block([("Liftbridge-Appended", "7")])
    async with linked(options(nats)) as (messaging, sink, _):
        messaging.subscribe(1, "in.>", "")
        await messaging.flushed()
        messaging.publish_echo([frame("in.a.b", b"plain", reply="answer.here")])
        messaging.publish_echo([publish_head(b"in.c", 6, b"", block), b"headed", b"\r\n"])
        await sink.until(lambda: len(sink.payloads(1)) == 2)
        assert sink.arrivals(1) == [
            Arrival("in.a.b", "answer.here", b""),
            Arrival("in.c", "", block),
        ]
        assert sink.payloads(1) == [b"plain", b"headed"]


async def test_message_with_too_many_headers_is_left_out_and_the_link_lives(nats):
    wide = header_block([("a", "b")] * 30_000)
    most = header_block([("a", "b")] * HEADERS_MAX)
    async with linked(options(nats)) as (messaging, sink, _):
        messaging.subscribe(1, "wide", "")
        await messaging.flushed()
        for block in (wide, most, wide):
            messaging.publish_echo([publish_head(b"wide", 1, b"", block), b"x", b"\r\n"])
        messaging.publish_echo([frame("wide", b"last")])
        await sink.until(lambda: b"last" in sink.payloads(1))
        assert [one.headers for one in sink.arrivals(1)] == [most, b""]
        assert messaging.wide_count == 2
        assert [link.counts.connects for link in messaging._links] == [1, 1, 1]


async def test_messages_of_a_burst_come_in_order_and_in_few_deliveries(nats):
    async with linked(options(nats)) as (a, sink, _), linked(options(nats, "b")) as (b, _, _):
        a.subscribe(1, "burst", "")
        await a.flushed()
        sent = [b"%06d" % i + b"x" * (i % 300) for i in range(20_000)]
        for start in range(0, len(sent), 500):
            b.publish_quiet([frame("burst", payload) for payload in sent[start : start + 500]])
        await b.flushed()
        await sink.until(lambda: len(sink.payloads(1)) == len(sent))
        assert sink.payloads(1) == sent
        assert len(sink.deliveries) < len(sent) / 10


async def test_unsubscribed_messages_are_dropped_and_counted(nats):
    async with linked(options(nats)) as (messaging, sink, _):
        messaging.subscribe(1, "gone", "")
        messaging.subscribe(2, "stays", "")
        await messaging.flushed()
        connection = messaging.quiet._connection
        # The server sends before it reads UNSUB: as if both had crossed on the way.
        messaging.quiet._subscriptions.pop(1)
        messaging.publish_echo([frame("gone", b"late"), frame("stays", b"here")])
        await sink.until(lambda: sink.payloads(2))
        assert sink.payloads(1) == []
        assert messaging.quiet.counts.messages_dropped == 1
        messaging.quiet._subscriptions[1] = b""
        messaging.unsubscribe(1)
        await connection.flushed()
        messaging.publish_echo([frame("gone", b"never"), frame("stays", b"again")])
        await sink.until(lambda: len(sink.payloads(2)) == 2)
        assert messaging.quiet.counts.messages_dropped == 1


async def test_a_thousand_subscriptions_each_hear_their_own(nats):
    async with linked(options(nats)) as (messaging, sink, _):
        for number in range(1000):
            messaging.subscribe(number, f"many.{number}", "")
        await messaging.flushed()
        messaging.publish_echo([frame(f"many.{n}", str(n).encode()) for n in range(1000)])
        await sink.until(lambda: len(sink.deliveries) == 1000)
        assert all(payloads == [str(sid).encode()] for sid, _, payloads in sink.deliveries)


async def test_drain_delivers_what_was_sent_before_and_nothing_after(nats):
    async with linked(options(nats)) as (a, sink, _), linked(options(nats, "b")) as (b, _, _):
        a.subscribe(1, "drained", "")
        a.subscribe(2, "drained", "group")
        await a.flushed()
        b.publish_quiet([frame("drained", b"x" * 1000) for _ in range(5000)])
        await b.flushed()
        await a.drain()
        assert len(sink.payloads(1)) == len(sink.payloads(2)) == 5000
        b.publish_quiet([frame("drained", b"late")])
        await b.flushed()
        await a.flushed()
        assert len(sink.payloads(1)) == len(sink.payloads(2)) == 5000
        assert a.quiet.counts.messages_dropped == a.echo.counts.messages_dropped == 0


async def test_what_was_published_before_close_arrives(nats):
    async with linked(options(nats)) as (a, sink, _):
        a.subscribe(1, "last", "")
        await a.flushed()
        async with linked(options(nats, "b")) as (b, _, _):
            b.publish_quiet([frame("last", b"x" * 1000) for _ in range(1000)])
        await sink.until(lambda: len(sink.payloads(1)) == 1000)
        assert set(sink.payloads(1)) == {b"x" * 1000}


async def test_nothing_is_left_behind_after_close(nats):
    before = asyncio.all_tasks()
    async with linked(options(nats)) as (messaging, _, _):
        pass
    assert not messaging.is_connected
    with pytest.raises(UnavailableError, match="NATS connection is down"):
        messaging.publish_quiet([frame("x", b"")])
    assert asyncio.all_tasks() == before


async def test_connections_carry_names_and_flags(nats):
    async with linked(options(nats, "broker-7", namespace="ns")) as (messaging, _, _):

        def connections():
            with urlopen(f"http://127.0.0.1:{nats.monitor}/connz?state=open") as answer:
                return json.load(answer)["connections"]

        found = await asyncio.to_thread(connections)
        names = {connection.get("name") for connection in found}
        assert {f"LIFT.ns.broker-7.{link}" for link in ("quiet", "echo", "acks")} <= names
        assert messaging.payload_bytes_max == 200 * 1024


async def test_inbox_prefixes_differ(nats):
    async with (
        linked(options(nats)) as (a, _, _),
        linked(options(nats, inbox_prefix="_P")) as (b, _, _),
    ):
        assert a.inbox_prefix.startswith("_INBOX.")
        assert b.inbox_prefix.startswith("_P.")
        assert a.inbox_prefix.partition(".")[2] != b.inbox_prefix.partition(".")[2]


async def test_request_by_private_inbox(nats):
    async with (
        linked(options(nats)) as (a, sink_a, _),
        linked(options(nats, "b")) as (b, sink_b, _),
    ):
        inbox = f"{a.inbox_prefix}.1"
        a.subscribe(1, inbox, "")
        b.subscribe(1, "service", "")
        await a.flushed()
        await b.flushed()
        a.publish_quiet([frame("service", b"question", reply=inbox)])
        await sink_b.until(lambda: sink_b.payloads(1))
        b.publish_quiet([frame(sink_b.arrivals(1)[0].reply, b"answer")])
        await sink_a.until(lambda: sink_a.payloads(1) == [b"answer"])
        assert sink_a.arrivals(1)[0].subject == inbox


async def test_failure_of_the_receiver_ends_the_adapter(nats):
    sink = RecordingSink()

    def fail():
        raise ZeroDivisionError

    sink.on_delivery = fail

    async def deliver():
        async with linked(options(nats), sink) as (messaging, _, _):
            messaging.subscribe(1, "bug", "")
            await messaging.flushed()
            messaging.publish_echo([frame("bug", b"x")])
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await deliver()
    assert caught.group_contains(ZeroDivisionError)

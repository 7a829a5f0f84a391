"""Messages between brokers over a real nats-server."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.adapters.nats.peers import NatsTransport
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_testkit.nats_client import nats_client, settled
from liftbridge_testkit.nats_link import Recorder
from liftbridge_testkit.nats_proxy import NatsProxy
from liftbridge_testkit.processes import NatsServer


class Inbox(Recorder):
    """Keeps what arrived, and what was told of the link."""

    def __init__(self):
        super().__init__()
        self.taken = []
        self.missed = []
        self.change_count = 0
        self.kinds = []

    def take(self, channel, payload):
        self.taken.append((channel, payload))
        self.tell()

    def miss(self, broker, channel, sent_at):
        self.missed.append((broker, channel, sent_at))
        self.tell()

    def on_change(self):
        self.change_count += 1
        self.tell()

    def transition(self, kind, fields):
        self.kinds.append((kind, fields))
        self.tell()

    def payloads(self, channel):
        return [payload for found, payload in self.taken if found is channel]


@pytest.fixture
def nats(tmp_path):
    with NatsServer(tmp_path) as server:
        yield server


@asynccontextmanager
async def broker(nats, server_id, namespace="ns"):
    inbox = Inbox()
    options = NatsOptions(
        server_id=server_id, namespace=namespace, servers=(nats.url,), reconnect_wait_ms=20
    )
    transport = NatsTransport(options, inbox.take, inbox.miss, inbox.on_change, inbox)
    await transport.start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(transport.run())
        try:
            yield transport, inbox
        finally:
            await transport.close()


async def test_message_reaches_the_broker_and_channel_it_is_for(nats):
    async with broker(nats, "a") as (a, at_a), broker(nats, "b.1") as (_, at_b):
        a.send("b.1", Channel.METADATA, b"vote")
        a.send("b.1", Channel.DATA, b"fetch")
        await at_b.until(lambda: len(at_b.taken) == 2)
        assert at_b.payloads(Channel.METADATA) == [b"vote"]
        assert at_b.payloads(Channel.DATA) == [b"fetch"]
        assert at_a.taken == []


async def test_message_to_everyone_reaches_all_of_the_namespace_and_its_sender(nats):
    async with (
        broker(nats, "a") as (a, at_a),
        broker(nats, "b") as (_, at_b),
        broker(nats, "c", "other") as (c, at_c),
    ):
        a.send(EVERYONE, Channel.METADATA, b"who is there")
        await at_a.until(lambda: at_a.payloads(Channel.METADATA) == [b"who is there"])
        await at_b.until(lambda: at_b.payloads(Channel.METADATA) == [b"who is there"])
        c.send("c", Channel.METADATA, b"own")
        await at_c.until(lambda: bool(at_c.taken))
        assert at_c.taken == [(Channel.METADATA, b"own")]
        assert len(at_a.taken) == len(at_b.taken) == 1


async def test_messages_of_one_channel_keep_their_order(nats):
    async with broker(nats, "a") as (a, _), broker(nats, "b") as (_, at_b):
        sent = [bytes([i % 256]) * (1 + i % 700) for i in range(2_000)]
        for payload in sent:
            a.send("b", Channel.DATA, payload)
        await at_b.until(lambda: len(at_b.taken) == len(sent))
        assert at_b.payloads(Channel.DATA) == sent


async def test_message_while_nats_is_away_is_lost_and_the_next_arrives(nats):
    async with broker(nats, "a") as (a, at_a), broker(nats, "b") as (b, at_b):
        nats.kill()
        await at_a.until(lambda: at_a.change_count == 2 * len(Channel))
        a.send("b", Channel.METADATA, b"lost")
        assert a.dropped_count == 1
        nats.start()
        await at_a.until(lambda: a.is_connected)
        await at_b.until(lambda: b.is_connected)
        a.send("b", Channel.METADATA, b"kept")
        await at_b.until(lambda: bool(at_b.taken))
        assert at_b.taken == [(Channel.METADATA, b"kept")]
        assert at_a.change_count == 3 * len(Channel)


@pytest.mark.parametrize("lost", range(len(Channel)))
async def test_other_link_carries_messages_of_one_that_is_down(nats, lost):
    with NatsProxy(nats.port) as proxy:
        async with broker(proxy, "a") as (a, at_a), broker(nats, "b") as (_, at_b):
            for _ in range(lost):
                proxy.sever(is_all=False)
                await at_a.until(lambda: at_a.change_count == 4)
            at_a.change_count = 0
            proxy.sever(is_all=False)
            await at_a.until(lambda: at_a.change_count == 1)
            for channel in Channel:
                a.send("b", channel, channel.value.encode())
            assert a.dropped_count == 0
            await at_b.until(lambda: len(at_b.taken) == len(Channel))
            assert dict(at_b.taken) == {one: one.value.encode() for one in Channel}


@pytest.mark.parametrize("channel", Channel)
async def test_probe_reports_at_once_that_nobody_listens_for_a_broker(nats, channel):
    async with broker(nats, "a") as (a, at_a):
        async with broker(nats, "b.1") as (b, at_b):
            a.probe("b.1", channel, 1)
            a.send("b.1", channel, b"after the probe")
            await at_b.until(lambda: at_b.payloads(channel) == [b"after the probe"])
            b.probe("a", channel, 2)
            b.send("a", channel, b"back")
            await at_a.until(lambda: at_a.payloads(channel) == [b"back"])
            assert (at_a.missed, at_b.missed) == ([], [])
        while not at_a.missed:  # the server learns of the closed connection in time of its own
            a.probe("b.1", channel, 3)
            a.send("a", channel, b"turn")
            turns = len(at_a.taken)
            await at_a.until(lambda turns=turns: len(at_a.taken) > turns)
        assert set(at_a.missed) == {("b.1", channel, 3)}
        at_a.missed.clear()
        a.probe("a", channel, 4)
        a.probe("c", channel, 5)
        await at_a.until(lambda: at_a.missed != [])
        assert at_a.missed == [("c", channel, 5)]


@pytest.mark.parametrize("channel", Channel)
async def test_only_the_header_of_the_server_counts_as_no_responders(nats, channel):
    async with broker(nats, "a") as (a, at_a), nats_client(nats.url) as attacker:
        overheard = await attacker.subscribe("_LIFTBRIDGE.ns.b.b.*")
        await settled(attacker)
        a.probe("b", channel, 7)
        reply = (await overheard.next_msg()).reply
        for subject, headers in [
            (reply, None),
            (reply, {"Status": "503"}),
            (reply + "x", None),
            (reply + "9" * 1_000, None),
        ]:
            await attacker.publish(subject, b"", headers=headers)
        await settled(attacker)
        a.send("a", channel, b"after that")
        await at_a.until(lambda: at_a.payloads(channel) == [b"after that"])
        assert at_a.missed == []

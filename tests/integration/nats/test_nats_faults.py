"""What the NATS adapter does when the server stops, restarts, hangs, or cuts it off."""

import asyncio
import contextlib
import time

import pytest

from liftbridge_broker.adapters.nats import link
from liftbridge_broker.adapters.nats.connection import Connection
from liftbridge_broker.adapters.nats.messaging import NatsMessaging
from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.errors import UnavailableError
from liftbridge_testkit.nats_link import RecordingObserver, RecordingSink, frame, linked
from liftbridge_testkit.processes import NatsServer, free_port


@pytest.fixture
def nats(tmp_path):
    with NatsServer(tmp_path) as server:
        yield server


def options(nats, server_id="a", **more):
    return NatsOptions(
        server_id=server_id, servers=(nats.url,), **{"reconnect_wait_ms": 50, **more}
    )


async def test_subscriptions_are_back_before_the_link_is_told_to_be(nats):
    sink = RecordingSink()
    async with linked(options(nats), sink) as (messaging, _, observer):
        for number in range(1000):
            messaging.subscribe(number, f"many.{number}", "g" if number % 2 else "")
        nats.kill()
        await sink.until(lambda: len(sink.links) == 2)
        assert sink.links[-1][0] is False
        assert not messaging.is_connected
        # Subscriptions asked for and ended while the link is down count as well.
        messaging.subscribe(1000, "many.1000", "")
        messaging.unsubscribe(0)

        def publish_at_once():
            messaging.publish_echo([frame(f"many.{n}", str(n).encode()) for n in range(1001)])

        sink.on_connected = publish_at_once
        await asyncio.to_thread(nats.start)
        await sink.until(lambda: len(sink.deliveries) >= 1000)
        assert {sid for sid, _, _ in sink.deliveries} == set(range(1, 1001))
        assert sink.links[-1] == (True, "")
        await observer.until_links("nats_reconnected")
        assert all(f["outage_ms"] >= 0 for f in observer.of("nats_reconnected"))
        assert len(observer.of("nats_disconnected")) == 3
        assert messaging.quiet.counts.connects == 2


async def test_publishing_is_refused_while_the_link_stays_down(nats, monkeypatch):
    monkeypatch.setattr(link, "HOLD_SECONDS", 0.0)
    async with linked(options(nats)) as (messaging, sink, _):
        nats.kill()
        await sink.until(lambda: not messaging.quiet.is_up and not messaging.echo.is_up)
        with pytest.raises(UnavailableError, match="NATS connection is down"):
            messaging.publish_quiet([frame("x", b"1")])
        with pytest.raises(UnavailableError, match="NATS connection is down"):
            messaging.publish_echo([frame("x", b"1")])
        assert messaging.quiet.counts.publishes_refused == 1
        # What was refused is not sent later either.
        await asyncio.to_thread(nats.start)
        await sink.until(lambda: messaging.is_connected)
        messaging.subscribe(1, "x", "")
        await messaging.flushed()
        messaging.publish_echo([frame("x", b"2")])
        await sink.until(lambda: sink.payloads(1))
        assert sink.payloads(1) == [b"2"]


async def test_frames_published_after_a_loss_go_to_the_next_connection_in_order(nats):
    async with linked(options(nats, pending_bytes_max=100)) as (messaging, sink, _):
        messaging.subscribe(1, "x", "g")
        await messaging.flushed()
        messaging.quiet._connection.abort("test")
        await sink.until(lambda: not messaging.quiet.is_up)
        assert messaging.takes_frames
        for number in range(3):
            messaging.publish_quiet([frame("x", b"%d" % number)])
        messaging.publish_quiet([frame("x", b"3" * 100)])
        assert messaging.backlog_bytes > 100
        with pytest.raises(UnavailableError, match="NATS connection busy"):
            messaging.publish_quiet([frame("x", b"4")])
        await sink.until(lambda: messaging.quiet.is_up)
        messaging.publish_quiet([frame("x", b"5")])
        await sink.until(lambda: sink.payloads(1)[-1:] == [b"5"])
        assert sink.payloads(1) == [b"0", b"1", b"2", b"3" * 100, b"5"]
        assert messaging.backlog_bytes == 0


async def test_held_frames_are_written_though_the_next_connection_is_busy(nats, monkeypatch):
    def refuse(_connection, _data):
        raise UnavailableError("NATS connection busy")

    async with linked(options(nats)) as (messaging, sink, _):
        messaging.subscribe(1, "x", "g")
        await messaging.flushed()
        monkeypatch.setattr(Connection, "send", refuse)
        messaging.quiet._connection.abort("test")
        await sink.until(lambda: not messaging.quiet.is_up)
        messaging.publish_quiet([frame("x", b"1")])
        await sink.until(lambda: messaging.quiet.is_up and sink.payloads(1) != [])
        assert sink.payloads(1) == [b"1"]


@pytest.mark.parametrize("hold_seconds", [0.0, 60.0])
async def test_restarts_under_load_keep_order_and_repeat_nothing(nats, monkeypatch, hold_seconds):
    monkeypatch.setattr(link, "HOLD_SECONDS", hold_seconds)
    async with (
        linked(options(nats)) as (a, sink, _),
        linked(options(nats, "b")) as (b, sink_b, _),
    ):
        a.subscribe(1, "load", "")
        await a.flushed()
        accepted = refused = 0
        stop = asyncio.Event()

        async def publish():
            nonlocal accepted, refused
            while not stop.is_set():
                try:
                    b.publish_quiet([frame("load", b"%08d" % (accepted + i)) for i in range(20)])
                    accepted += 20
                except UnavailableError:
                    refused += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publish())
            for _ in range(3):
                count = len(sink.payloads(1))
                await sink.until(lambda count=count: len(sink.payloads(1)) > count + 1000)
                await asyncio.to_thread(nats.kill)
                await sink_b.until(lambda: not b.quiet.is_up)
                await asyncio.to_thread(nats.start)
                await sink.until(lambda: a.is_connected)
                await sink_b.until(lambda: b.is_connected)
            stop.set()
        b.publish_quiet([frame("load", b"99999999")])
        await sink.until(lambda: sink.payloads(1)[-1] == b"99999999")
        received = sink.payloads(1)
        assert received == sorted(set(received))
        assert refused > 0 or hold_seconds
        assert 3000 < len(received) <= accepted + 1


async def test_slow_consumer_is_seen_survived_and_told(tmp_path):
    config = 'max_payload: 100KB\nmax_pending: 1MB\nwrite_deadline: "100ms"\n'
    with NatsServer(tmp_path, config=config) as nats:
        # However long it takes, nobody is given up for being silent; what waits in `b` is little.
        patient = {"ping_interval_ms": 600_000, "pending_bytes_max": 4 << 20}
        async with (
            linked(options(nats, **patient)) as (a, sink, observer),
            linked(options(nats, "b", **patient)) as (b, _, _),
        ):
            a.subscribe(1, "flood", "")
            a.subscribe(2, "_LIFTBRIDGE.ns.ack.a", "")
            await a.flushed()
            # What a broker does that cannot keep up: it leaves bytes in the socket.
            a.quiet._connection._transport.pause_reading()
            payload = b"x" * 50_000
            while "Slow Consumer" not in nats.log_text():
                with contextlib.suppress(UnavailableError):
                    b.publish_quiet([frame("flood", payload) for _ in range(20)])
                await asyncio.sleep(0)
            # The flood ends before `a` is back, which could not keep up with the rest of it either.
            await b.flushed()
            # Acks neither wait behind the flood nor are lost with it.
            b.publish_quiet([frame("_LIFTBRIDGE.ns.ack.a", b"ack")])
            await sink.until(lambda: sink.payloads(2) == [b"ack"])
            a.quiet._connection._transport.resume_reading()
            await observer.until(lambda: observer.of("nats_slow_consumer"))
            [told] = observer.of("nats_slow_consumer")
            assert told["connection"] == "quiet"
            await sink.until(lambda: a.is_connected)
            b.publish_quiet([frame("flood", b"again")])
            await sink.until(lambda: sink.payloads(1)[-1:] == [b"again"])
            assert a.quiet.counts.slow_consumers == 1
            assert a.echo.counts.slow_consumers == a.acks.counts.slow_consumers == 0


async def test_server_that_restarts_is_no_slow_consumer(nats):
    async with (
        linked(options(nats)) as (a, sink, observer),
        linked(options(nats, "b")) as (b, _, _),
    ):
        a.subscribe(1, "busy", "")
        await a.flushed()
        b.publish_quiet([frame("busy", b"x" * 1000) for _ in range(4000)])
        await sink.until(lambda: len(sink.payloads(1)) > 100)
        nats.kill()
        await sink.until(lambda: not a.is_connected)
        await asyncio.to_thread(nats.start)
        await sink.until(lambda: a.is_connected)
        assert observer.of("nats_slow_consumer") == []


async def test_bytes_waiting_are_bounded_when_the_server_does_not_read(nats):
    bound = 1 << 20
    async with linked(options(nats, pending_bytes_max=bound)) as (messaging, sink, _):
        messaging.subscribe(1, "busy", "")
        await messaging.flushed()
        nats.pause()
        batch = [frame("busy", b"x" * 10_000)] * 10
        accepted = 0

        async def publish():
            nonlocal accepted
            while accepted < 10_000:
                messaging.publish_echo(batch)
                accepted += 10
                await asyncio.sleep(0)

        with pytest.raises(UnavailableError, match="NATS connection busy"):
            await publish()
        assert messaging.echo.pending_bytes < bound + 3 * 110_000
        nats.resume()
        await sink.until(lambda: len(sink.payloads(1)) == accepted)
        messaging.publish_echo(batch)
        await sink.until(lambda: len(sink.payloads(1)) == accepted + 10)


async def test_bound_holds_within_one_turn_of_the_loop(nats):
    async with linked(options(nats, pending_bytes_max=100_000)) as (messaging, _, _):

        def publish():
            for _ in range(100):
                messaging.publish_quiet([frame("x", b"x" * 10_000)])

        with pytest.raises(UnavailableError, match="busy"):
            publish()
        assert messaging.quiet.pending_bytes < 120_000
        await messaging.flushed()
        messaging.publish_quiet([frame("x", b"fine")])


async def test_bound_can_be_changed_while_connected(nats):
    async with linked(options(nats, pending_bytes_max=50_000)) as (messaging, _, _):
        messaging.publish_quiet([frame("x", b"x" * 90_000)])
        with pytest.raises(UnavailableError, match="busy"):
            messaging.publish_quiet([frame("x", b"x")])
        messaging.set_pending_bytes_max(1 << 20)
        messaging.publish_quiet([frame("x", b"x")])
        await messaging.flushed()
        nats.pause()
        messaging.set_pending_bytes_max(100_000)
        assert messaging.backlog_bytes_max == 100_000

        async def publish():
            for _ in range(10_000):
                messaging.publish_quiet([frame("x", b"x" * 10_000)])
                await asyncio.sleep(0)

        with pytest.raises(UnavailableError, match="busy"):
            await publish()
        assert 50_000 < messaging.backlog_bytes < 200_000
        nats.resume()


async def test_stream_is_told_of_when_its_subscription_stands(nats):
    async with linked(options(nats)) as (a, sink, _), linked(options(nats, "b")) as (b, _, _):
        a.subscribe(1, "fresh", "")
        a.subscribe(2, "fresh", "group")
        # Another connection publishes at once: nothing but the wait makes it arrive.
        a.when_subscribed(lambda: b.publish_quiet([frame("fresh", b"x")]))
        await sink.until(lambda: len(sink.deliveries) == 2)
        assert sink.payloads(1) == sink.payloads(2) == [b"x"]


async def test_waiting_for_subscriptions_ends_with_the_link(nats):
    async with linked(options(nats)) as (messaging, _, observer):
        told = asyncio.Event()
        nats.pause()
        messaging.when_subscribed(told.set)
        nats.kill()
        async with asyncio.timeout(10.0):
            await told.wait()
        await observer.until_links("nats_disconnected")
        told.clear()
        messaging.when_subscribed(told.set)
        async with asyncio.timeout(10.0):
            await told.wait()
        with pytest.raises(UnavailableError, match="NATS connection is down"):
            await messaging.flushed()


async def test_failure_after_waiting_for_subscriptions_ends_the_adapter(nats):
    def fail():
        raise ZeroDivisionError

    async def wait():
        async with linked(options(nats)) as (messaging, _, _):
            messaging.when_subscribed(fail)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await wait()
    assert caught.group_contains(ZeroDivisionError)


async def test_one_turn_of_the_loop_makes_one_write(nats):
    async with linked(options(nats)) as (messaging, sink, _):
        messaging.subscribe(1, "turn", "")
        await messaging.flushed()
        for i in range(100):
            messaging.publish_echo([frame("turn", b"%d" % i)])
        assert messaging.echo.pending_bytes > 1000
        await sink.until(lambda: len(sink.payloads(1)) == 100)
        assert len(sink.deliveries) <= 3


async def test_silent_server_is_given_up_and_found_again(nats):
    async with linked(options(nats, ping_interval_ms=100)) as (messaging, sink, observer):
        nats.pause()
        await observer.until_links("nats_disconnected")
        assert observer.of("nats_disconnected")[0]["reason"] == "the server does not answer"
        nats.resume()
        await sink.until(lambda: messaging.is_connected)


async def test_idle_link_lives_on_pings(nats):
    async with linked(options(nats, ping_interval_ms=20)) as (messaging, _, observer):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await observer.until(lambda: observer.of("nats_disconnected"))
        assert len(messaging.quiet._connection._pongs) <= 1


async def test_close_is_bounded_when_the_server_hangs(nats):
    async with linked(options(nats)) as (messaging, _, _):
        nats.pause()
        started = time.monotonic()
        await messaging.close()
        assert time.monotonic() - started < 15.0
    nats.resume()


async def test_close_that_is_given_up_ends_run_all_the_same(nats):
    messaging = NatsMessaging(options(nats), RecordingSink(), RecordingObserver())
    await messaging.start()
    loop = asyncio.get_running_loop()
    running = loop.create_task(messaging.run())
    nats.pause()
    closing = loop.create_task(messaging.close())
    await asyncio.wait((closing,), timeout=0.05)
    assert closing.cancel()
    await asyncio.wait((running, closing), timeout=10.0)
    nats.resume()
    assert running.done()
    assert closing.done()
    assert not messaging.is_connected


async def test_close_while_reconnecting_ends_at_once(nats):
    async with linked(options(nats, reconnect_wait_ms=60_000)) as (messaging, _, observer):
        nats.kill()
        await observer.until(lambda: messaging.quiet.counts.attempts_failed > 0)
        started = time.monotonic()
        await messaging.close()
    assert time.monotonic() - started < 5.0


async def test_start_without_a_server_fails_in_clear_words():
    port = free_port()
    lost = NatsOptions(
        server_id="a",
        servers=(f"nats://user:topsecret@127.0.0.1:{port}",),
        reconnect_wait_ms=1,
    )
    with pytest.raises(UnavailableError) as caught:
        async with linked(lost):
            pass
    text = str(caught.value)
    assert text.startswith(f"cannot connect to NATS after 5 attempts: 127.0.0.1:{port}: ")
    assert "topsecret" not in text


async def test_start_tries_all_servers(nats):
    dead = [f"nats://127.0.0.1:{free_port()}" for _ in range(6)]
    several = NatsOptions(server_id="a", servers=(*dead, nats.url), reconnect_wait_ms=1)
    async with linked(several) as (messaging, _, observer):
        assert messaging.is_connected
        assert observer.of("nats_connected")[0]["server"] == f"127.0.0.1:{nats.port}"


async def test_server_told_of_by_a_cluster_takes_over(tmp_path):
    routes = [free_port(), free_port()]
    first, second = (
        NatsServer(
            tmp_path,
            name=f"n{i}",
            config=f"cluster {{ name: c, listen: 127.0.0.1:{routes[i]},"
            f" routes: [nats://127.0.0.1:{routes[1 - i]}] }}\n",
        )
        for i in range(2)
    )
    with first, second:
        only_first = NatsOptions(server_id="a", servers=(first.url,), reconnect_wait_ms=20)
        async with linked(only_first) as (messaging, sink, observer):
            links = (messaging.quiet, messaging.echo, messaging.acks)
            while not all(link._servers._discovered for link in links):
                await messaging.flushed()
            both = tuple(sorted(f"127.0.0.1:{server.port}" for server in (first, second)))
            assert messaging.quiet.server_cluster == both
            assert messaging.quiet.server == f"127.0.0.1:{first.port}"
            first.kill()
            await sink.until(lambda: not messaging.is_connected)
            assert "" in {link.server for link in links}
            await sink.until(lambda: messaging.is_connected)
            await observer.until_links("nats_reconnected")
            told = {fields["server"] for fields in observer.of("nats_reconnected")}
            assert told == {f"127.0.0.1:{second.port}"}
            # Still speaking to one and the same subscription.
            messaging.subscribe(1, "after", "")
            await messaging.flushed()
            messaging.publish_echo([frame("after", b"x")])
            await sink.until(lambda: sink.payloads(1) == [b"x"])

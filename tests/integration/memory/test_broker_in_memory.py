"""The broker in memory that users run in their tests: it is the real one, and leaves nothing."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from liftbridge_broker.adapters.memory.messaging import SENT_COUNT_MAX, MemoryMessaging, Sent
from liftbridge_broker.api.grpc.turns import SLICE_NS
from liftbridge_broker.errors import FilesError
from liftbridge_broker.server.memory import DRAIN_SECONDS, TRANSITION_COUNT_MAX
from liftbridge_client import (
    AckTimeoutError,
    AlreadyExistsError,
    LiftbridgeError,
    NotFoundError,
    RetriableError,
    Start,
    Stop,
    StreamSettings,
    TooLargeError,
    UsageError,
)
from liftbridge_client.testing import Broker, Fault, NatsMessage
from liftbridge_testkit.node_world import envelope
from liftbridge_testkit.open_files import open_files

BEGIN = datetime(2024, 2, 29, 12, tzinfo=UTC)
START_SECONDS_MAX = 0.05
BROKER_COUNT = 100


@pytest.fixture
async def broker():
    async with Broker(time=BEGIN) as running:
        yield running


@pytest.fixture
async def lb(broker):
    async with broker.client() as client:
        yield client


async def values(stream, start=None):
    reading = stream.subscribe(start=start or Start.earliest(), stop=Stop.latest())
    return [message.value async for message in reading]


def told(broker, kind):
    return [fields for name, fields in broker.transitions if name == kind]


# Life and what the disk keeps.


async def test_stream_is_there_after_a_restart_in_order(broker, lb):
    stream = await lb.streams.create("s", settings=StreamSettings(fsync_policy="never"))
    await stream.publish(b"value")
    address = broker.address
    await broker.restart()
    assert broker.address == address
    assert await values(stream) == [b"value"]
    assert told(broker, "broker_stopped") == [{"is_clean": True}]


async def test_kill_in_the_middle_of_publishing_keeps_what_was_acknowledged(broker, lb):
    stream = await lb.streams.create("s", settings=StreamSettings(fsync_policy="commit"))
    acked: list[bytes] = []
    enough = asyncio.Event()

    async def publish():
        for number in range(1_000_000):
            try:
                await stream.publish(b"%d" % number)
            except LiftbridgeError:
                return
            acked.append(b"%d" % number)
            if len(acked) == 50:
                enough.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publish())
        await enough.wait()
        await broker.kill()
    await broker.restart()
    stored = await values(stream)
    assert stored[: len(acked)] == acked
    assert len(stored) - len(acked) <= 1


async def test_kill_under_policy_never_loses_what_was_not_synced(broker, lb):
    stream = await lb.streams.create("s", settings=StreamSettings(fsync_policy="never"))
    await stream.publish(b"before a restart in order")
    await broker.restart()
    await stream.publish(b"acknowledged and lost")
    await broker.kill()
    await broker.restart()
    assert await values(stream) == [b"before a restart in order"]


async def test_kill_of_the_process_alone_keeps_what_was_written(broker, lb):
    stream = await lb.streams.create("s", settings=StreamSettings(fsync_policy="never"))
    await stream.publish(b"in the page cache")
    await broker.kill(unsynced="kept")
    await broker.restart()
    assert await values(stream) == [b"in the page cache"]


async def test_policy_interval_syncs_when_its_time_has_come(broker, lb):
    stream = await lb.streams.create("s", settings=StreamSettings(fsync_policy="interval"))
    await stream.publish(b"synced")
    await broker.advance(timedelta(seconds=2))
    await stream.publish(b"not yet")
    await broker.kill()
    await broker.restart()
    assert await values(stream) == [b"synced"]


async def test_killed_broker_refuses_connections_until_it_starts_again(broker):
    await broker.kill()
    assert not broker.is_running
    host, _, port = broker.address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
    await broker.restart()
    _, writer = await asyncio.open_connection(host, int(port))
    writer.close()
    await writer.wait_closed()
    assert broker.is_running


async def test_stop_and_kill_of_a_broker_that_does_not_run_do_nothing(broker):
    await broker.kill()
    await broker.kill()
    await broker.stop()
    broker.pause()
    broker.resume()
    await broker.advance(1)
    assert not broker.is_running


async def test_subscription_goes_on_over_kill_and_restart(broker, lb):
    stream = await lb.streams.create("s", settings=StreamSettings(fsync_policy="commit"))
    await stream.publish(b"0")
    messages = aiter(stream.subscribe(start=Start.earliest()))
    assert (await anext(messages)).value == b"0"
    await broker.kill()
    await broker.restart()
    await broker.publish_nats("s", b"1")
    assert (await anext(messages)).value == b"1"
    await messages.aclose()


# Time.


async def test_message_has_the_time_of_the_broker(broker, lb):
    stream = await lb.streams.create("s")
    await broker.advance(timedelta(hours=1))
    ack = await stream.publish(b"value")
    assert broker.time == BEGIN + timedelta(hours=1)
    assert ack.timestamp == int(broker.time.timestamp()) * 10**9
    await broker.advance(3_600)
    await stream.publish(b"later")
    assert await values(stream, Start.time(BEGIN + timedelta(hours=2))) == [b"later"]


async def test_retention_by_age_removes_what_is_too_old(broker, lb):
    settings = StreamSettings(
        retention_max_age=timedelta(days=7),
        segment_max_age=timedelta(days=1),
        cleaner_interval=timedelta(minutes=5),
    )
    stream = await lb.streams.create("s", settings=settings)
    await stream.publish(b"old")
    await broker.advance(timedelta(days=2))
    await stream.publish(b"new")
    await broker.advance(timedelta(days=6))
    await stream.publish(b"newest")
    assert await values(stream) == [b"new", b"newest"]
    assert told(broker, "segments_deleted")


async def test_idle_stream_pauses_and_goes_on_with_the_next_message(broker, lb):
    settings = StreamSettings(auto_pause_time=timedelta(minutes=10))
    stream = await lb.streams.create("s", settings=settings)
    await stream.publish(b"0")
    await broker.advance(timedelta(minutes=9))
    assert not (await stream.info()).partitions[0].paused
    await broker.advance(timedelta(minutes=12))
    assert (await stream.info()).partitions[0].paused
    await stream.publish(b"1")
    assert not (await stream.info()).partitions[0].paused
    assert await values(stream) == [b"0", b"1"]


async def test_time_does_not_go_back_and_does_not_stop_with_the_broker(broker):
    with pytest.raises(UsageError, match="back"):
        await broker.advance(-1)
    await broker.kill()
    await broker.advance(60)
    await broker.restart()
    assert broker.time == BEGIN + timedelta(minutes=1)


# Pause.


async def test_paused_broker_answers_nothing_and_goes_on_with_what_came(broker, lb):
    stream = await lb.streams.create("s")
    broker.pause()
    waiting = asyncio.get_running_loop().create_task(stream.publish(b"patient"))
    seconds = timedelta(seconds=0.2)
    async with asyncio.timeout(5):
        with pytest.raises(LiftbridgeError):
            async with broker.client(timeout=seconds, retry_time=seconds):
                pass
    assert not waiting.done()
    broker.resume()
    assert (await waiting).offset == 0
    assert await values(stream) == [b"patient"]


async def test_call_times_out_while_the_broker_is_paused(broker):
    seconds = timedelta(seconds=0.2)
    async with broker.client(timeout=seconds, retry_time=seconds) as lb:
        stream = await lb.streams.create("s")
        await stream.publish(b"0")
        broker.pause()
        with pytest.raises((AckTimeoutError, RetriableError)):
            await stream.publish(b"1")
        broker.resume()
        await stream.publish(b"2")
    stored = await values_of(broker, "s")
    assert stored[0], stored[-1] == (b"0", b"2")


async def values_of(broker, name):
    async with broker.client() as lb:
        return await values(lb.streams.get(name))


async def test_no_deadline_is_met_during_a_pause_and_all_are_after(broker, lb):
    stream = await lb.streams.create("s", settings=StreamSettings(fsync_policy="interval"))
    await stream.publish(b"0")
    broker.pause()
    await broker.advance(60)
    synced = broker.disk.power.points
    broker.resume()
    await broker.publish_nats("unheard", b"")  # returns when the broker has come to rest
    assert broker.disk.power.points > synced
    await broker.kill()
    await broker.restart()
    assert await values(stream) == [b"0"]


async def test_pause_holds_up_what_was_about_to_be_done(broker, lb):
    stream = await lb.streams.create("s")
    publishing = asyncio.get_running_loop().create_task(broker.publish_nats("s", b"0"))
    await asyncio.sleep(0)  # published, and not delivered yet
    broker.pause()
    points = broker.disk.power.points
    for _ in range(10):
        await asyncio.sleep(0)
    assert broker.disk.power.points == points
    await publishing
    broker.resume()
    assert await values(stream) == [b"0"]


async def test_paused_broker_can_be_killed_and_restarted(broker, lb):
    stream = await lb.streams.create("s")
    await stream.publish(b"0")
    broker.pause()
    await broker.restart()
    assert await values(stream) == [b"0"]
    broker.pause()
    await broker.kill()
    await broker.restart()
    assert await values(stream) == [b"0"]


async def test_connection_closed_during_a_pause_is_forgotten(broker):
    host, _, port = broker.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    broker.pause()
    _, second = await asyncio.open_connection(host, int(port))
    for each in (writer, second):
        each.close()
        await each.wait_closed()
    broker.resume()
    async with asyncio.timeout(DRAIN_SECONDS / 2):  # nobody is waited for
        await broker.stop()
    assert not broker.is_running


# NATS.


async def test_plain_message_is_stored_with_its_headers_and_acked(broker, lb):
    stream = await lb.streams.create("s", subject="orders.*")
    await broker.publish_nats("orders.eu", b"plain", reply="answers", headers={"trace": "1"})
    (message,) = [m async for m in stream.subscribe(start=Start.earliest(), stop=Stop.latest())]
    assert (message.value, message.subject) == (b"plain", "orders.eu")
    assert broker.nats_messages("orders.>") == [
        NatsMessage("orders.eu", b"plain", "answers", {"trace": "1"})
    ]


async def test_envelope_is_acknowledged_on_its_inbox(broker, lb):
    await lb.streams.create("s")
    data = envelope(b"value", ackInbox="acks", correlationId="7")
    await broker.publish_nats("s", data)
    assert [message.subject for message in broker.nats_messages()] == ["s", "acks"]


async def test_published_message_reaches_other_listeners_of_its_subject(broker, lb):
    stream = await lb.streams.create("s", subject="orders")
    await stream.publish(b"value")
    (copy,) = broker.nats_messages("orders")
    assert b"value" in copy.data


async def test_message_for_a_broker_that_is_away_is_lost_as_nats_loses_it(broker, lb):
    stream = await lb.streams.create("s")
    await broker.kill()
    await broker.publish_nats("s", b"lost")
    await broker.restart()
    broker.pause()
    await broker.publish_nats("s", b"kept by NATS while the broker is paused")
    broker.resume()
    assert await values(stream) == [b"kept by NATS while the broker is paused"]


async def test_queue_group_of_streams_gets_a_message_once(broker, lb):
    streams = [await lb.streams.create(name, subject="s", group="g") for name in ("a", "b")]
    for number in range(4):
        await broker.publish_nats("s", b"%d" % number)
    stored = [value for stream in streams for value in await values(stream)]
    assert sorted(stored) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("subject", "data", "more"),
    [
        ("a b", b"", {}),
        ("", b"", {}),
        ("a", b"", {"reply": "a\r\nPUB b 0"}),
        ("a", b"", {"headers": {"a": "b\r\nc: d"}}),
        ("a", b"", {"headers": {"a:b": "c"}}),
        ("a", bytes((1 << 20) + 1), {}),
    ],
)
async def test_message_that_nats_does_not_take_is_refused(broker, subject, data, more):
    with pytest.raises(UsageError):
        await broker.publish_nats(subject, data, **more)
    assert broker.nats_messages() == []


async def test_wrong_subject_to_look_for_is_refused(broker):
    with pytest.raises(UsageError):
        broker.nats_messages("a b")


def test_only_so_many_messages_are_remembered():
    messaging = MemoryMessaging()
    sent = [Sent("s", b"%d" % n, b"", is_quiet=False) for n in range(SENT_COUNT_MAX + 1)]
    for message in sent:
        messaging.publish([message])
    assert messaging.sent == sent[-SENT_COUNT_MAX // 2 :]


# Errors.


async def test_refusals_are_those_of_the_real_broker(broker, lb):
    stream = await lb.streams.create("s")
    with pytest.raises(AlreadyExistsError):
        await lb.streams.create("s")
    with pytest.raises(NotFoundError):
        await lb.streams.get("none").publish(b"")
    await stream.set_cursor("c", 0)
    assert await stream.fetch_cursor("c") == 0


async def test_full_disk_refuses_publishes_and_serves_reads(broker, lb):
    stream = await lb.streams.create("s")
    await stream.publish(b"0")
    broker.disk.fail(Fault("append", count=-1, is_full=True))
    async with broker.client(retry_time=timedelta(0)) as impatient:
        with pytest.raises(LiftbridgeError, match=r"(?i)full|space"):
            await impatient.streams.get("s").publish(b"1")
    assert await values(stream) == [b"0"]
    broker.disk.heal()
    await broker.advance(10)
    await stream.publish(b"2")
    assert await values(stream) == [b"0", b"2"]


async def test_broken_disk_ends_the_broker_and_a_restart_recovers(broker, lb):
    stream = await lb.streams.create("s", settings=StreamSettings(fsync_policy="commit"))
    await stream.publish(b"0")
    broker.disk.fail(Fault("sync"))
    with pytest.raises(LiftbridgeError):
        await stream.publish(b"1")
    assert not broker.is_running
    await broker.restart()
    assert (await values(stream))[0] == b"0"


async def test_disk_that_refuses_the_last_sync_is_told_by_stop_and_not_by_the_end(broker, lb):
    stream = await lb.streams.create("s")
    await stream.publish(b"0")
    broker.disk.fail(Fault("sync", count=-1))
    with pytest.raises(FilesError, match="Input/output error"):
        await broker.stop()
    assert not broker.is_running
    broker.disk.heal()
    await broker.restart()
    broker.disk.fail(Fault("sync", count=-1))


async def test_wrong_setting_is_named_and_nothing_is_left():
    with pytest.raises(UsageError, match=r"no\.such\.key"):
        async with Broker(config={"no.such.key": "1"}):
            pass


async def test_setting_is_in_force():
    config = {"clustering.replication.max.bytes": "2000"}
    async with Broker(config=config) as broker, broker.client() as lb:
        stream = await lb.streams.create("s")
        with pytest.raises(TooLargeError):
            await stream.publish(bytes(2_000))


def test_time_without_a_zone_is_refused():
    with pytest.raises(UsageError, match="time zone"):
        Broker(time=datetime(2024, 1, 1))  # noqa: DTZ001 - which is what is refused


async def test_only_so_many_transitions_are_remembered(broker):
    for number in range(TRANSITION_COUNT_MAX + 1):
        broker._broker._life.transition("bug_found", {"number": number})
    assert len(broker.transitions) <= TRANSITION_COUNT_MAX
    assert broker.transitions[-1].fields == {"number": TRANSITION_COUNT_MAX}


@pytest.mark.parametrize("slice_ns", [SLICE_NS, 0], ids=["at once", "queued"])
async def test_bug_in_the_broker_ends_it_and_reaches_the_test(slice_ns, monkeypatch):
    monkeypatch.setattr("liftbridge_broker.api.grpc.calls.SLICE_NS", slice_ns)

    async def run():
        async with Broker() as broker, broker.client() as lb:
            stream = await lb.streams.create("s")
            broker._broker._life._core.node.context.store.note_append = None
            with pytest.raises(LiftbridgeError):
                await stream.publish(b"0")
            assert not broker.is_running

    with pytest.raises(TypeError, match="NoneType"):
        await run()


def test_missing_broker_is_named_with_the_remedy():
    program = (
        "import sys; sys.modules['liftbridge_broker'] = None; import liftbridge_client.testing"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "ImportError: liftbridge_client.testing needs the broker" in done.stderr
    assert "pip install 'liftbridge[testing]'" in done.stderr


# Several, and what they leave.


async def test_two_brokers_do_not_disturb_each_other():
    async with Broker() as one, Broker() as other:
        async with one.client() as first, other.client() as second:
            here = await first.streams.create("s")
            there = await second.streams.create("s")
            await one.publish_nats("s", b"here")
            await one.advance(2)  # the default policy syncs every second
            await other.advance(60)
            await there.publish(b"there")
            await one.kill()
            assert await values(there) == [b"there"]
            await one.restart()
            assert await values(here) == [b"here"]
        assert one.address != other.address
        assert other.time - one.time > timedelta(seconds=50)


async def test_closed_broker_leaves_no_task_no_thread_and_no_port():
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    before = open_files()
    async with Broker() as broker:
        opened = open_files() - before
        assert asyncio.all_tasks() == tasks
        assert set(threading.enumerate()) <= threads
        host, _, port = broker.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await broker.kill()
        assert await reader.read() == b"" or reader.at_eof()
        writer.close()
        await broker.restart()
        assert (open_files() - before).total() <= opened.total()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # over dead connections
        free.bind((host, int(port)))
    assert not open_files() - before
    assert asyncio.all_tasks() == tasks
    assert set(threading.enumerate()) <= threads


async def test_a_hundred_brokers_start_and_end_in_one_process():
    began = time.perf_counter()
    before = open_files()
    for _ in range(BROKER_COUNT):
        async with Broker() as broker:
            assert broker.is_running
    assert not open_files() - before
    assert time.perf_counter() - began < BROKER_COUNT * START_SECONDS_MAX

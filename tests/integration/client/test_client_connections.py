"""How the client reaches brokers: TLS, certificates, several seeds, and what it tells of it."""

import asyncio
import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from liftbridge_client import (
    LiftbridgeError,
    OutcomeUnknownError,
    RetriableError,
    Start,
    Stop,
    TlsFiles,
    UsageError,
    connect,
    connect_sync,
    events,
)
from liftbridge_client.cli.app import run
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.processes import Broker

SHORT = timedelta(seconds=2)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("strangers"), "strangers")


@contextlib.contextmanager
def running(broker):
    """A broker that speaks TLS; its own readiness check speaks plaintext."""

    def listens():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", broker.port)) == 0

    try:
        broker.spawn()
        broker.wait_until(listens, "listening")
        yield broker
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def tls_broker(authority, tmp_path_factory):
    server = authority.issue("server")
    config = {"tls.cert": str(server.cert), "tls.key": str(server.key)}
    with running(Broker(tmp_path_factory.mktemp("tls"), config=config)) as broker:
        yield broker


@pytest.fixture(scope="module")
def mtls_broker(authority, tmp_path_factory):
    server = authority.issue("mutual", names=("broker.example",))
    config = {
        "tls.cert": str(server.cert),
        "tls.key": str(server.key),
        "tls.client.auth.enabled": True,
        "tls.client.auth.ca": str(authority.cert),
    }
    with running(Broker(tmp_path_factory.mktemp("mtls"), config=config)) as broker:
        yield broker


async def use(address, tls, name):
    """Create, publish, read: every kind of call."""
    async with connect(address, tls=tls, retry_time=timedelta(seconds=20)) as lb:
        assert lb.has_data
        stream = await lb.streams.create(name)
        async with stream.publisher(idempotent=True) as publisher:
            await publisher.publish_batch([b"a", b"b"])
        await stream.publish(b"c")
        reading = stream.subscribe(start=Start.earliest(), stop=Stop.latest())
        return [message.value async for message in reading]


async def test_client_that_trusts_the_authority_works_over_tls(tls_broker, authority):
    values = await use(tls_broker.address, TlsFiles(ca=authority.cert), "trusted")
    assert values == [b"a", b"b", b"c"]


async def assert_refused(address, tls):
    """No connection, and an error that says so; the broker serves others meanwhile."""
    with pytest.raises(RetriableError):
        await connect(
            address, tls=tls, timeout=SHORT, retry_time=timedelta(seconds=0.1)
        ).__aenter__()


async def test_broker_of_a_stranger_is_not_trusted(tls_broker, strangers):
    await assert_refused(tls_broker.address, TlsFiles(ca=strangers.cert))


async def test_plaintext_to_a_tls_port_ends_in_an_error_and_not_in_a_hang(tls_broker):
    async with asyncio.timeout(20):
        await assert_refused(tls_broker.address, None)


async def test_certificate_of_another_name_is_taken_only_when_it_is_named(mtls_broker, authority):
    mine = authority.issue("me")
    files = {"ca": authority.cert, "cert": mine.cert, "key": mine.key}
    await assert_refused(mtls_broker.address, TlsFiles(**files))
    named = TlsFiles(**files, server_name="broker.example")
    assert await use(mtls_broker.address, named, "named") == [b"a", b"b", b"c"]


async def test_broker_says_whose_certificate_it_verified(mtls_broker, authority):
    mine = authority.issue("me", names=("billing.example", "10.0.0.7"), common_name="billing")
    files = TlsFiles(ca=authority.cert, cert=mine.cert, key=mine.key, server_name="broker.example")
    async with connect(mtls_broker.address, tls=files) as lb:
        caller = await lb.who_am_i()
    assert caller.certificate is not None
    assert caller.certificate[:2] == ("billing", ("DNS:billing.example", "IP Address:10.0.0.7"))
    assert timedelta(days=29) < caller.certificate.expires - datetime.now(UTC) < timedelta(days=31)


async def test_certificate_that_outlives_64_bits_of_nanoseconds_is_reported(mtls_broker, authority):
    mine = authority.issue("lasting", days=2_900_000)  # RFC 5280 4.1.2.5 allows for the year 9999
    files = TlsFiles(ca=authority.cert, cert=mine.cert, key=mine.key, server_name="broker.example")
    async with connect(mtls_broker.address, tls=files) as lb:
        caller = await lb.who_am_i()
    assert caller.certificate is not None
    assert caller.certificate.expires.year > 9_900


async def test_broker_says_that_it_saw_no_certificate(tls_broker, authority):
    async with connect(tls_broker.address, tls=TlsFiles(ca=authority.cert)) as lb:
        assert (await lb.who_am_i()).certificate is None


def test_broker_says_which_address_a_client_has(broker, capsys):
    with connect_sync(broker.address) as one, connect_sync(broker.address) as other:
        caller = one.who_am_i()
        assert one.who_am_i() == caller
        assert other.who_am_i().address != caller.address
    host, _, port = caller.address.rpartition(":")
    assert (host, port.isdigit(), caller.listener) == ("127.0.0.1", True, "")
    assert run(["whoami", "--servers", broker.address, "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["broker"], shown["expires"]) == (caller.broker, None)


async def test_mutual_tls_refuses_clients_without_a_known_certificate(
    mtls_broker, authority, strangers
):
    await assert_refused(
        mtls_broker.address, TlsFiles(ca=authority.cert, server_name="broker.example")
    )
    other = strangers.issue("other")
    await assert_refused(
        mtls_broker.address,
        TlsFiles(ca=authority.cert, cert=other.cert, key=other.key, server_name="broker.example"),
    )


async def test_file_that_cannot_be_read_is_named_and_the_client_stays_closed(tmp_path):
    client = connect("127.0.0.1:1", tls=TlsFiles(ca=tmp_path / "absent.pem"))
    with pytest.raises(UsageError, match=r"absent\.pem"):
        await client.__aenter__()
    with pytest.raises(UsageError, match="not open"):
        await client.metadata()


def test_profile_holds_what_mutual_tls_needs(mtls_broker, authority, tmp_path, monkeypatch, capsys):
    mine = authority.issue("profile")
    monkeypatch.setenv("LIFTBRIDGE_CONFIG", str(tmp_path / "profiles.toml"))
    add = ["profile", "add", "secure", "--servers", mtls_broker.address]
    files = ["--ca", str(authority.cert), "--cert", str(mine.cert), "--key", str(mine.key)]
    assert run([*add, *files, "--server-name", "broker.example", "-o", "json"]) == 0
    assert run(["create", "by-profile"]) == 0
    assert run(["publish", "by-profile", "x"]) == 0
    capsys.readouterr()
    assert run(["subscribe", "by-profile", "--format", "%v"]) == 0
    assert capsys.readouterr().out == "x"


# -- seeds ------------------------------------------------------------------------------------


@pytest.fixture
def silent_seeds():
    """Two that take connections and never say a word, as frozen brokers do."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        yield [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


async def test_dead_and_silent_seeds_cost_a_moment_only(broker, silent_seeds):
    seeds = ["127.0.0.1:1", *silent_seeds, "no-such-host.invalid:9292", broker.address]
    # One timeout is longer than all that is allowed here: silence must not be waited for.
    patient = timedelta(seconds=30)
    async with (
        asyncio.timeout(5),
        connect(",".join(seeds), timeout=patient, retry_time=patient) as lb,
    ):
        assert [b.port for b in (await lb.metadata()).brokers.values()] == [broker.port]


async def test_frozen_broker_does_not_keep_the_others_from_being_asked(broker, mortal_broker):
    patient = timedelta(seconds=30)
    seeds = f"{mortal_broker.address},{broker.address}"
    async with asyncio.timeout(15), connect(seeds, timeout=patient, retry_time=patient) as lb:
        assert [b.port for b in (await lb.metadata()).brokers.values()] == [mortal_broker.port]
        mortal_broker.pause()
        assert [b.port for b in (await lb.metadata()).brokers.values()] == [broker.port]


async def test_no_seed_that_answers_is_told_after_the_retry_time(silent_seeds):
    seeds = ",".join(["127.0.0.1:1", *silent_seeds])
    async with asyncio.timeout(15):
        with pytest.raises(RetriableError):
            await connect(seeds, timeout=SHORT, retry_time=SHORT).__aenter__()


# -- events -----------------------------------------------------------------------------------


async def until(listener, kind):
    """Events up to the first of a kind, that one last."""
    found = []
    async with asyncio.timeout(30):
        async for event in listener:
            found.append(event)
            if isinstance(event, kind):
                return found
    raise AssertionError(f"ended before {kind.__name__}: {found}")


async def test_client_tells_of_an_outage_once_and_of_its_end(mortal_broker, name):
    broker, patient = mortal_broker, timedelta(seconds=60)
    async with connect(broker.address, timeout=SHORT, retry_time=patient) as lb:
        listener = lb.events()
        assert await until(listener, events.Connected) == [events.Connected(broker.address)]
        stream = await lb.streams.create(name)
        appeared = (await until(listener, events.StreamsChanged))[-1]
        assert appeared == events.StreamsChanged((name,), ())
        async with stream.publisher(idempotent=True) as publisher:
            await publisher.publish(b"0")
            reading = aiter(stream.subscribe(start=Start.earliest()))
            assert (await anext(reading)).value == b"0"
            broker.kill()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(lb.metadata())
                tasks.create_task(publisher.publish(b"1"))
                second = tasks.create_task(anext(reading))
                outage = await until(listener, events.ConnectFailed)
                await asyncio.to_thread(broker.start)
            assert second.result().value == b"1"
            await reading.aclose()
        outage += await until(listener, events.Connected)
    kinds = [type(event) for event in outage]
    assert kinds.count(events.Disconnected) == kinds.count(events.ConnectFailed) == 1
    assert kinds.index(events.Disconnected) < kinds.index(events.ConnectFailed)
    told = [event for event in outage if hasattr(event, "cause")]
    assert all(isinstance(event.cause, LiftbridgeError) for event in told)
    assert {type(event) for event in told} == {
        events.CallRetried,
        events.PublisherReconnects,
        events.SubscriptionReconnects,
    }
    assert [event async for event in listener if isinstance(event, events.Connected)] == []


async def test_client_tells_what_is_slow(mortal_broker, name):
    async with connect(mortal_broker.address, timeout=SHORT, retry_time=SHORT) as lb:
        stream = await lb.streams.create(name)
        listener = lb.events(slow_after=timedelta(seconds=0.2))
        async with stream.publisher() as publisher:
            await publisher.publish(b"0")
            mortal_broker.pause()
            lost = publisher.publish_nowait(b"1")
            slow = (await until(listener, events.SlowAcks))[-1]
            with pytest.raises(OutcomeUnknownError):
                await lost
            with pytest.raises(LiftbridgeError):
                await lb.metadata()
            call = (await until(listener, events.SlowCall))[-1]
        mortal_broker.resume()
    assert (slow.stream, slow.partition, slow.waiting_count) == (name, 0, 1)
    assert slow.seconds >= 0.2
    assert call.method == "/proto.API/FetchMetadata"
    assert call.seconds > 0.5


async def test_nothing_is_watched_until_somebody_listens(broker):
    async with connect(broker.address) as lb:
        before = len(asyncio.all_tasks())
        listener = lb.events()
        assert len(asyncio.all_tasks()) > before
        await listener.aclose()
        with pytest.raises(UsageError, match="not open"):
            connect(broker.address).events()


def test_blocking_listener_ends_when_the_client_is_closed(broker):
    found = []
    with connect_sync(broker.address) as lb, ThreadPoolExecutor(1) as pool:
        listener = lb.events()
        assert next(listener) == events.Connected(broker.address)
        rest = pool.submit(lambda: found.extend(listener))
        lb.streams.create("told")
        lb.close()
        rest.result(10)
    assert events.StreamsChanged(("told",), ()) in found
    assert list(listener) == []

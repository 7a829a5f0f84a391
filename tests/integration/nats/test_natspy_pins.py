"""What `adapters.nats.natspy` relies on inside nats-py; a failure here is to be read with it."""

import asyncio
import inspect
from importlib.metadata import version
from types import SimpleNamespace

from nats.aio import client as natspy
from nats.aio.transport import Transport

from liftbridge_broker.adapters.nats.connection import Connection
from liftbridge_broker.adapters.nats.credentials import Credentials
from liftbridge_broker.adapters.nats.natspy import Handshake, shake_hands
from liftbridge_testkit.processes import NatsServer


def test_version_is_the_one_that_was_read():
    assert version("nats-py").split(".")[:2] == ["2", "16"]


def test_transport_asks_for_what_ours_implements():
    assert Transport.__abstractmethods__ == {
        "__bool__", "at_eof", "close", "connect", "connect_tls", "drain", "read", "readline",
        "wait_closed", "write", "writelines",
    }  # fmt: skip


def test_transport_that_is_set_before_is_kept():
    source = inspect.getsource(natspy.Client._connect_to_server)
    assert "if not self._transport:" in source


def test_read_loop_only_waits_for_the_end():
    source = inspect.getsource(natspy.Client._read_loop)
    assert source.index("self._transport.at_eof()") < source.index("self._transport.read(")


def test_connect_and_ping_are_written_one_after_the_other():
    source = inspect.getsource(natspy.Client._process_connect_init)
    connect = source.index("self._transport.write(connect_cmd)")
    between = source[connect : source.index("self._transport.write(PING_PROTO)")]
    assert 'if self.options["verbose"]:' in between
    assert between.count("write(") == 1


def test_connect_takes_the_arguments_that_are_given():
    parameters = inspect.signature(natspy.Client.connect).parameters
    assert {
        "name", "no_echo", "allow_reconnect", "max_reconnect_attempts", "reconnect_time_wait",
        "connect_timeout", "ping_interval", "tls", "tls_hostname", "user", "password", "token",
        "error_cb", "user_credentials", "nkeys_seed_str",
    } <= set(parameters)  # fmt: skip


def test_a_seed_in_a_text_makes_the_public_key_anew_at_each_connection():
    source = inspect.getsource(natspy.Client._setup_nkeys_seed_connect)
    assert "_nkeys_seed_str" in source


async def test_client_ends_its_tasks_when_our_transport_ends(tmp_path):
    lost = asyncio.Event()
    handler = SimpleNamespace(
        on_info=lambda _body: None, on_lost=lambda _connection, _reason: lost.set()
    )
    with NatsServer(tmp_path) as nats:
        loop = asyncio.get_running_loop()
        before = asyncio.all_tasks()
        connection = Connection(handler, loop, pending_bytes_max=1 << 20, ping_interval_s=60.0)
        await loop.create_connection(lambda: connection, "127.0.0.1", nats.port)
        session = await shake_hands(
            connection,
            Handshake(
                url=nats.url, tls_host="", tls=None, credentials=Credentials(), name="pin",
                no_echo=True, timeout_s=5.0,
            ),
        )  # fmt: skip
        connection.begin()
        assert session.facts.client_id > 0
        assert session.facts.server_id.startswith("N")
        assert session.facts.payload_bytes_max == 1 << 20
        await connection.flushed()
        assert len(asyncio.all_tasks() - before) == 3
        nats.kill()
        await lost.wait()
        await session.close(5.0)
        for task in asyncio.all_tasks() - before:
            await asyncio.wait([task], timeout=5.0)
        assert asyncio.all_tasks() == before

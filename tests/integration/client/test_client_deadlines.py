"""One deadline for a call with everything in it, whatever becomes of the server.

The calls are those of the client's classes: a method that is new is called here as well, or fails
for want of an argument.
"""

import asyncio
import inspect
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from time import monotonic

import grpc.aio
import pyarrow as pa
import pytest

import liftbridge_client as lb
from liftbridge_client import connect, connect_admin, connect_admin_sync, connect_sync
from liftbridge_client.admin_model import Member, PartitionName
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import admin_pb2, data_pb2

TRY_SECONDS = 2.0
CALL_SECONDS = 3.0
LATE_SECONDS = 1.5
"""What a busy machine may add; less than another try."""

WAIT_SECONDS = 0.5
LIMITS = {
    "timeout": timedelta(seconds=TRY_SECONDS),
    "retry_time": timedelta(seconds=CALL_SECONDS),
}
MEMBER = Member("b", "d" * 32)
RECORDS = pa.record_batch({"offset": pa.array([0], pa.int64()), "value": [b"v"]})
ARGUMENTS = {
    "name": "s",
    "known": {"s": {0: 0}},
    "wait": timedelta(seconds=WAIT_SECONDS),
    "subject": "s",
    "value": b"v",
    "partition": 0,
    "settings": lb.StreamSettings(retention_max_bytes=1),
    "cursor_id": "c",
    "offset": 0,
    "broker": "b",
    "token": b"t",
    "data_dir_id": "d",
    "level": 1,
    "bytes_per_second": 1,
    "stream": "s",
    "owner": "o",
    "stream_id": 1,
    "partition_epoch": 1,
    "target": ["b"],
    "cluster_id": "c",
    "members": [MEMBER],
    "member": MEMBER,
    "messages": [b"v"],
}
OTHERS = {
    ("Stream", "publish_columns"): {"batches": [RECORDS.select(["value"])]},
    ("Stream", "restore"): {"batches": [RECORDS]},
}
PARTITIONS = {"elect_unclean", "start_reassignment", "cancel_reassignment"}
LIVES = {"aclose", "close", "flush"}


class Server:
    """Every method of the API, answered as long as it is well."""

    def __init__(self):
        self.mood = "well"
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((self,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        partition = api_pb2.PartitionMetadata(leader="b", replicas=["b"], isr=["b"])
        stream = api_pb2.StreamMetadata(name="s", subject="s", partitions={0: partition})
        self.answers = {
            "/proto.API/FetchMetadata": api_pb2.FetchMetadataResponse(
                brokers=[api_pb2.Broker(id="b", host="127.0.0.1", port=self.port)],
                streamMetadata=[stream],
            ),
            "/liftbridge.ext.v1.Data/ListStreams": data_pb2.ListStreamsResponse(),
            "/liftbridge.ext.v1.Admin/Identity": admin_pb2.IdentityResponse(broker="b"),
        }

    def service(self, details):
        async def on(_requests, call):
            return await self.on(details.method, call)

        return grpc.stream_stream_rpc_method_handler(on)

    async def on(self, method, call):
        if self.mood == "unavailable":
            await call.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        if self.mood == "silent" or method not in self.answers:
            await asyncio.Event().wait()
        await call.write(self.answers[method].SerializeToString())

    async def become(self, mood):
        self.mood = mood
        if mood == "refuses":
            await self.server.stop(0)


@pytest.fixture
async def server():
    made = Server()
    await made.server.start()
    yield made
    await made.server.stop(0)


def calls_of(thing):
    """Every public method of an object that may ask a server, with arguments for it."""
    kind = type(thing)
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") or name in LIVES:
            continue
        if name == "activity":
            continue  # a subscription, which asks nobody yet
        if name in {
            "events",
            "get",
            "publisher",
            "subscribe",
            "column_publisher",
            "restorer",
        }:
            continue  # these ask nobody
        if name in {"put", "end", "on_settled", "publish_nowait"}:
            continue
        given = OTHERS.get((kind.__name__.removeprefix("Sync"), name), {})
        named = dict(given)
        for one in list(inspect.signature(method).parameters.values())[1:]:
            if one.name not in named and one.default is inspect.Parameter.empty:
                if one.kind is inspect.Parameter.VAR_POSITIONAL:
                    continue
                special = one.name == "partition" and name in PARTITIONS
                named[one.name] = PartitionName("s", 0) if special else ARGUMENTS[one.name]
        yield f"{kind.__name__}.{name}", method, thing, named


async def outcome(method, thing, named):
    """Call it, to its end when it is a generator; what it raises, and how long that took."""
    began = monotonic()
    error = None
    try:
        if inspect.isasyncgenfunction(method):
            async for _ in method(thing, **named):
                pass
        elif inspect.iscoroutinefunction(method):
            await method(thing, **named)
        else:

            def run():
                found = method(thing, **named)
                if inspect.isgenerator(found):
                    list(found)

            with ThreadPoolExecutor(1) as own:  # nobody waits for the thread of another call
                await asyncio.get_running_loop().run_in_executor(own, run)
    except lb.LiftbridgeError as failure:
        error = failure
    return error, monotonic() - began


async def aio_things(server, stack):
    client = await stack.enter_async_context(connect(server.address, **LIMITS))
    admin = await stack.enter_async_context(connect_admin(server.address, **LIMITS))
    stream = client.streams.get("s")
    publisher = await stream.publisher().__aenter__()
    subscription = stream.subscribe(start=lb.Start.earliest(), stop=lb.Stop.latest())
    return [client, client.streams, stream, publisher, subscription, admin]


def sync_things(server, stack):
    client = stack.enter_context(connect_sync(server.address, **LIMITS))
    admin = stack.enter_context(connect_admin_sync(server.address, **LIMITS))
    stream = client.streams.get("s")
    publisher = stream.publisher().__enter__()
    subscription = stream.subscribe(start=lb.Start.earliest(), stop=lb.Stop.latest())
    return [client, client.streams, stream, publisher, subscription, admin]


def late(ends):
    """Calls that took longer than they may."""
    return {
        name: round(seconds, 1)
        for name, (_, seconds) in ends.items()
        if seconds > CALL_SECONDS + LATE_SECONDS
    }


@pytest.mark.parametrize("mood", ["silent", "refuses", "unavailable"])
@pytest.mark.parametrize("twin", ["aio", "sync"])
async def test_every_call_ends_within_its_one_deadline(server, mood, twin):
    async with AsyncExitStack() as stack:
        if twin == "aio":
            things = await aio_things(server, stack)
        else:
            blocking = ExitStack()
            stack.push_async_callback(asyncio.to_thread, blocking.close)
            things = await asyncio.to_thread(sync_things, server, blocking)
        cases = [case for thing in things for case in calls_of(thing)]
        assert len(cases) > 50
        await server.become(mood)
        found = await asyncio.gather(*(outcome(*case[1:]) for case in cases))
        ends = dict(zip((case[0] for case in cases), found, strict=True))
        assert late(ends) == {}
        # Whoever cannot answer ends a wait for news, addresses that do not answer are left out, and
        # a batch has its errors among its results.
        quiet = {name.partition(".")[2] for name, (error, _) in ends.items() if error is None}
        assert quiet <= {"await_news", "identities", "publish_batch"}


@pytest.mark.parametrize("mood", ["silent", "refuses", "unavailable"])
@pytest.mark.parametrize("kind", [connect, connect_sync])
async def test_connecting_ends_within_its_one_deadline(server, mood, kind):
    await server.become(mood)
    client = kind(server.address, **LIMITS)
    enter = getattr(type(client), "__aenter__", None) or type(client).__enter__
    error, seconds = await outcome(enter, client, {})
    assert isinstance(error, lb.RetriableError)
    assert seconds < CALL_SECONDS + LATE_SECONDS


async def test_connecting_to_a_port_that_says_nothing_ends_within_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = connect(f"127.0.0.1:{silent.getsockname()[1]}", **LIMITS)
        error, seconds = await outcome(type(client).__aenter__, client, {})
    assert isinstance(error, lb.RetriableError)
    assert seconds < CALL_SECONDS + LATE_SECONDS

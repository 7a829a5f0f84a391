"""Everything that can be closed may be closed twice, in any order, and before it was opened."""

import asyncio
import inspect
from itertools import product

import pytest

import liftbridge_client
from liftbridge_client import ClosedError, connect, connect_sync

MAKES = {
    "publisher": lambda _lb, stream: stream.publisher(),
    "idempotent": lambda _lb, stream: stream.publisher(idempotent=True),
    "columns": lambda _lb, stream: stream.column_publisher(),
    "events": lambda lb, _stream: lb.events(),
    "consumer": lambda lb, stream: lb.consumers.join(stream.name, [stream.name]),
    "messages": lambda _lb, stream: stream.subscribe().batches(),
    "descriptions": lambda lb, _stream: lb.streams.describe(),
    "bulk": lambda _lb, stream: stream.fetch_columns(),
}
CLOSES = ("aclose", "close", "__aexit__", "__exit__")
ORDERS = ["".join(one) for one in product("ct", repeat=3) if "t" in one]
"""Who is closed after whom: the client or the thing."""

OPENED = [False, True]


def arguments(close):
    """Of a call that closes."""
    return (None, None, None) if close.__name__ in ("__aexit__", "__exit__") else ()


def closes_of(thing):
    return [getattr(thing, name) for name in CLOSES if hasattr(thing, name)]


def test_every_class_that_closes_is_tried():
    closing = {
        kind.__name__
        for kind in vars(liftbridge_client).values()
        if inspect.isclass(kind) and any(hasattr(kind, name) for name in CLOSES)
    }
    tried = {"Publisher", "Events", "Client", "Consumer"}
    assert closing - {"AdminClient", "SyncAdminClient"} == tried | {f"Sync{one}" for one in tried}


@pytest.mark.parametrize("is_opened", OPENED)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("made", MAKES)
def test_blocking_things_close_in_any_order(broker, name, made, order, is_opened):
    lb = connect_sync(broker.address).__enter__()
    try:
        thing = MAKES[made](lb, lb.streams.create(name))
        if is_opened and hasattr(thing, "__enter__"):
            thing.__enter__()
        for who in order:
            for close in closes_of(lb if who == "c" else thing):
                close(*arguments(close))
    finally:
        lb.close()
    if hasattr(thing, "publish"):
        with pytest.raises(ClosedError):
            thing.publish(b"x")


@pytest.mark.parametrize("is_opened", OPENED)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("made", MAKES)
async def test_asyncio_things_close_in_any_order(broker, name, made, order, is_opened):
    lb = await connect(broker.address).__aenter__()
    async with asyncio.timeout(20):
        thing = MAKES[made](lb, await lb.streams.create(name))
        if is_opened and hasattr(thing, "__aenter__"):
            await thing.__aenter__()
        for who in order:
            for close in closes_of(lb if who == "c" else thing):
                await close(*arguments(close))
        await lb.aclose()
        if hasattr(thing, "publish"):
            with pytest.raises(ClosedError):
                await thing.publish(b"x")


@pytest.mark.parametrize("make", ["connect_sync", "connect_admin_sync"])
def test_blocking_clients_close_before_they_are_opened_and_twice(broker, make):
    address = broker.admin_address if "admin" in make else broker.address
    client = getattr(liftbridge_client, make)(address)
    for _ in range(2):
        client.close()
    with client:
        client.close()
    client.close()
    with pytest.raises(ClosedError):
        (client.identities if "admin" in make else client.metadata)()


@pytest.mark.parametrize("make", ["connect", "connect_admin"])
async def test_asyncio_clients_close_before_they_are_opened_and_twice(broker, make):
    address = broker.admin_address if "admin" in make else broker.address
    client = getattr(liftbridge_client, make)(address)
    for _ in range(2):
        await client.aclose()
    async with client:
        await client.aclose()
    await client.aclose()
    with pytest.raises(ClosedError):
        await (client.identities if "admin" in make else client.metadata)()


def test_a_reader_that_is_closed_by_the_client_while_it_waits_ends(broker, name):
    with connect_sync(broker.address) as lb:
        events = lb.events()
        lb.close()
        list(events)  # of what was before
        events.close()
        assert list(events) == []

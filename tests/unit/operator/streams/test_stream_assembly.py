"""How the reconciler of streams is put together, and by which names it reaches brokers."""

import asyncio
from base64 import b64encode
from types import SimpleNamespace

import pytest

from liftbridge_operator.kube.errors import NotFoundError
from liftbridge_operator.kube.kinds import CLUSTERS, STREAMS
from liftbridge_operator.process.reconciler import Key
from liftbridge_operator.streams.assembly import connect_brokers, stream_reconciler
from liftbridge_operator.streams.port import SilentError
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.streams_memory import (
    AskedPasses,
    HeardEvents,
    ManualClock,
    OpenFence,
    SeenBoard,
)

FILES = {name: b64encode(b"pem").decode() for name in ("ca.crt", "tls.crt", "tls.key")}


def kube_with(replicas=2, present=0, files=FILES):
    kube = MemoryKube()
    kube.put(
        {
            "apiVersion": "liftbridge.io/v1alpha1",
            "kind": "LiftbridgeCluster",
            "metadata": {"name": "c", "namespace": "shop"},
            "spec": {"replicas": replicas},
            "status": {"replicas": present},
        }
    )
    if files is not None:
        secret = {"name": "c-operator", "namespace": "shop"}
        kube.put({"apiVersion": "v1", "kind": "Secret", "metadata": secret, "data": files})
    return kube


async def places(kube):
    brokers = await connect_brokers(kube, await kube.get(CLUSTERS, "shop", "c"))
    await brokers.close()
    return [(one.broker, one.address) for one in brokers.endpoints]


async def test_every_broker_is_reached_by_its_own_name_at_the_port_for_operators():
    assert await places(kube_with()) == [
        ("c-0", "c-0.c-brokers.shop.svc:9494"),
        ("c-1", "c-1.c-brokers.shop.svc:9494"),
    ]


async def test_brokers_that_are_to_leave_are_reached_until_they_have_left():
    assert len(await places(kube_with(replicas=1, present=3))) == 3


async def test_without_a_certificate_nobody_is_reached():
    with pytest.raises(NotFoundError):
        await places(kube_with(files=None))
    with pytest.raises(SilentError, match="c-operator"):
        await places(kube_with(files={**FILES, "tls.key": ""}))


async def test_looks_last_as_long_as_the_context():
    kube = kube_with(files=None)
    context = SimpleNamespace(
        kube=kube,
        clock=ManualClock(),
        requests=AskedPasses(),
        events=HeardEvents(),
        fence=OpenFence(),
        board=SeenBoard(),
        settings=SimpleNamespace(watch_namespaces=()),
        companions=set(),
    )
    before = asyncio.all_tasks()
    async with stream_reconciler(context) as reconciler:
        # The process ends when they do.
        assert asyncio.all_tasks() - before == context.companions != set()
        assert await reconciler.reconcile(Key(STREAMS, "shop", "gone")) is None
    assert asyncio.all_tasks() == before

"""The parts by which the operator is measured with many streams."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.model import names
from liftbridge_operator.streams.grpc_streams import GrpcStreams
from liftbridge_operator.streams.port import ChangedError, SilentError
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.kube.cluster import CommandError
from liftbridge_testkit.kube.control_plane import ControlPlane
from liftbridge_testkit.kube.many import Figure, passes_of, peak_mb
from liftbridge_testkit.kube.model_brokers import ModelBrokers, ServerFiles, relaying, serving

HOST = names.host("events-0", "events", "default")
METRICS = """\
# TYPE liftbridge_operator_passes_total counter
liftbridge_operator_passes_total{kind="Stream",result="done"} 7.0
liftbridge_operator_passes_total{kind="Stream",result="again"} 2.0
liftbridge_operator_passes_total{kind="Stream",result="failed"} 1.0
liftbridge_operator_passes_total{kind="LiftbridgeCluster",result="failed"} 50.0
# TYPE liftbridge_operator_queue_depth gauge
liftbridge_operator_queue_depth{kind="Stream"} 3.0
liftbridge_operator_queue_depth{kind="LiftbridgeCluster"} 1.0
# TYPE liftbridge_operator_queue_running gauge
liftbridge_operator_queue_running{kind="Stream"} 4.0
"""


class World(NamedTuple):
    """The model, and the operator's way to it."""

    model: ModelBrokers
    brokers: GrpcStreams


@asynccontextmanager
async def reached(folder: Path, *, is_up: bool = True) -> AsyncIterator[World]:
    """Brokers by their names in DNS, through the relay."""
    authority = Authority(folder)
    shown = authority.issue("brokers", names=(HOST,))
    asking = authority.issue("operator")
    ca = authority.cert.read_bytes()
    model = ModelBrokers("events")
    files = ServerFiles(shown.key.read_bytes(), shown.cert.read_bytes(), ca)
    trust = grpc.ssl_channel_credentials(ca, asking.key.read_bytes(), asking.cert.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        async with serving(model, files) as port, relaying(lambda: port if is_up else 0) as relay:
            patch.setenv("grpc_proxy", f"http://127.0.0.1:{relay}")
            for name in ("no_grpc_proxy", "no_proxy"):
                patch.delenv(name, raising=False)
            brokers = GrpcStreams([Endpoint("events-0", f"{HOST}:9494")], trust)
            try:
                yield World(model, brokers)
            finally:
                await brokers.close()


async def create(brokers: GrpcStreams, name: str = "orders") -> int:
    return await brokers.create(
        name, subject=name, group="", partitions=2, factor=-1, settings={"min_isr": 1}
    )


async def test_the_model_does_what_the_operator_asks_of_brokers(tmp_path: Path) -> None:
    async with reached(tmp_path) as world:
        made = await create(world.brokers)
        await world.brokers.mark("orders", made, expected="", owner="me")
        await world.brokers.alter("orders", {"retention_max_age": 5_000}, factor=2)
        await world.brokers.set_readonly("orders", is_readonly=True)
        found = (await world.brokers.streams())["orders"]
        assert (found.stream_id, found.owner, found.factor) == (made, "me", 2)
        assert (found.settings["min_isr"], found.settings["retention_max_age"]) == (1, 5_000)
        assert found.settings["segment_max_bytes"] == 1 << 28
        assert [one.number for one in found.partitions] == [0, 1]
        for one in found.partitions:
            assert (len(one.replicas), one.in_sync, one.is_readonly) == (2, 2, True)
            assert one.leader == one.replicas[0]
        assert (world.model.changes, world.model.looks) == (4, 1)
        await world.brokers.delete("orders")
        assert await world.brokers.streams() == {}


async def test_the_model_refuses_what_brokers_refuse(tmp_path: Path) -> None:
    async with reached(tmp_path) as world:
        made = await create(world.brokers)
        with pytest.raises(ChangedError, match="exists"):
            await create(world.brokers)
        await world.brokers.mark("orders", made, expected="", owner="me")
        with pytest.raises(ChangedError, match="'me'"):
            await world.brokers.mark("orders", made, expected="", owner="you")
        with pytest.raises(ChangedError, match="stream 1"):
            await world.brokers.mark("orders", made + 1, expected="me", owner="you")
        world.model.lose("orders")
        assert (len(world.model), world.model.owner("orders")) == (0, "")
        with pytest.raises(ChangedError, match="orders"):
            await world.brokers.delete("orders")


async def test_all_pages_are_read(tmp_path: Path) -> None:
    async with reached(tmp_path) as world:
        for number in range(1_100):
            stream = api_pb2.CreateStreamRequest(name=f"s-{number}", partitions=2)
            world.model.create(data_pb2.CreateStreamRequest(stream=stream))
        found = await world.brokers.streams()
        assert len(found) == 1_100
        assert all(len(one.partitions) == 2 for one in found.values())


async def test_nobody_is_reached_while_there_is_nobody(tmp_path: Path) -> None:
    async with reached(tmp_path, is_up=False) as world:
        with pytest.raises(SilentError):
            await world.brokers.streams()


async def test_the_relay_leads_nowhere_without_being_asked_to() -> None:
    async with relaying(lambda: 1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET http://localhost/ HTTP/1.1\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 502 ")
        writer.close()


def test_passes_of_streams_are_read_from_the_metrics() -> None:
    assert passes_of(METRICS) == (10, 1, 7)


def test_memory_is_told_in_millions_of_bytes() -> None:
    assert peak_mb("Name:\tx\nVmHWM:\t  100000 kB\nVmRSS:\t 5 kB\n") == pytest.approx(102.4)


def test_a_figure_is_told_with_what_is_asked_of_it() -> None:
    assert Figure("start", 12.34, "s", 30.0).line == ["start", "12.3 s", "< 30 s", "yes"]
    assert Figure("writes", 1, "", 1.0).line == ["writes", "1", "< 1", "NO"]
    assert Figure("rate", 5_000.0, "each second").line == ["rate", "5,000 each second", "-", "-"]


def test_programs_that_are_missing_are_named_with_what_builds_them(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"etcd, kube-apiserver, kubectl: .*build\.sh"):
        ControlPlane(tmp_path, tmp_path)

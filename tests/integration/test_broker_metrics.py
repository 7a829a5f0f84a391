"""Every metric of the catalogue comes from a real broker, and means what it says."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from liftbridge_broker.adapters.observe.catalogue import Scope, load_catalogue
from liftbridge_broker.api.grpc.certificates import expiry_of
from liftbridge_broker.wire.envelope import encode_publish
from liftbridge_proto import api_pb2
from liftbridge_testkit.certs import Authority
from liftbridge_testkit.nats_client import nats_client
from liftbridge_testkit.processes import Broker, NatsServer
from liftbridge_testkit.world import DEADLINE_SECONDS, World


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One NATS server for all brokers of this file."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


def scrape(broker: Broker) -> dict[str, float]:
    """Samples by name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.removeprefix("liftbridge_"): float(value) for name, value in pairs}


async def test_broker_supplies_every_metric_of_its_own(tmp_path: Path, nats: NatsServer) -> None:
    authority = Authority(tmp_path / "ca")
    issued = authority.issue("server", days=10)
    config = {"tls.cert": str(issued.cert), "tls.key": str(issued.key)}
    broker = Broker(tmp_path, nats_url=nats.url, config=config)
    broker.spawn()
    with broker:
        broker.wait_until(lambda: "broker_started" in broker.log_text(), "started")
        credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes())
        with grpc.secure_channel(broker.address, credentials) as channel:
            world = World(channel)
            world.create()
            world.publish()
            await publish_by_nats(nats, world.name, api_pb2.ALL)
        found = scrape(broker)
    plain = {re.sub(r"\{.*|_(bucket|sum|count)$", "", name) for name in found}
    bare = [spec for spec in load_catalogue().of_scope(Scope.BROKER) if not spec.labels]
    assert {spec.name for spec in bare} - plain == set()
    assert found["broker_epoch"] > 0
    assert found["certificate_expiry_timestamp_seconds"] == expiry_of(issued.cert)
    assert found["append_seconds_count"] > 2
    assert 0 < found["append_seconds_sum"] < 60
    acks = 'publish_ack_seconds_count{path="%s",policy="%s"}'
    assert found[acks % ("grpc", "all")] == 0
    assert found[acks % ("grpc", "leader")] == 1
    assert found[acks % ("nats", "leader")] == 0
    assert found[acks % ("nats", "all")] == 3


async def publish_by_nats(nats: NatsServer, subject: str, policy: int) -> None:
    """Publish three envelopes and wait for their acks."""
    async with nats_client(nats.url) as client:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        for number in range(3):
            message = api_pb2.Message(
                value=b"v",
                ackInbox=inbox,
                ackPolicy=policy,  # type: ignore[arg-type] # an open enum: any number is one
                correlationId=str(number),
            )
            await client.publish(subject, encode_publish(message))
        for _ in range(3):
            await answers.next_msg(timeout=DEADLINE_SECONDS)


def test_epoch_rises_with_each_start(tmp_path: Path, nats: NatsServer) -> None:
    with Broker(tmp_path, nats_url=nats.url) as broker:
        first = scrape(broker)
        assert broker.stop() == 0
        broker.start()
        second = scrape(broker)
    assert second["broker_epoch"] > first["broker_epoch"]
    assert "certificate_expiry_timestamp_seconds" not in second

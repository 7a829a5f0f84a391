"""NATS dies and comes back under load: acknowledged messages stay, the broker goes on by itself."""

import random
import threading
from pathlib import Path

from liftbridge_testkit.checker import History, Outcome, check
from liftbridge_testkit.load import (
    Follower,
    GrpcPublisher,
    NatsPublisher,
    create_stream,
    read_log,
)
from liftbridge_testkit.processes import Broker, NatsServer

RESTARTS = 4
STREAM = "cut"


def test_load_survives_restarts_of_nats(tmp_path: Path) -> None:
    rng = random.Random(20)
    history = History()
    with NatsServer(tmp_path) as nats, Broker(tmp_path, nats_url=nats.url) as broker:
        with broker.channel() as channel:
            create_stream(channel, STREAM)
        outside = NatsPublisher(history.new_publisher(), nats.url, STREAM)
        follower = Follower(history, broker.address, STREAM)
        outside.start()
        follower.start()
        for _ in range(RESTARTS):
            publisher = GrpcPublisher(history.new_publisher(), broker.address, STREAM)
            publisher.start()
            outside.wait_for(outside.done_count + 10)
            publisher.wait_for(10)
            threading.Event().wait(rng.uniform(0, 0.2))  # the random moment
            nats.kill()
            nats.start()
            outside.wait_for(outside.done_count + 10)  # the broker is subscribed again
            publisher.stop()
        outside.stop()
        follower.wait_for(history.count(Outcome.ACKED))
        follower.stop()
        with broker.channel() as channel:
            log = read_log(channel, STREAM)
        assert check(history, log) == []
        assert broker.starts == 1


def test_publish_over_grpc_works_again_after_nats_is_back(tmp_path: Path) -> None:
    history = History()
    with NatsServer(tmp_path) as nats, Broker(tmp_path, nats_url=nats.url) as broker:
        with broker.channel() as channel:
            create_stream(channel, STREAM)
        nats.kill()
        nats.start()
        publisher = GrpcPublisher(history.new_publisher(), broker.address, STREAM)
        publisher.start()
        publisher.wait_for(1)
        publisher.stop()
        with broker.channel() as channel:
            assert check(history, read_log(channel, STREAM)) == []


def test_frozen_nats_does_not_freeze_reads(tmp_path: Path) -> None:
    history = History()
    with NatsServer(tmp_path) as nats, Broker(tmp_path, nats_url=nats.url) as broker:
        with broker.channel() as channel:
            create_stream(channel, STREAM)
            publisher = GrpcPublisher(history.new_publisher(), broker.address, STREAM)
            publisher.start()
            publisher.wait_for(10)
            publisher.stop()
            nats.pause()
            log = read_log(channel, STREAM)
            nats.resume()
        assert check(history, log) == []
        assert len(log) >= 10

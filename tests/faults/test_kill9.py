"""kill -9 at random moments under load: nothing acknowledged is lost, nothing is stored twice.

`LIFTBRIDGE_KILLS` sets the number of kills and `LIFTBRIDGE_SEED` repeats their moments. Without a
number there are 25, or as many as fit into 35 seconds on a busy machine, at least 5; the summary of
the run tells how many. `make soak` does 200.
"""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import grpc
import pytest

from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.checker import History, Outcome, check
from liftbridge_testkit.load import (
    Follower,
    GrpcPublisher,
    NatsPublisher,
    create_stream,
    read_log,
)
from liftbridge_testkit.processes import Broker, NatsServer

KILLS = int(os.environ.get("LIFTBRIDGE_KILLS", "25"))
KILLS_MIN = KILLS if "LIFTBRIDGE_KILLS" in os.environ else 5
SECONDS_MAX = 35.0
SEED = int(os.environ.get("LIFTBRIDGE_SEED", str(random.SystemRandom().randrange(2**32))))
LOAD_SECONDS_MAX = 0.4
PUBLISHERS = 2
STREAM = "killed"


@pytest.mark.timeout(60 + 10 * KILLS)
def test_acked_messages_survive_kill_at_random_moments(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(SEED)
    history = History()
    with NatsServer(tmp_path) as nats, Broker(tmp_path, nats_url=nats.url) as broker:
        with broker.channel() as channel:
            create_stream(channel, STREAM, fsync=data_pb2.FSYNC_POLICY_COMMIT)
        # It goes on while the log is read, and must not fill it faster than that.
        outside = NatsPublisher(history.new_publisher(), nats.url, STREAM, pause_seconds=0.02)
        outside.start()
        stored = kills = 0
        deadline = monotonic() + SECONDS_MAX
        while kills < KILLS_MIN or (kills < KILLS and monotonic() < deadline):
            kills += 1
            kill_under_load(broker, history, rng, start=stored)
            broker.start()
            with broker.channel() as channel:
                stored += len(read_log(channel, STREAM, start=stored))
        publish_a_little_more(broker, history)
        outside.stop()
        with broker.channel() as channel:
            log = read_log(channel, STREAM)
    violations = check(history, log)
    acked = history.count(Outcome.ACKED)
    record_property(
        "note",
        f"{kills} kills with seed {SEED}: {len(log):,} records stored, {acked:,} acknowledged, "
        f"{len(violations)} violations",
    )
    assert violations == [], f"seed {SEED}, {kills} kills"
    assert kills >= KILLS_MIN
    assert acked > kills * PUBLISHERS
    assert outside.done_count > 0


def kill_under_load(broker: Broker, history: History, rng: random.Random, *, start: int) -> None:
    """Kill the broker at a random moment after every publisher had at least one ack."""
    publishers = [
        GrpcPublisher(history.new_publisher(), broker.address, STREAM) for _ in range(PUBLISHERS)
    ]
    follower = Follower(history, broker.address, STREAM, start=start)
    for worker in (*publishers, follower):
        worker.start()
    for publisher in publishers:
        publisher.wait_for(1)
    threading.Event().wait(rng.uniform(0, LOAD_SECONDS_MAX))  # the random moment
    broker.kill()
    for worker in (*publishers, follower):
        worker.join()


def publish_a_little_more(broker: Broker, history: History) -> None:
    """The broker still takes messages after the last kill."""
    publisher = GrpcPublisher(history.new_publisher(), broker.address, STREAM)
    publisher.start()
    publisher.wait_for(100)
    publisher.stop()


def test_broker_killed_alone_leaves_an_embedded_nats_that_does_not_block_the_restart(
    tmp_path: Path,
) -> None:
    history = History()
    with Broker(tmp_path) as broker:
        with broker.channel() as channel:
            create_stream(channel, STREAM, fsync=data_pb2.FSYNC_POLICY_COMMIT)
        publish_a_little_more(broker, history)
        broker.kill_alone()
        broker.start()
        publish_a_little_more(broker, history)
        with broker.channel() as channel:
            assert check(history, read_log(channel, STREAM)) == []


def test_clean_stop_under_load_keeps_what_was_acked(tmp_path: Path) -> None:
    history = History()
    with NatsServer(tmp_path) as nats, Broker(tmp_path, nats_url=nats.url) as broker:
        with broker.channel() as channel:
            create_stream(channel, STREAM)
        publisher = GrpcPublisher(history.new_publisher(), broker.address, STREAM)
        publisher.start()
        publisher.wait_for(50)
        assert broker.stop() == 0
        publisher.join()
        broker.start()
        with broker.channel() as channel:
            assert check(history, read_log(channel, STREAM)) == []


def test_second_broker_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as nats, Broker(tmp_path, nats_url=nats.url) as broker:
        second = Broker(tmp_path, nats_url=nats.url, name="second", data_dir=broker.data_dir)
        second.spawn()
        assert second.wait() not in {0, None}
        with broker.channel() as channel:
            grpc.channel_ready_future(channel).result(timeout=10)
            create_stream(channel, STREAM)
            assert read_log(channel, STREAM) == []

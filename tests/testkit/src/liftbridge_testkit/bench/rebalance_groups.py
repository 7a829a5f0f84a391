"""Consumer groups whose rebalances are measured: ours, and Kafka's where its jars are there."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import subprocess
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self

from liftbridge_client import Outgoing, connect
from liftbridge_testkit.bench.rebalance import PARTITIONS, RATE
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.processes import ProcessError, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future
    from pathlib import Path

    from liftbridge_client import Consumer

STREAM: Final = "orders"
GROUP: Final = "billing"
VALUE: Final = b"v" * 256
START_SECONDS_MAX: Final = 60.0
IN_FLIGHT_BATCHES_MAX: Final = 2 * RATE


class LiftbridgeGroup:
    """Members of an incremental group, in one process, at three brokers."""

    name = "liftbridge"

    def __init__(self, work_dir: Path) -> None:
        self._work_dir = work_dir / self.name
        self._kit: ClusterKit | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._running: dict[str, tuple[Future[None], asyncio.Event]] = {}

    def __enter__(self) -> Self:
        self._work_dir.mkdir(parents=True)
        config = {"cursors.stream.partitions": 4}
        self._kit = ClusterKit(self._work_dir, config=config, has_proxies=False).start()
        self._thread.start()
        self._begin("", self._publish)
        return self

    def __exit__(self, *_exc_info: object) -> None:
        for name in reversed(list(self._running)):  # the publisher last
            self.leave(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._kit is not None:
            self._kit.close()
        shutil.rmtree(self._work_dir, ignore_errors=True)

    def join(self, member: str, deliver: Callable[[int], None]) -> None:
        """Let a member join."""
        self._begin(member, lambda ended: self._consume(member, deliver, ended))

    def leave(self, member: str) -> None:
        """Let a member leave."""
        running, ended = self._running.pop(member)
        self._loop.call_soon_threadsafe(ended.set)
        running.result(START_SECONDS_MAX)

    def _begin(self, name: str, act: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        ended = asyncio.Event()
        running = asyncio.run_coroutine_threadsafe(act(ended), self._loop)
        self._running[name] = running, ended

    @property
    def _servers(self) -> str:
        assert self._kit is not None
        return ",".join(broker.address for broker in self._kit.brokers.values())

    async def _publish(self, ended: asyncio.Event) -> None:
        batch = [Outgoing(VALUE, partition=number) for number in range(PARTITIONS)]
        async with connect(self._servers) as lb:
            stream = await lb.streams.create(STREAM, partitions=PARTITIONS, replication=3)
            async with (
                stream.publisher(ack_policy="all") as publisher,
                asyncio.TaskGroup() as sending,
            ):
                # By the clock, like the producer of Kafka: a late ack delays no other partition.
                free, due = asyncio.Semaphore(IN_FLIGHT_BATCHES_MAX), monotonic()
                while not ended.is_set():
                    await free.acquire()
                    batch_sent = sending.create_task(publisher.publish_batch(batch))
                    batch_sent.add_done_callback(lambda _: free.release())
                    due += 1 / RATE
                    await asyncio.sleep(max(0.0, due - monotonic()))

    async def _consume(
        self, member: str, deliver: Callable[[int], None], ended: asyncio.Event
    ) -> None:
        async def read(consumer: Consumer[bytes]) -> None:
            async for batch in consumer:
                deliver(batch.partition)

        async with (
            connect(self._servers) as lb,
            lb.consumers.join(GROUP, [STREAM], name=member) as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            reading = tasks.create_task(read(consumer))
            await ended.wait()
            reading.cancel()


class KafkaGroup:
    """Members of a group of Kafka, in threads of one process, at one broker.

    Needs Java and the package `confluent-kafka`, which is none of this project's.
    """

    def __init__(self, work_dir: Path, jars: Path, protocol: str) -> None:
        """Configure it.

        Args:
            work_dir: Directory for its data.
            jars: Directory with the jars of a Kafka broker.
            protocol: `consumer` (KIP-848), or `classic` with cooperative assignment (KIP-429).
        """
        self.name = f"kafka-{protocol}"
        self._library = importlib.import_module("confluent_kafka")
        self._work_dir = work_dir / self.name
        self._java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
        self._protocol = protocol
        self._port = free_port()
        self._broker: subprocess.Popen[bytes] | None = None
        self._threads: dict[str, tuple[threading.Thread, threading.Event]] = {}

    def __enter__(self) -> Self:
        self._work_dir.mkdir(parents=True)
        settings = self._work_dir / "server.properties"
        controller = free_port()
        settings.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
            f"log.dirs={self._work_dir / 'data'}\noffsets.topic.replication.factor=1\n"
            "group.initial.rebalance.delay.ms=0\n"
        )
        format_words = ["format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(settings)]
        subprocess.run(
            [*self._java, "kafka.tools.StorageTool", *format_words], check=True, capture_output=True
        )
        with (self._work_dir / "kafka.log").open("wb") as log:
            self._broker = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(settings)], stdout=log, stderr=log
            )
        admin = importlib.import_module("confluent_kafka.admin")
        client = admin.AdminClient({**self._servers, "log_level": 0})
        end = monotonic() + START_SECONDS_MAX
        while True:
            try:
                client.list_topics(timeout=5)
                break
            except Exception as error:  # of a library that may be missing
                if monotonic() > end or self._broker.poll() is not None:
                    raise ProcessError("kafka did not start") from error
        topic = admin.NewTopic(STREAM, num_partitions=PARTITIONS, replication_factor=1)
        client.create_topics([topic])[STREAM].result(START_SECONDS_MAX)
        self._begin("", self._publish)
        return self

    def __exit__(self, *_exc_info: object) -> None:
        for name in reversed(list(self._threads)):
            self.leave(name)
        if self._broker is not None:
            self._broker.kill()
            self._broker.wait()
        shutil.rmtree(self._work_dir, ignore_errors=True)

    @property
    def _servers(self) -> dict[str, str]:
        return {"bootstrap.servers": f"127.0.0.1:{self._port}"}

    def join(self, member: str, deliver: Callable[[int], None]) -> None:
        """Let a member join."""
        self._begin(member, lambda ended: self._consume(ended, deliver))

    def leave(self, member: str) -> None:
        """Let a member leave."""
        thread, ended = self._threads.pop(member)
        ended.set()
        thread.join()

    def _begin(self, name: str, act: Callable[[threading.Event], None]) -> None:
        ended = threading.Event()
        thread = threading.Thread(target=act, args=(ended,))
        self._threads[name] = (thread, ended)
        thread.start()

    def _publish(self, ended: threading.Event) -> None:
        producer = self._library.Producer({**self._servers, "acks": "all"})
        due = monotonic()
        while not ended.wait(max(0.0, due - monotonic())):
            for number in range(PARTITIONS):
                producer.produce(STREAM, VALUE, partition=number)
            producer.poll(0)
            due += 1 / RATE
        producer.flush(5)

    def _consume(self, ended: threading.Event, deliver: Callable[[int], None]) -> None:
        settings = {
            **self._servers,
            "group.id": GROUP,
            "group.protocol": self._protocol,
            "auto.offset.reset": "earliest",
        }
        if self._protocol == "classic":
            settings["partition.assignment.strategy"] = "cooperative-sticky"
        consumer = self._library.Consumer(settings)
        consumer.subscribe([STREAM])
        while not ended.is_set():
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                deliver(message.partition())
        consumer.close()

"""What NATS costs the broker: reading, envelopes, building frames and acks, and a whole intake.

Run: `python tests/bench/bench_nats.py [--messages N] [--skip-intake]`. The first part prepares
bytes and prints microseconds of CPU per message, the best of several runs in one process. The
second starts a nats-server and a publisher that writes large prepared buffers to a plain socket,
and receives with the adapter into a sink that only counts: rate, CPU of this process and of
nats-server per message, with asyncio and with uvloop, and with callbacks of nats-py beside it.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import nats
import uvloop

from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.model.subject_table import SubjectTable
from liftbridge_broker.ports.messaging import Arrival, SubscriptionId
from liftbridge_broker.wire.acks import AckEncoder
from liftbridge_broker.wire.envelope import PUBLISH_HEADER, decode_publish
from liftbridge_broker.wire.nats import NatsParser, appended_header_block
from liftbridge_broker.wire.publish import EnvelopeEncoder
from liftbridge_proto import api_pb2
from liftbridge_testkit.nats_link import RecordingObserver, RecordingSink, linked
from liftbridge_testkit.processes import NatsServer

VALUE_BYTES = 256
RUN = 512
MESSAGES = 20_000
REPEATS = 15
CHUNK_BYTES = 256 * 1024
TIMESTAMP = 1_700_000_000_000_000_000
IDS = [b"%022d" % i for i in range(RUN)]
EQUAL = [b"x" * VALUE_BYTES] * RUN
MIXED = [b"x" * (VALUE_BYTES - 50 + i % 100) for i in range(RUN)]

# A publisher that costs next to nothing: one buffer of many frames, sent again and again.
PUBLISHER = f"""
import socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
frame = b"PUB bench %d\\r\\n" % {VALUE_BYTES} + b"x" * {VALUE_BYTES} + b"\\r\\n"
link = socket.create_connection(("127.0.0.1", port))
link.recv(65536)
link.sendall(b'CONNECT {{"verbose":false}}\\r\\nPING\\r\\n')
assert b"PONG" in link.recv(65536)
while count:
    now = min(count, 1000)
    link.sendall(frame * now)
    count -= now
link.sendall(b"PING\\r\\n")
while b"PONG" not in link.recv(65536):
    pass
"""


class CountingSink(RecordingSink):
    """Counts messages and lets go of them.

    Attributes:
        count: Messages delivered.
        chunks: Calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.chunks = 0
        self.wanted = 0

    def on_messages(
        self, _subscription: SubscriptionId, arrivals: list[Arrival], payloads: list[bytes]
    ) -> None:
        """Count, and wake the waiter when all are here."""
        assert len(arrivals) == len(payloads)
        self.count += len(payloads)
        self.chunks += 1
        if self.count >= self.wanted:
            self.tell()

    def on_ping(self) -> None:
        """As a parser's handler: nothing comes but messages."""

    on_pong = on_ok = on_ping

    def on_error(self, _text: str) -> None:
        """As `on_ping`."""

    def on_info(self, _body: bytes) -> None:
        """As `on_ping`."""


def main() -> int:
    """Run what was asked for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=1_000_000)
    arguments.add_argument("--skip-intake", action="store_true")
    given = arguments.parse_args()
    # A heap with holes, as a broker has: otherwise each chunk's messages are one arena that is
    # mapped and unmapped again, which costs as much as reading them.
    keep = [bytes(100 + i % 400) for i in range(60_000)][::2]
    parse()
    envelope()
    publish()
    acks()
    dispatch()
    if not given.skip_intake:
        intake(given.messages)
    assert keep
    return 0


def parse() -> None:
    """Chunks of a socket through the parser."""
    header = appended_header_block(PartitionId(1 << 24))
    size, total = VALUE_BYTES, VALUE_BYTES + len(header)
    value = b"x" * size
    cases = {
        "MSG, equal lines": [b"MSG foo.bar 1 256\r\n%b\r\n" % value] * MESSAGES,
        "MSG, 100 sizes": [
            b"MSG foo.bar 1 %d\r\n%b\r\n" % (200 + i % 100, b"x" * (200 + i % 100))
            for i in range(MESSAGES)
        ],
        "MSG, 1,000 subscriptions": [
            b"MSG foo.%d %d 256\r\n%b\r\n" % (i % 1000, i % 1000, value) for i in range(MESSAGES)
        ],
        "MSG, each its reply": [
            b"MSG foo.bar 1 _INBOX.%d 256\r\n%b\r\n" % (i, value) for i in range(MESSAGES)
        ],
        "HMSG, equal headers": [
            b"HMSG foo.bar 1 %d %d\r\n%b%b\r\n" % (len(header), total, header, value)
        ]
        * MESSAGES,
    }
    for name, messages in cases.items():
        data = b"".join(messages)
        chunks = [data[i : i + CHUNK_BYTES] for i in range(0, len(data), CHUNK_BYTES)]
        sink = CountingSink()
        parser = NatsParser(sink)

        def feed(parser: NatsParser = parser, chunks: Sequence[bytes] = chunks) -> None:
            for chunk in chunks:
                parser.feed(chunk)

        report("parse", name, best(feed), MESSAGES)
        assert sink.count == REPEATS * MESSAGES


def envelope() -> None:
    """Payloads to messages."""
    message = api_pb2.Message(
        value=b"x" * VALUE_BYTES, stream="stream", subject="foo.bar", correlationId="x" * 22
    )
    sealed = [PUBLISH_HEADER + message.SerializeToString()] * RUN
    report("envelope", "enveloped", best(lambda: list(map(decode_publish, sealed))), RUN)
    report("envelope", "plain", best(lambda: list(map(decode_publish, EQUAL))), RUN)


def publish() -> None:
    """Frames for directly appended messages, joined."""
    encoder = EnvelopeEncoder("stream", "foo.bar", 0)
    own = PartitionId(1 << 24)
    cases: dict[str, Callable[[], list[bytes]]] = {
        "values": lambda: encoder.frames(EQUAL),
        "values, ids, header": lambda: encoder.frames(
            EQUAL, correlation_ids=IDS, appended_partition_id=own
        ),
        "100 sizes, ids, header": lambda: encoder.frames(
            MIXED, correlation_ids=IDS, appended_partition_id=own
        ),
        "100 sizes, keys, ids, header": lambda: encoder.frames(
            MIXED, keys=IDS, correlation_ids=IDS, appended_partition_id=own
        ),
    }
    for name, build in cases.items():
        report("publish", name, best(partial(_joined, build)), RUN)


def _joined(build: Callable[[], list[bytes]]) -> bytes:
    return b"".join(build())


def acks() -> None:
    """Acks of one run, joined."""
    encoder = AckEncoder("stream", "foo.bar")

    def responses() -> bytes:
        return b"".join(
            encoder.publish_responses(
                1_000_000,
                IDS,
                policy=0,
                reception_ts=TIMESTAMP,
                commit_ts=TIMESTAMP,
                msg_subject=b"foo.bar",
            )
        )

    def inbox() -> bytes:
        return b"".join(
            encoder.inbox_acks(
                1_000_000,
                IDS,
                policy=0,
                reception_ts=TIMESTAMP,
                commit_ts=TIMESTAMP,
                msg_subject=b"foo.bar",
                ack_inbox=b"acks.1",
            )
        )

    report("acks", "PublishResponse", best(responses), RUN)
    report("acks", "inbox", best(inbox), RUN)


def dispatch() -> None:
    """Who listens to a subject, among 1,000 streams."""
    table: SubjectTable[int] = SubjectTable()
    for number in range(1000):
        table.add(f"stream.{number}" if number % 2 else f"stream.{number}.*", number)
    subjects = [f"stream.{i}.x" for i in range(RUN)]
    report("dispatch", "known subject", best(lambda: [table.lookup(s) for s in subjects]), RUN)

    def unknown() -> None:
        table.add("other", 1)
        for subject in subjects:
            table.lookup(subject)

    report("dispatch", "new subject", best(unknown), RUN)


def intake(count: int) -> None:
    """The adapter and nats-py against a real server and a fast publisher."""
    with (
        tempfile.TemporaryDirectory() as directory,
        NatsServer(Path(directory), config="max_pending: 1GB\n") as server,
    ):
        options = NatsOptions(server_id="bench", servers=(server.url,))
        for name, run in (("asyncio", asyncio.run), ("uvloop", uvloop.run)):
            for _ in range(3):
                run(_receive(f"adapter, {name}", server, options, count))
        for _ in range(2):
            asyncio.run(_receive_by_callback(server, count // 4))


async def _receive(name: str, server: NatsServer, options: NatsOptions, count: int) -> None:
    sink = CountingSink()
    sink.wanted = count
    async with linked(options, sink) as (messaging, _, observer):
        messaging.subscribe(SubscriptionId(1), "bench", "")
        await messaging.flushed()
        async with _measured(name, server, count):
            await sink.until(lambda: sink.count >= count)
        assert isinstance(observer, RecordingObserver)
        assert not observer.of("nats_disconnected")
    sys.stdout.write(f"{'':40}{sink.count / sink.chunks:8.0f} messages a delivery\n")


async def _receive_by_callback(server: NatsServer, count: int) -> None:
    client = await nats.connect(server.url)
    done = asyncio.Event()
    seen = 0

    async def receive(_message: object) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    await client.subscribe("bench", cb=receive, pending_msgs_limit=0, pending_bytes_limit=0)
    await client.flush()
    async with _measured("nats-py callbacks, asyncio", server, count):
        await done.wait()
    await client.close()


@contextlib.asynccontextmanager
async def _measured(name: str, server: NatsServer, count: int) -> AsyncIterator[None]:
    """Publish `count` messages while the body waits for them, and report."""
    arguments = [sys.executable, "-I", "-c", PUBLISHER, str(server.port), str(count)]
    publisher = await asyncio.create_subprocess_exec(*arguments)
    wall, cpu, server_cpu = perf_counter(), process_time(), server.cpu_seconds()
    yield
    wall, cpu = perf_counter() - wall, process_time() - cpu
    server_cpu = server.cpu_seconds() - server_cpu
    if await publisher.wait():
        raise subprocess.CalledProcessError(publisher.returncode or 0, arguments)
    sys.stdout.write(
        f"{'intake':10}{name:30}{count / wall / 1000:8.0f} k/s {cpu / count * 1e6:8.3f} us"
        f" {server_cpu / count * 1e6:8.3f} us nats-server\n"
    )


def best(work: Callable[[], object]) -> float:
    """Seconds of CPU of the fastest of several runs."""
    fastest = float("inf")
    for _ in range(REPEATS):
        started = process_time()
        work()
        fastest = min(fastest, process_time() - started)
    return fastest


def report(group: str, name: str, seconds: float, count: int) -> None:
    """One line of the table."""
    sys.stdout.write(f"{group:10}{name:30}{seconds / count * 1e6:8.3f} us\n")


if __name__ == "__main__":
    sys.exit(main())

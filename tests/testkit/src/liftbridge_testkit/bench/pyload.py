"""The load generator in Python, for machines without Go; same commands, flags and answers.

    python -m liftbridge_testkit.bench.pyload lb-publish -server=127.0.0.1:9292 -count=100000

A Python client is slower than the servers it measures, so figures it takes compare systems less
sharply than those of the Go program; the report names the program that took them. The works of
the ext API (`batch-publish`, `batch-read`, `read-on`) are here only: their client is Python anyway.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import struct
import sys
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio
import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from liftbridge_proto import api_pb2, api_pb2_grpc
from liftbridge_testkit.bench.batches import batch_publish, batch_read, read_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client
    from nats.aio.msg import Msg

Result = dict[str, float | int | str | bool]
Command = Callable[[argparse.Namespace], Awaitable[Result]]

_SEQUENCE: Final = struct.Struct("<Q")
_WARM_UP_MAX: Final = 1_000
_DEADLINE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
_QUIET_SECONDS: Final = 1.0


class WrongAnswerError(Exception):
    """A system answered something that cannot be right."""


def tail(size: int) -> bytes:
    """Return the end of every value; the first 8 bytes hold its sequence."""
    return random.Random(1).randbytes(max(size, 8) - 8)


def rated(count: int, seconds: float) -> Result:
    """Count, seconds and rate of a run."""
    return {"count": count, "seconds": seconds, "rate": count / seconds}


def percentiles(samples: list[float]) -> Result:
    """Return the latencies in microseconds from samples in seconds."""
    if not samples:
        return {}
    samples.sort()

    def at(share: float) -> float:
        return samples[min(int(share * len(samples)), len(samples) - 1)] * 1e6

    return {"p50_us": at(0.5), "p99_us": at(0.99), "p999_us": at(0.999), "max_us": at(1.0)}


# Liftbridge


@contextlib.asynccontextmanager
async def stub(options: argparse.Namespace) -> AsyncIterator[api_pb2_grpc.APIStub]:
    """A connection to the broker."""
    async with grpc.aio.insecure_channel(options.server) as channel:
        yield api_pb2_grpc.APIStub(channel)  # type: ignore[no-untyped-call] # generated


async def lb_create(options: argparse.Namespace) -> Result:
    """Create one stream, or COUNT numbered ones, one after the other."""
    samples: list[float] = []
    start = perf_counter()
    async with stub(options) as api:
        for number in range(options.count):
            suffix = str(number) if options.count > 1 else ""
            begun = perf_counter()
            await api.CreateStream(
                api_pb2.CreateStreamRequest(
                    name=options.stream + (suffix and "-" + suffix),
                    subject=options.subject + (suffix and "." + suffix),
                )
            )
            samples.append(perf_counter() - begun)
    return rated(options.count, perf_counter() - start) | percentiles(samples)


async def lb_publish(options: argparse.Namespace) -> Result:
    """Publish over several PublishAsync calls with a window each."""
    share = options.count // options.streams
    async with contextlib.AsyncExitStack() as stack:
        stubs = [
            await stack.enter_async_context(stub(options)) for _ in range(max(options.conns, 1))
        ]
        start = perf_counter()
        results = await asyncio.gather(
            *(
                _publish_window(stubs[number % len(stubs)], options, share)
                for number in range(options.streams)
            )
        )
        seconds = perf_counter() - start
    samples = [sample for result in results for sample in result]
    answer = rated(share * options.streams, seconds) | percentiles(samples)
    return answer | {"in_flight": options.window * options.streams}


async def _publish_window(
    api: api_pb2_grpc.APIStub, options: argparse.Namespace, count: int
) -> list[float]:
    call = api.PublishAsync()
    room = asyncio.Semaphore(options.window)
    sent: list[float] = []
    samples: list[float] = []

    async def send() -> None:
        end = tail(options.size)
        for number in range(count):
            await room.acquire()
            sent.append(perf_counter())
            await call.write(_request(options, number, end))

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        for number in range(count):
            response = await call.read()
            _check_ack(response, number)
            samples.append(perf_counter() - sent[number])
            room.release()
    call.cancel()
    return samples


def _request(options: argparse.Namespace, number: int, end: bytes) -> api_pb2.PublishRequest:
    return api_pb2.PublishRequest(
        stream=options.stream,
        value=_SEQUENCE.pack(number) + end,
        correlationId=str(number),
        expectedOffset=-1,
    )


def _check_ack(response: api_pb2.PublishResponse, number: int) -> None:
    if response.HasField("asyncError") or response.ack.correlationId != str(number):
        raise WrongAnswerError(f"ack {number}: {response}")


async def lb_latency(options: argparse.Namespace) -> Result:
    """Publish one message at a time."""
    end = tail(options.size)
    async with stub(options) as api:
        if options.mode == "unary":

            async def unary(number: int) -> None:
                response = await api.Publish(
                    _request(options, number, end), timeout=_DEADLINE_SECONDS
                )
                if not response.HasField("ack"):
                    raise WrongAnswerError(f"message {number}: no ack")

            return await _one_at_a_time(options, unary)
        call = api.PublishAsync()

        async def streamed(number: int) -> None:
            await call.write(_request(options, number, end))
            _check_ack(await call.read(), number)

        return await _one_at_a_time(options, streamed)


async def _one_at_a_time(
    options: argparse.Namespace, act: Callable[[int], Awaitable[None]]
) -> Result:
    warm = min(options.count // 10, _WARM_UP_MAX)
    for number in range(warm):
        await act(number)
    samples: list[float] = []
    start = perf_counter()
    for number in range(options.count):
        begun = perf_counter()
        await act(warm + number)
        samples.append(perf_counter() - begun)
    answer = rated(options.count, perf_counter() - start) | percentiles(samples)
    return answer | {"warm_up": warm, "open_loop": False}


async def lb_replay(options: argparse.Namespace) -> Result:
    """Read from the beginning."""
    check = _Replay(options)
    start = perf_counter()
    async with stub(options) as api:
        call = api.Subscribe(
            api_pb2.SubscribeRequest(stream=options.stream, startPosition=api_pb2.EARLIEST)
        )
        await call.read()  # the empty message that says "subscribed"
        while not check.is_complete:
            message = await call.read()
            if message.offset != check.count:
                raise WrongAnswerError(f"message {check.count}: offset {message.offset}")
            check.add(message.value)
        call.cancel()
    return rated(check.count, perf_counter() - start)


class _Replay:
    """Checks payloads and their order."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.count = 0
        self._wanted = options.count
        self._tail = tail(options.size)

    @property
    def is_complete(self) -> bool:
        return bool(self.count >= self._wanted)

    def add(self, value: bytes) -> None:
        if value != _SEQUENCE.pack(self.count) + self._tail:
            raise WrongAnswerError(f"message {self.count}: payload differs")
        self.count += 1


async def lb_intake(options: argparse.Namespace) -> Result:
    """Publish to the subject of a stream and wait until all is stored."""
    async with stub(options) as api:

        async def stored() -> int:
            response = await api.FetchPartitionMetadata(
                api_pb2.FetchPartitionMetadataRequest(stream=options.stream)
            )
            return int(response.metadata.newestOffset) + 1

        return await _intake(options, stored)


async def _intake(options: argparse.Namespace, stored: Callable[[], Awaitable[int]]) -> Result:
    before = await stored()
    client = await nats.connect(options.nats)
    start = perf_counter()
    await _publish_plain(client, options)
    published = perf_counter() - start
    count, grown = 0, perf_counter()
    while count < options.count and perf_counter() - grown < _DEADLINE_SECONDS:
        await asyncio.sleep(_POLL_SECONDS)
        now = await stored() - before
        if now > count:
            count, grown = now, perf_counter()
    await client.close()
    return rated(count, grown - start) | {
        "offered": options.count,
        "offered_rate": options.count / published,
        "lost": options.count - count,
    }


# NATS and JetStream


async def _publish_plain(client: Client, options: argparse.Namespace) -> None:
    end = tail(options.size)
    start = perf_counter()
    for number in range(options.count):
        if options.rate and not number % 64:
            ahead = number / options.rate - (perf_counter() - start)
            if ahead > 0.001:
                await asyncio.sleep(ahead)
        await client.publish(options.subject, _SEQUENCE.pack(number) + end)
    await client.flush(timeout=60)


async def nats_publish(options: argparse.Namespace) -> Result:
    """Core publish."""
    client = await nats.connect(options.nats)
    start = perf_counter()
    await _publish_plain(client, options)
    seconds = perf_counter() - start
    await client.close()
    return rated(options.count, seconds)


async def nats_count(options: argparse.Namespace) -> Result:
    """Count what a plain subscriber receives until standard input closes."""
    client = await nats.connect(options.nats)
    count = 0

    async def on_message(_message: Msg) -> None:
        nonlocal count
        count += 1

    await client.subscribe(
        options.subject, cb=on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
    )
    await client.flush()
    sys.stderr.write("ready\n")
    sys.stderr.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    seen = -1
    while seen != count:  # what was sent before may still be on its way
        seen = count
        await asyncio.sleep(_QUIET_SECONDS)
    await client.close()
    return {"count": count}


async def js_create(options: argparse.Namespace) -> Result:
    """Create the JetStream stream: file storage, one replica."""
    client = await nats.connect(options.nats)
    await client.jetstream().add_stream(
        StreamConfig(
            name=options.stream,
            subjects=[options.subject],
            storage=StorageType.FILE,
            num_replicas=1,
        )
    )
    await client.close()
    return {}


async def js_publish(options: argparse.Namespace) -> Result:
    """Publish with a window of unacknowledged messages, over one reply subscription."""
    client = await nats.connect(options.nats)
    room = asyncio.Semaphore(options.window)
    sent: list[float] = []
    samples: list[float] = []
    complete = asyncio.Event()

    async def on_ack(message: Msg) -> None:
        if not message.data.startswith(b'{"stream":'):
            raise WrongAnswerError(message.data.decode())
        samples.append(perf_counter() - sent[len(samples)])
        room.release()
        if len(samples) == options.count:
            complete.set()

    inbox = client.new_inbox()
    await client.subscribe(inbox, cb=on_ack, pending_msgs_limit=-1, pending_bytes_limit=-1)
    end = tail(options.size)
    start = perf_counter()
    for number in range(options.count):
        await room.acquire()
        sent.append(perf_counter())
        await client.publish(options.subject, _SEQUENCE.pack(number) + end, reply=inbox)
    await complete.wait()
    seconds = perf_counter() - start
    await client.close()
    return rated(options.count, seconds) | percentiles(samples) | {"in_flight": options.window}


async def js_latency(options: argparse.Namespace) -> Result:
    """Publish one message at a time."""
    client = await nats.connect(options.nats)
    stream = client.jetstream()
    end = tail(options.size)

    async def act(number: int) -> None:
        await stream.publish(options.subject, _SEQUENCE.pack(number) + end)

    answer = await _one_at_a_time(options, act)
    await client.close()
    return answer


async def js_replay(options: argparse.Namespace) -> Result:
    """Read from the beginning, by the ordered consumer or a plain push consumer."""
    client = await nats.connect(options.nats)
    check = _Replay(options)
    complete = asyncio.Event()

    async def on_message(message: Msg) -> None:
        if not check.is_complete:
            check.add(message.data)
        if check.is_complete:
            complete.set()

    start = perf_counter()
    await client.jetstream().subscribe(
        options.subject,
        cb=on_message,
        ordered_consumer=options.mode != "push",
        manual_ack=True,
        pending_msgs_limit=-1,
        pending_bytes_limit=-1,
        config=ConsumerConfig(
            ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, mem_storage=True
        ),
    )
    await complete.wait()
    seconds = perf_counter() - start
    await client.close()
    return rated(check.count, seconds)


async def js_intake(options: argparse.Namespace) -> Result:
    """Publish without waiting for acks and wait until all is stored."""
    client = await nats.connect(options.nats)
    stream = client.jetstream()

    async def stored() -> int:
        return int((await stream.stream_info(options.stream)).state.messages)

    answer = await _intake(options, stored)
    await client.close()
    return answer


COMMANDS: Final[dict[str, Command]] = {
    "lb-create": lb_create,
    "lb-publish": lb_publish,
    "lb-latency": lb_latency,
    "lb-replay": lb_replay,
    "lb-intake": lb_intake,
    "js-create": js_create,
    "js-publish": js_publish,
    "js-latency": js_latency,
    "js-replay": js_replay,
    "js-intake": js_intake,
    "nats-publish": nats_publish,
    "nats-count": nats_count,
    "batch-publish": batch_publish,
    "batch-read": batch_read,
    "read-on": read_on,
}


def main() -> int:
    """Run one command and print its JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], prefix_chars="-")
    parser.add_argument("command", choices=COMMANDS)
    for name, default in (("server", "127.0.0.1:9292"), ("nats", "nats://127.0.0.1:4222"),
                          ("stream", "bench"), ("subject", "bench"), ("mode", ""),
                          ("policy", "leader")):  # fmt: skip
        parser.add_argument(f"-{name}", default=default)
    for name, number in (("count", 1_000_000), ("size", 256), ("window", 1_024), ("streams", 1),
                         ("conns", 1)):  # fmt: skip
        parser.add_argument(f"-{name}", type=int, default=number)
    parser.add_argument("-rate", type=float, default=0.0)
    options = parser.parse_args()
    answer = asyncio.run(_run(options))
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


async def _run(options: argparse.Namespace) -> Result:
    answer = await COMMANDS[options.command](options)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    extra = {"command": options.command, "client_cpu_seconds": usage.ru_utime + usage.ru_stime}
    return {**answer, **extra}


if __name__ == "__main__":
    sys.exit(main())

"""What the gRPC server costs: the core alone, and a whole server under a grpc-go client.

    .venv/bin/python tests/bench/bench_http2.py [--core] [--profile]

The core is fed with prepared bytes and timed in this process: ns for each request message, for
each byte run of a subscription, for a unary call. The server part builds `http2load` (needs `go`),
starts the echo service in a process of its own with asyncio and with uvloop, and gives rate, CPU of
the server for each message, and latency.
"""

import argparse
import cProfile
import json
import pstats
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hpack import Encoder

from liftbridge_broker.http2 import frames
from liftbridge_broker.http2.connection import Connection
from liftbridge_broker.http2.events import Event, MessagesReceived, RequestReceived
from liftbridge_broker.http2.limits import Limits
from liftbridge_testkit.grpc_echo import ACK, frame
from liftbridge_testkit.repository import ROOT

LOAD = Path(__file__).parent / "http2load"
CHUNK_BYTES = 64 << 10
MESSAGE_BYTES = 290
CASES = [
    ("ack", 1_000_000, 290, 1),
    ("ack", 1_000_000, 290, 4),
    ("stream", 4_000_000, 330, 1),
    ("unary", 10_000, 290, 1),
]


def say(text: str) -> None:
    """Print one line."""
    sys.stdout.write(f"{text}\n")


def opened(stream_count: int) -> Connection:
    """A connection with that many open streams."""
    connection = Connection(Limits(stream_window_bytes=1 << 30, connection_window_bytes=1 << 30), 0)
    encoder = Encoder()
    hello = [frames.PREFACE, frames.settings_frame({4: 1 << 30})]
    hello.append(frames.window_update_frame(0, 1 << 30))
    hello += [
        frames.frame(1, 4, 2 * number + 1, encoder.encode(head())) for number in range(stream_count)
    ]
    connection.receive(b"".join(hello), 0)
    connection.take_output(1)
    return connection


def head() -> list[tuple[str, str]]:
    """Header list of a gRPC call as grpc-go sends it."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/proto.API/PublishAsync"),
        (":authority", "127.0.0.1:9292"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.85.0"),
        ("te", "trailers"),
    ]


def publishes(stream_count: int, count: int) -> list[bytes]:
    """DATA frames of one message each, the streams in turn, cut as a socket would."""
    message = frame(b"m" * MESSAGE_BYTES)
    data = b"".join(
        frames.frame(0, 0, 2 * (number % stream_count) + 1, message) for number in range(count)
    )
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def time_publish(stream_count: int) -> float:
    """ns for each message received and acknowledged with 60 bytes."""
    count = 100_000
    connection = opened(stream_count)
    chunks = publishes(stream_count, count)
    seen = 0
    begin = time.perf_counter()
    for chunk in chunks:
        events = connection.receive(chunk, 1)
        for event in events:
            if type(event) is MessagesReceived:
                seen += len(event.messages)
                connection.send(event.stream_id, ACK * len(event.messages))
        b"".join(connection.take_output(1))
    elapsed = time.perf_counter() - begin
    assert seen == count
    return elapsed / count * 1e9


def time_subscribe() -> float:
    """ns for each message of 330 bytes sent in slices of 256 KiB."""
    rounds = 2_000
    stored = frame(b"s" * 330) * ((256 << 10) // 335)
    connection = opened(1)
    begin = time.perf_counter()
    for _ in range(rounds):
        connection.send(1, stored)
        while connection.has_more_output():
            b"".join(connection.take_output(1))
        update = frames.window_update_frame(0, len(stored))
        connection.receive(update + frames.window_update_frame(1, len(stored)), 1)
    elapsed = time.perf_counter() - begin
    return elapsed / rounds / (len(stored) // 335) * 1e9


def time_unary() -> float:
    """ns for each unary call, headers included."""
    count = 20_000
    connection = opened(0)
    encoder = Encoder()
    body = frame(b"m" * MESSAGE_BYTES)
    calls = []
    for number in range(count):
        stream_id = 2 * number + 1
        block = frames.frame(1, 4, stream_id, encoder.encode(head()))
        calls.append(block + frames.frame(0, 1, stream_id, body))
    begin = time.perf_counter()
    for call in calls:
        answer(connection, connection.receive(call, 1))
        b"".join(connection.take_output(1))
    return (time.perf_counter() - begin) / count * 1e9


def answer(connection: Connection, events: list[Event]) -> None:
    """Answer each request with an ack."""
    for event in events:
        if type(event) is RequestReceived:
            connection.send(event.stream_id, ACK)
            connection.finish(event.stream_id, 0, "")


def best(measure: Callable[[], float]) -> float:
    """The best of three runs: other work on the machine only ever adds."""
    return min(measure() for _ in range(3))


def core() -> None:
    """Time the core alone."""
    say(f"core: publish, 1 stream    {best(lambda: time_publish(1)):7.0f} ns a message")
    say(f"core: publish, 4 streams   {best(lambda: time_publish(4)):7.0f} ns a message")
    say(f"core: subscribe            {best(time_subscribe):7.0f} ns a message")
    say(f"core: unary call           {best(time_unary):7.0f} ns a call")


def serve(program: Path, *, loop: str) -> None:
    """Time a server process under a grpc-go client."""
    command = [sys.executable, "-m", "liftbridge_testkit.grpc_echo", f"--{loop}"]
    for mode, count, size, streams in CASES:
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        load = [str(program), f"127.0.0.1:{port}", mode, str(count), str(size), str(streams)]
        result = json.loads(subprocess.run(load, check=True, capture_output=True).stdout)
        seconds = float(server.communicate()[0])
        rate = count / result["seconds"]
        cost = seconds / count * 1e6
        latency = f", p50 {result['p50_us']:.0f} us" if "p50_us" in result else ""
        name = f"{loop}: {mode}, {streams} stream(s)"
        say(f"{name:28} {rate:10,.0f} a second, {cost:6.2f} us of server CPU each{latency}")


def profile() -> None:
    """Where the time of the core goes."""
    for name, measure in (("publish", lambda: time_publish(1)), ("unary", time_unary)):
        profiler = cProfile.Profile()
        profiler.runcall(measure)
        say(f"--- {name}")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", action="store_true", help="the core only")
    parser.add_argument("--profile", action="store_true", help="profile of the core")
    arguments = parser.parse_args()
    if arguments.profile:
        profile()
        return
    core()
    if arguments.core:
        return
    go = shutil.which("go")
    if go is None:
        say("no go here: the server part is left out")
        return
    program = ROOT / ".bench" / "http2load"
    program.parent.mkdir(exist_ok=True)
    subprocess.run([go, "build", "-o", program, "."], cwd=LOAD, check=True)
    for loop in ("asyncio", "uvloop"):
        serve(program, loop=loop)


if __name__ == "__main__":
    main()

"""Forged frames against a running cluster under load: nothing of them may be believed.

`python -m liftbridge_testkit.forgery --frames 1000000` starts three brokers with a secret and a
publisher at each. In turns it measures what is acknowledged undisturbed, and while a process that
lacks the secret receives messages between brokers and sends frames in their names: repeated, to
others too; changed; made up without a signature or with another key (`sim.forging`). Then it
compares: every frame was counted as refused, no broker elected or fenced, every acknowledged
message is there at its offset, unchanged, and throughput fell by less than a fifth.

Frames are made up between the times that are measured: the attacker shares the machine with the
cluster, and to make one costs more than to refuse it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from nats.errors import Error as NatsError

from liftbridge_broker.adapters.nats.peers import peer_subject
from liftbridge_broker.errors import WireError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.ports.messaging import Arrival
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.nats import PING, PONG
from liftbridge_broker.wire.peer.frame import NO_START, read_front, read_signed
from liftbridge_client import Start, Stop, connect_sync
from liftbridge_testkit.bench.report import machine, table
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.hostile.driver import NATS_HELLO
from liftbridge_testkit.nats_client import nats_client
from liftbridge_testkit.nats_floods import published
from liftbridge_testkit.progress import say
from liftbridge_testkit.saturation import SETTLE_SECONDS, alarms, begin, value
from liftbridge_testkit.sim.forging import Forger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nats.aio.msg import Msg

    from liftbridge_testkit.saturation import Load

NAMESPACE: Final = "liftbridge-default"
RATIO_MIN: Final = 0.8
LISTEN_SECONDS: Final = 0.3
"""Time for which frames are read at a stretch: reading all would cost as much as the cluster."""

ROUND_FRAMES: Final = 20_000
"""Frames that are made up after a time of listening, and then sent."""

AT_ONCE: Final = 10
"""One frame in ten is repeated as soon as it is heard, outside the measured times."""

SLICE_SECONDS: Final = 0.01
_PLAIN: Final = Arrival("", "", b"")
FLUSH_SECONDS_MAX: Final = 60
SETTLED_SECONDS_MAX: Final = 30.0
END_SECONDS_MAX: Final = 30.0
_COUNTED: Final = ("peer_frames_refused_total", "peer_dropped_messages_total")
_ATTACK: Final = (sys.executable, "-m", "liftbridge_testkit.forgery", "--attack")


def _is_greeting(payload: bytes) -> bool:
    """Return whether a frame only asks, so that repeating it asks again and is not refused."""
    try:
        return read_front(read_signed(payload).front).target_start == NO_START
    except WireError:
        return False


async def attack(url: str, brokers: Sequence[str], frames: int, rate: int, seed: int) -> int:
    """Send frames, in rounds that the parent process starts; returns how many."""
    forger, heard, sent = Forger(Random(seed)), 0, 0
    ways = {
        peer_subject(NAMESPACE, BrokerId(name), channel): (name, channel)
        for name in brokers
        for channel in Channel
    }
    async with nats_client(url) as client:

        async def hear(message: Msg) -> None:
            nonlocal heard, sent
            if not message.data or _is_greeting(message.data):  # a probe is empty
                return
            heard += 1
            forger.overhear(*ways[message.subject], message.data)
            if heard % AT_ONCE == 0:
                await client.publish(message.subject, message.data)
                sent += 1

        while sent < frames:
            # On a connection of its own: a server drops a reader that is too slow.
            with contextlib.suppress(NatsError, OSError):
                async with nats_client(url, allow_reconnect=False) as ear:
                    for subject in ways:
                        await ear.subscribe(subject, cb=hear)
                    await asyncio.sleep(LISTEN_SECONDS)
            forged = [
                published(peer_subject(NAMESPACE, BrokerId(name), channel), _PLAIN, payload)
                for name, channel, payload in _made_up(forger, brokers, frames - sent)
            ]
            _report("ready")
            await asyncio.to_thread(sys.stdin.readline)
            await _send(url, forged, rate)
            sent += len(forged)
            _report("sent")
    return sent


async def _send(url: str, frames: Sequence[bytes], rate: int) -> None:
    """Write published frames to the NATS server, and wait until it has read them."""
    _, _, address = url.partition("//")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(NATS_HELLO)
        began, sent = monotonic(), 0
        while sent < len(frames):
            due = int((monotonic() - began) * rate)
            writer.write(b"".join(frames[sent:due]))
            sent = min(due, len(frames))
            await writer.drain()
            await asyncio.sleep(SLICE_SECONDS)
        writer.write(PING)
        async with asyncio.timeout(FLUSH_SECONDS_MAX):
            await reader.readuntil(PONG)
    finally:
        writer.close()


def _made_up(
    forger: Forger, brokers: Sequence[str], left: int
) -> Iterator[tuple[str, Channel, bytes]]:
    """Yield the frames of a round."""
    for _ in range(min(left, ROUND_FRAMES)):
        forged = forger.frame(list(brokers))
        assert forged is not None
        yield forged


def _report(line: str) -> None:
    """Write a line to the parent process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def end(process: subprocess.Popen[str]) -> None:
    """End a process, and close what leads to it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def refused(cluster: ClusterKit) -> float:
    """Return the frames that brokers did not believe so far."""
    return sum(cluster.metric(name, at) for name in _COUNTED for at in cluster.brokers)


def stored_count(cluster: ClusterKit, load: Load) -> int:
    """Return the committed messages of a stream, whoever leads it by now."""
    with connect_sync(",".join(broker.address for broker in cluster.brokers.values())) as lb:
        (bounds,) = lb.streams.get(load.stream).bounds()
        return bounds.high_watermark


def rate_of(cluster: ClusterKit, loads: Sequence[Load], wait: Callable[[], object]) -> float:
    """Return messages a second that are committed during a wait."""
    before, began = sum(stored_count(cluster, load) for load in loads), monotonic()
    wait()
    after = sum(stored_count(cluster, load) for load in loads)
    return (after - before) / (monotonic() - began)


def check_stored(cluster: ClusterKit, load: Load, acked: int) -> int:
    """Return how many acknowledged messages of a stream are missing or changed."""
    right = 0
    with connect_sync(cluster[load.leader].address) as lb:
        reader = lb.streams.get(load.stream).subscribe(start=Start.earliest(), stop=Stop.latest())
        for count, message in enumerate(islice(reader, acked)):
            right += message.offset == count and message.value == value(count)
    return acked - right


def told_by(attacker: subprocess.Popen[str]) -> str:
    """Wait for the next line of the attacker."""
    assert attacker.stdout is not None
    return attacker.stdout.readline().strip()


def send_round(attacker: subprocess.Popen[str]) -> None:
    """Have the attacker send the frames that it has made up."""
    assert attacker.stdin is not None
    attacker.stdin.write("\n")
    attacker.stdin.flush()
    assert told_by(attacker) == "sent"


def measure(
    cluster: ClusterKit,
    frames: int,
    rate: int,
    seconds: float,
    settle_seconds: float = SETTLE_SECONDS,
) -> dict[str, float]:
    """Load, attack, and what came of it."""
    loads = begin(cluster)
    attacker = None
    try:
        sleep(settle_seconds)
        before, refused_before = alarms(cluster), refused(cluster)
        attacker = subprocess.Popen(
            [*_ATTACK, cluster.nats.url, str(frames), str(rate), *cluster.brokers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        quiet: list[float] = []
        attacked: list[float] = []
        while (line := told_by(attacker)) == "ready":
            # In turns: what a machine gives changes within minutes.
            quiet.append(rate_of(cluster, loads, lambda: sleep(seconds)))
            attacked.append(rate_of(cluster, loads, lambda: send_round(attacker)))
            say(
                f"undisturbed: {quiet[-1]:,.0f} messages/s, attacked: {attacked[-1]:,.0f}; "
                f"{refused(cluster):,.0f} frames refused"
            )
        sent = json.loads(line)["sent"]
        deadline = monotonic() + SETTLED_SECONDS_MAX
        while refused(cluster) - refused_before < sent and monotonic() < deadline:
            sleep(0.1)
        found = Counter(alarms(cluster)) - Counter(before)
        count = refused(cluster) - refused_before
        said = [
            json.loads(load.process.communicate("", timeout=END_SECONDS_MAX)[0]) for load in loads
        ]
    finally:
        for process in (attacker, *(load.process for load in loads)):
            if process is not None:
                end(process)
    for one in said:
        if one["refused"]:
            say(f"refused: {one['refused']}")
    wrong = [
        check_stored(cluster, load, one["acked"]) for load, one in zip(loads, said, strict=True)
    ]
    return {
        "frames forged": sent,
        "frames not refused": sent - count,
        "acknowledged": sum(one["acked"] for one in said),
        "acknowledged and wrong or missing": sum(wrong),
        "publisher refused": sum(bool(one["refused"]) for one in said),
        **{kind: times for kind, times in found.items() if kind != "in-sync set changed"},
        "messages/s undisturbed": sum(quiet) / len(quiet),
        "messages/s attacked": sum(attacked) / len(attacked),
        "ratio": sum(attacked) / sum(quiet),
    }


_TOLD: Final = (
    "frames forged", "acknowledged", "messages/s undisturbed", "messages/s attacked", "ratio",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and tell; 1 when anything was believed, lost or slowed down too much."""
    parser = argparse.ArgumentParser(prog="forgery", description=__doc__.partition("\n")[0])
    parser.add_argument("--frames", type=int, default=1_000_000, help="forged frames (1,000,000)")
    parser.add_argument("--rate", type=int, default=2_500, help="frames a second (2,500)")
    parser.add_argument("--seconds", type=float, default=5.0, help="undisturbed, each time (5)")
    parser.add_argument("--attack", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, default=Path(".bench/forgery.json"))
    options = parser.parse_args(arguments)
    if options.attack:
        url, frames, rate, *brokers = options.attack
        sent = asyncio.run(attack(url, brokers, int(frames), int(rate), seed=1))
        _report(json.dumps({"sent": sent}))
        return 0
    about = machine(0.0)
    config = {"logging.format": "json"}
    with (
        tempfile.TemporaryDirectory(prefix="forgery-") as name,
        ClusterKit(Path(name), config=config, has_proxies=False) as cluster,
    ):
        found = measure(cluster, options.frames, options.rate, options.seconds)
    is_good = found["ratio"] >= RATIO_MIN and not any(
        times for what, times in found.items() if what not in _TOLD
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": about, "counts": found}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    rows = [[what, f"{count:,.2f}", "" if what in _TOLD else "0"] for what, count in found.items()]
    say(f"\n{table(['what', 'times', 'target'], rows)}\n\nwritten: {options.output}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Result of a load: each journal compared with the log of its partition, and figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from liftbridge_client import Start, Stop, connect
from liftbridge_testkit.checker import Stored, Violation, check
from liftbridge_testkit.kube.journal import read
from liftbridge_testkit.kube.load import path_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from liftbridge_client import Client, TlsFiles
    from liftbridge_testkit.kube.journal import Account

READ_TIME: Final = timedelta(seconds=30)
ERRORS_MAX: Final = 20


@dataclass(slots=True)
class Verdict:
    """All partitions together.

    Attributes:
        violations: Broken promises, each with its partition.
        acks: Times of acknowledgements by partition, in seconds since 1970.
        counts: Messages acknowledged, refused, unknown, delivered and stored.
        errors: Errors that clients received, by text.
    """

    violations: list[str] = field(default_factory=list)
    acks: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def take(self, partition: str, account: Account, log: Sequence[Stored]) -> None:
        """Compare one partition with its log."""
        self.acks[partition] = [ack.acked for ack in account.acks]
        for name, count in (
            ("acked", len(account.acks)),
            ("refused", account.refused),
            ("unknown", account.unknown),
            ("delivered", account.delivered),
            ("stored", len(log)),
        ):
            self.counts[name] = self.counts.get(name, 0) + count
        for text, count in account.errors.items():
            self.errors[text] = self.errors.get(text, 0) + count
        self.violations += [
            f"{partition}: {one.promise}: {one.text}" for one in broken(account, log)
        ]


def broken(account: Account, log: Sequence[Stored]) -> list[Violation]:
    """Return the broken promises of one partition.

    These are the promises of `checker.check`, and that each reader got all acknowledged messages.
    """
    found = check(account.history, log)
    for number, delivered in enumerate(account.history.deliveries or [[]]):
        last = delivered[-1].offset if delivered else -1
        if last < account.newest_acked:
            text = f"subscription {number} ended at {last}, {account.newest_acked} was acknowledged"
            found.append(Violation("readers", text))
    return found


async def judge(
    folder: Path, servers: str, streams: Mapping[str, int], *, tls: TlsFiles | None = None
) -> Verdict:
    """Read every partition from its first message on and compare it with its journal.

    One partition is in memory at a time. Called after the load has ended.

    Args:
        folder: Folder of the journals.
        servers: Addresses of brokers.
        streams: Number of partitions by stream.
        tls: TLS of the connections; none without it.

    Raises:
        LiftbridgeError: A partition could not be read.
    """
    verdict = Verdict()
    async with connect(servers, tls=tls, timeout=READ_TIME, retry_time=READ_TIME) as client:
        for stream, count in streams.items():
            for number in range(count):
                log = await read_log(client, stream, number)
                account = read(path_of(folder, stream, number))
                verdict.take(f"{stream}/{number}", account, log)
    frequent = sorted(verdict.errors.items(), key=lambda one: (-one[1], one[0]))
    verdict.errors = dict(frequent[:ERRORS_MAX])
    return verdict


async def read_log(client: Client, stream: str, partition: int) -> list[Stored]:
    """Return all messages of a partition that are committed now.

    Raises:
        LiftbridgeError: The partition could not be read in time.
    """
    (bounds,) = await client.streams.get(stream).bounds(partition)
    if bounds.high_watermark == 0:
        return []
    subscription = client.streams.get(stream).subscribe(
        partition=partition, start=Start.at(0), stop=Stop.at(bounds.high_watermark - 1)
    )
    return [Stored(message.offset, message.value) async for message in subscription]

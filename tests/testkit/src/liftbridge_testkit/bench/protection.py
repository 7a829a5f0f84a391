"""Measures the cost of protection: access control with quotas, and encryption at rest."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Final

from liftbridge_client import connect_admin_sync
from liftbridge_client.access_model import AccessRule, resource_of
from liftbridge_client.quota_model import Limits
from liftbridge_testkit.bench.streams import Bound
from liftbridge_testkit.processes import Broker, NatsServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from liftbridge_testkit.bench.loadgen import LoadGenerator
    from liftbridge_testkit.bench.systems import Sizes

OTHER_RULES: Final = 200
"""Rules for principals other than that of the load, as a cluster with many users has."""

RUNS: Final = 4
"""Runs of a round: what is compared must run close together, as the speed of machines changes."""

# Far above what a broker can do: every message is charged, none has to wait.
AMPLE: Final = Limits(
    publish_bytes=10**12, publish_messages=10**9, read_bytes=10**12, read_messages=10**9
)

BOUNDS = (
    Bound(
        "controlled_publish", "PublishAsync with access control and quotas, time", 1 / 0.93, None
    ),
    Bound("controlled_replay", "Subscribe with access control and quotas, time", 1 / 0.93, None),
    Bound("encrypted_publish", "PublishAsync to an encrypted stream, time", 2, None),
    Bound("encrypted_replay", "Subscribe to an encrypted stream, time", 2, None),
)


@dataclass(frozen=True)
class ProtectionResult:
    """Time for each message, as a multiple of that of an open broker; medians of the runs.

    Attributes:
        controlled_publish: PublishAsync with access control and quotas.
        controlled_replay: Subscribe from the beginning with access control and quotas.
        encrypted_publish: PublishAsync to an encrypted stream.
        encrypted_replay: Subscribe to an encrypted stream from the beginning.
        open_publish_rate: PublishAsync at the open broker, messages a second.
        open_replay_rate: Subscribe at the open broker, messages a second.
    """

    controlled_publish: float
    controlled_replay: float
    encrypted_publish: float
    encrypted_replay: float
    open_publish_rate: float
    open_replay_rate: float


def measure_protection(
    load: LoadGenerator, work_dir: Path, sizes: Sizes, *, rounds: int
) -> ProtectionResult:
    """Publish and replay at an open, a controlled and an encrypting broker, in turn.

    Args:
        load: Creates streams, publishes and reads.
        work_dir: Directory for data; emptied afterwards.
        sizes: Messages of one round, their size, and how many are in flight.
        rounds: Number of rounds, of `RUNS` runs each.
    """
    kinds = ("open", "controlled", "encrypted")
    sizes = replace(sizes, count=sizes.count // RUNS)
    rates: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds * RUNS):
        turn = number % len(kinds)
        for kind in kinds[turn:] + kinds[:turn]:
            rates.setdefault(kind, []).append(
                _measure(load, work_dir / f"protection-{kind}", kind, sizes)
            )

    def times(kind: str, work: int) -> float:
        """Return the time at a broker of a kind, as a multiple of that at the open one."""
        pairs = zip(rates["open"], rates[kind], strict=True)
        return median(unprotected[work] / protected[work] for unprotected, protected in pairs)

    return ProtectionResult(
        controlled_publish=times("controlled", 0),
        controlled_replay=times("controlled", 1),
        encrypted_publish=times("encrypted", 0),
        encrypted_replay=times("encrypted", 1),
        open_publish_rate=median(publish for publish, _ in rates["open"]),
        open_replay_rate=median(replay for _, replay in rates["open"]),
    )


def _measure(load: LoadGenerator, folder: Path, kind: str, sizes: Sizes) -> tuple[float, float]:
    """Return the rates of PublishAsync and Subscribe at a new broker, messages a second."""
    nats = NatsServer(folder)
    broker = Broker(folder, nats_url=nats.url, config=_config(folder, kind))
    flags: dict[str, float | str] = {
        "server": broker.address,
        "nats": nats.url,
        "stream": "s",
        "subject": "s",
        "count": sizes.count,
        "size": sizes.value_bytes,
    }
    try:
        with nats, broker:
            if kind == "controlled":
                _control(broker.admin_address)
            load.run("lb-create", server=broker.address, stream="s", subject="s", count=1)
            published = load.run("lb-publish", **flags, streams=1, conns=1, window=sizes.window)
            read = load.run("lb-replay", **flags)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return published.rate, read.rate


def _config(folder: Path, kind: str) -> Mapping[str, object]:
    if kind == "controlled":
        return {
            "access.enabled": True,
            "access.super.users": ["root"],
            "auth.methods": ["token", "anonymous"],
        }
    if kind == "encrypted":
        folder.mkdir(parents=True, exist_ok=True)
        keys = folder / "master.keys"
        keys.write_text(f"first {'a1' * 32}\n")
        return {"encryption.keys.file": str(keys), "streams.encryption": True}
    return {}


def _control(admin_address: str) -> None:
    """Allow the load, which has no identity, what it does, by rules and quotas as users have."""
    others = [
        AccessRule(f"user-{number}", resource_of(f"stream:orders-{number}"), ["publish", "read"])
        for number in range(OTHER_RULES)
    ]
    granted = [
        AccessRule("*", resource_of("stream:s"), ["create", "publish", "read"]),
        AccessRule("*", resource_of("subject:s"), ["attach"]),
    ]
    with connect_admin_sync(admin_address) as admin:
        admin.access.change(granted=[*granted, *others])
        admin.quotas.set("principal", "*", AMPLE)
        admin.quotas.set("stream", "s", AMPLE)

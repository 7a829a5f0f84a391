"""Cost model of large clusters: formulas over measured constants, and a check by the simulator.

`python -m liftbridge_testkit.scale_model` prints the tables of docs/explanation/scale.md, which
says what each column means. `--check` compares the formulas with the counts of a simulated cluster
(`--brokers`, `--partitions`).

Periods and limits come from the broker. The other constants were measured on two cores of an AMD
EPYC that other work shared, as processor time where possible; the docstring of each says how.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from liftbridge_broker.controller.placement import Placement
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.model.ids import BrokerId, MetadataIndex
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.metadata.driver import SNAPSHOT_ENTRIES_DEFAULT
from liftbridge_broker.node.metadata.failure_detector import PROBE_NS
from liftbridge_broker.node.metadata.own_session import HEARTBEAT_NS
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.replication.fetch_sessions import LeaderSessionLimits
from liftbridge_testkit.bench.report import table
from liftbridge_testkit.progress import say
from liftbridge_testkit.sim.large import LargeCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

FACTOR: Final = 3
STREAM_PARTITIONS: Final = 50
BROKERS: Final = (3, 30, 300)
PARTITIONS: Final = (10_000, 100_000, 1_000_000)

BASE_PERCENT: Final = 2.0
"""Processor of a broker without partitions: nine brokers at rest, messages deducted."""

DUTY_US: Final = 47.0
"""Processor of a probe, or of a message of a session or of Raft, sent or received: metadata leader
of nine brokers less that of three."""

FETCH_US: Final = 230.0
"""Processor of a fetch or of its answer, sent or received: nine brokers with 42 pairs less without,
and three brokers with 6 pairs less without."""

NATS_PERCENT: Final = 1.2
NATS_US: Final = 44.0
"""Processor of nats-server at rest, and for a message between brokers: three and nine brokers."""

REPLICA_PERCENT: Final = 0.00035
"""Processor of a replica at rest: 10,000 partitions less 300 on three brokers. A tenth of it is the
check of retention each five minutes (simulator); the rest is not explained."""

BASE_MB: Final = 89.0
REPLICA_KB: Final = 19.0
STATE_KB: Final = 0.35
"""Memory of a broker, of a replica with ten records, and of a partition in the metadata."""

SNAPSHOT_BYTES: Final = 27.7
"""Bytes of a partition in a snapshot of 1,000,000 partitions on 30 brokers (23.5 of 10,000)."""

ENCODE_US: Final = 6.2
DECODE_US: Final = 22.0
"""Processor of a partition when a snapshot is written, and when it is read."""

FENCE_SCAN_US: Final = 0.21
FENCE_APPLY_US: Final = 14.7
FENCE_ROLE_US: Final = 21.0
"""Processor of one turn in which a broker is fenced: for each partition, each replica of that
broker, and each such replica of which this broker has another one."""

CREATE_REPLICA_MS: Final = 1.49
CREATE_US: Final = 10.0
CREATE_BROKER_US: Final = 0.37
"""Creation: of a replica, on two cores for three brokers; and of a partition in the metadata, with
an addition for each broker that placement considers."""

RECOVER_MS: Final = 0.8
"""Recovery of a log after `kill -9`."""

CHANGE_MS: Final = 1.02
"""Change of an in-sync set through the metadata log, one after the other, on two cores for three
brokers: 10,000 changes in 10.2 s."""


@cache
def pairs_of(broker_count: int) -> int:
    """Return the pairs of leader and follower that placement makes of streams of 50 partitions."""
    brokers = {
        name: BrokerState(
            broker=name,
            broker_epoch=MetadataIndex(1),
            incarnation_id="",
            data_dir_id="",
            host="",
            port=0,
            fenced=False,
        )
        for name in (BrokerId(f"b{number}") for number in range(broker_count))
    }
    pairs: set[tuple[BrokerId, BrokerId]] = set()
    for first in range(0, 10_000, STREAM_PARTITIONS):
        placement = Placement(brokers, (), {}, first)
        for _ in range(STREAM_PARTITIONS):
            leader, *followers = placement.place(FACTOR)
            pairs.update((leader, follower) for follower in followers)
    return len(pairs)


class Rates(NamedTuple):
    """Messages per second of a cluster at rest, by kind."""

    probes: float
    sessions: float
    raft: float
    fetches: float


class Cluster(NamedTuple):
    """A cluster; each method is a formula of the page."""

    brokers: int
    partitions: int
    pairs: int

    @property
    def replicas(self) -> float:
        """Replicas of a broker."""
        return self.partitions * FACTOR / self.brokers

    def rates(self) -> Rates:
        """Return the messages per second at rest; each pair exchanges two in its period."""
        duties = 2 * (self.brokers - 1) * SECOND_NS
        return Rates(
            probes=duties / PROBE_NS,
            sessions=duties / HEARTBEAT_NS,
            raft=duties / RaftOptions().heartbeat_ns,
            fetches=2 * self.pairs * SECOND_NS / LeaderSessionLimits().hold_ns,
        )

    def processor(self, *, of_leader: bool) -> float:
        """Return the processor of a broker at rest, in % of a core."""
        *duties, fetches = self.rates()
        duty = sum(duties) if of_leader else sum(duties) / (self.brokers - 1)
        fetching_us = 2 * fetches / self.brokers * FETCH_US
        return (
            BASE_PERCENT
            + (duty * DUTY_US + fetching_us) / 10_000
            + self.replicas * (REPLICA_PERCENT)
        )

    def nats(self) -> float:
        """Return the processor of all NATS servers at rest, in % of a core."""
        return NATS_PERCENT + sum(self.rates()) * NATS_US / 10_000

    def memory_mb(self) -> float:
        """Return the memory of a broker."""
        return BASE_MB + (self.replicas * REPLICA_KB + self.partitions * STATE_KB) / 1_000

    def snapshot_mb(self) -> float:
        """Return the length of a metadata snapshot."""
        return self.partitions * SNAPSHOT_BYTES / 1e6

    def fence_s(self) -> float:
        """Return the turn in which a broker applies that another one is fenced."""
        shared = self.replicas * (FACTOR - 1) / (self.brokers - 1)
        each = self.replicas * FENCE_APPLY_US + shared * FENCE_ROLE_US
        return (self.partitions * FENCE_SCAN_US + each) / 1e6

    def creation_s(self) -> float:
        """Return the time of the creation of all partitions."""
        metadata_us = CREATE_US + CREATE_BROKER_US * self.brokers
        return self.replicas * CREATE_REPLICA_MS / 1e3 + self.partitions * metadata_us / 1e6

    def return_entries(self) -> float:
        """Return the metadata entries when a broker comes back: register, unfence, in-sync sets."""
        return 2 + self.replicas

    def serve_s(self) -> float:
        """Return the time from the start of a killed broker until it serves."""
        return self.replicas * RECOVER_MS / 1e3 + self.partitions * DECODE_US / 1e6

    def in_sync_s(self) -> float:
        """Return the time from its start until all its replicas are in sync."""
        snapshot_s = self.partitions * ENCODE_US / 1e6 / SNAPSHOT_ENTRIES_DEFAULT
        return self.serve_s() + self.return_entries() * (CHANGE_MS / 1e3 + snapshot_s)


def rest_table() -> str:
    """Return the messages at rest and what they cost, without replicas."""
    rows = []
    for count in BROKERS:
        placed, all_pairs = pairs_of(count), count * (count - 1)
        for pairs in dict.fromkeys((placed, all_pairs)):
            one = Cluster(count, 0, pairs)
            figures = (pairs, *one.rates(), sum(one.rates()))
            shares = (one.processor(of_leader=True), one.processor(of_leader=False), one.nats())
            rows.append(
                [
                    f"{count}",
                    *(f"{figure:,.0f}" for figure in figures),
                    *(f"{share:,.1f} %" for share in shares),
                ]
            )
    head = ["brokers", "pairs", "probes/s", "sessions/s", "Raft/s", "fetches/s", "all/s"]
    return table([*head, "metadata leader", "other broker", "NATS"], rows)


def partitions_table() -> str:
    """Return what depends on the partitions, for pairs as placed."""
    rows = []
    for count in BROKERS:
        pairs = pairs_of(count)
        for partitions in PARTITIONS:
            one = Cluster(count, partitions, pairs)
            seconds = (one.fence_s(), one.creation_s(), one.serve_s(), one.in_sync_s())
            rows.append(
                [
                    f"{count}",
                    f"{partitions:,}",
                    f"{one.replicas:,.0f}",
                    f"{one.processor(of_leader=False):,.0f} %",
                    f"{one.memory_mb():,.0f} MB",
                    f"{one.snapshot_mb():.1f} MB",
                    *(f"{second:,.{0 if second >= 10 else 2}f} s" for second in seconds),
                ]
            )
    head = ["brokers", "partitions", "replicas each", "at rest", "memory", "snapshot"]
    return table([*head, "fence", "creation", "serves", "in sync"], rows)


class Row(NamedTuple):
    """A count of the simulator beside the formula."""

    what: str
    computed: float
    counted: float


def compare(broker_count: int, partition_count: int) -> list[Row]:
    """Return the formulas beside the counts of a simulated cluster."""
    cluster = LargeCluster(broker_count)
    created = cluster.create(partition_count, STREAM_PARTITIONS)
    rates = Cluster(broker_count, partition_count, len(cluster.pairs)).rates()
    counted = cluster.rest(seconds=3)
    rows = [
        Row(f"{kind} per second", computed, counted.get(kind, 0.0))
        for kind, computed in rates._asdict().items()
    ]
    streams = -(-partition_count // STREAM_PARTITIONS)
    rows.append(Row("entries: creation", streams, created))
    name, lost = cluster.lose(of_metadata_leader=False)
    rows.append(Row("entries: loss of a broker", 1, lost))
    held = cluster.state.replica_counts[name]
    rows.append(Row("entries: its return", 2 + held, cluster.come_back(name)))
    _, lost = cluster.lose(of_metadata_leader=True)
    rows.append(Row("entries: loss of the metadata leader", 2, lost))
    return rows


def check_table(broker_count: int, partition_count: int) -> str:
    """Return the comparison as a table."""
    cells = [
        [
            row.what,
            f"{row.computed:,.0f}",
            f"{row.counted:,.0f}",
            f"{(row.counted - row.computed) / row.computed:+.1%}",
        ]
        for row in compare(broker_count, partition_count)
    ]
    return table(["what", "computed", "counted", "deviation"], cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or the check."""
    parser = argparse.ArgumentParser(prog="scale_model", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the simulator")
    parser.add_argument("--brokers", type=int, default=30, help="simulated ones (30)")
    parser.add_argument("--partitions", type=int, default=3_000, help="simulated ones (3,000)")
    options = parser.parse_args(arguments)
    if options.check:
        say(check_table(options.brokers, options.partitions))
    else:
        say(f"{rest_table()}\n\n{partitions_table()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

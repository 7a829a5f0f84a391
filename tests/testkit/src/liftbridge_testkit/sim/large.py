"""A cluster of many brokers, whose messages and metadata changes are counted in virtual time.

It has no clients, faults, watchers or trace, so that 30 brokers with 3,000 partitions take half a
minute. `liftbridge_testkit.scale_model` compares the counts with its formulas.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from liftbridge_broker.controller.commands import CreateStream
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError, WireError
from liftbridge_broker.model.fetching import FetchBody, FetchReplyBody
from liftbridge_broker.model.ids import BrokerId, Instant, StreamName
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.metadata.driver import SNAPSHOT_ENTRIES_DEFAULT
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer.bodies import RaftBody
from liftbridge_broker.wire.peer.frame import read_open
from liftbridge_broker.wire.peer.heartbeat import Heartbeat, HeartbeatReply
from liftbridge_broker.wire.peer.messages import decode
from liftbridge_testkit.sim.broker import ClusterBroker, ClusterSettings
from liftbridge_testkit.sim.cluster_atlas import broker_on, state_on
from liftbridge_testkit.sim.lone import BrokerSettings
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.network import Endpoint, Network, Verdict
from liftbridge_testkit.sim.trace import Detail, Trace
from liftbridge_testkit.sim.world import World

FOUNDERS = 3
"""Brokers that found the cluster; the others join it."""

JOIN_NS = 10 * SECOND_NS
"""Time after the last registration in which the metadata group gets its voters and learners."""

LOOK_NS = 20 * MILLISECOND_NS
WAIT_NS = 120 * SECOND_NS
"""Maximum virtual time of a step that waits."""

KINDS = {
    FetchBody: "fetches",
    FetchReplyBody: "fetches",
    Heartbeat: "sessions",
    HeartbeatReply: "sessions",
    RaftBody: "raft",
}


class _NoTrace(Trace):
    """Keeps no lines."""

    def note(self, now: int, where: str, what: str, *details: Detail) -> None:
        """Ignore a line."""


class _CountingNetwork(Network):
    """Counts the probes and messages of brokers, by kind."""

    def __init__(self, world: World) -> None:
        super().__init__(world.scheduler, world.new_random(), world.trace, world.coverage)
        self.counts: Counter[str] = Counter()
        self.filter = self._count

    def _count(self, source: str, target: str, channel: Channel, payload: bytes) -> Verdict:
        del source, target, channel
        try:
            kind = KINDS.get(type(decode(read_open(payload))[0].body), "others")
        except WireError:
            kind = "others"  # a part of a long message
        self.counts[kind] += 1
        return Verdict.PASS

    def probe(self, source: Endpoint, broker: BrokerId, channel: Channel, sent_at: Instant) -> None:
        """Count a probe, and answer it."""
        self.counts["probes"] += 1
        super().probe(source, broker, channel, sent_at)


class LargeCluster:
    """Brokers that found a cluster and join it; all steps wait for their outcome."""

    def __init__(self, broker_count: int) -> None:
        """Start all brokers; return when the metadata group has its members."""
        self.world = World(1, _NoTrace())
        self.network = self.world.network = _CountingNetwork(self.world)
        names = tuple(BrokerId(f"b{number:03}") for number in range(broker_count))
        settings = ClusterSettings(
            peers=names[:FOUNDERS],
            broker=BrokerSettings(snapshot_entries=SNAPSHOT_ENTRIES_DEFAULT),
        )
        for name in names:
            machine = self.world.add_machine(name, lambda ports: ClusterBroker(ports, settings))
            machine.files.speed.sync_ns_min = MILLISECOND_NS
            machine.files.speed.sync_ns_jitter = machine.files.cold_ppm = 0
            machine.start()
        self._until(lambda: all(one.program is not None and one.program.is_ready for one in self))
        self._run(JOIN_NS)

    def __iter__(self) -> Iterator[Machine]:
        """Yield the machines that run."""
        return iter(self.world.running())

    @property
    def state(self) -> ClusterState:
        """The newest applied metadata."""
        states = [state for machine in self if (state := state_on(machine)) is not None]
        return max(states, key=lambda state: state.applied_index)

    @property
    def partitions(self) -> list[PartitionState]:
        """All partitions."""
        return [partition for _, partition in self.state.partitions()]

    @property
    def pairs(self) -> set[tuple[BrokerId | None, BrokerId]]:
        """Pairs of a leader and a broker that follows it."""
        return {
            (one.leader, replica)
            for one in self.partitions
            for replica in one.replicas
            if replica != one.leader
        }

    def _broker(self) -> ClusterBroker:
        broker = broker_on(next(iter(self)))
        assert broker is not None
        return broker

    def _run(self, duration_ns: int) -> None:
        self.world.run_until(self.world.now + duration_ns)

    def _until(self, happens: Callable[[], bool]) -> None:
        until = self.world.now + WAIT_NS
        while not happens():
            assert self.world.now < until, f"not within {WAIT_NS // SECOND_NS} s"
            self._run(LOOK_NS)

    def _entries_of(self, act: Callable[[], None]) -> int:
        """Return the number of metadata entries that a step takes."""
        before = self.state.applied_index
        act()
        return self.state.applied_index - before

    def _is_in_sync(self) -> bool:
        return all(len(one.isr) == len(one.replicas) for one in self.partitions)

    # Steps.

    def create(self, partition_count: int, stream_partitions: int) -> int:
        """Create partitions with three replicas; return the metadata entries."""

        def act() -> None:
            for first in range(0, partition_count, stream_partitions):
                self._create(first, min(stream_partitions, partition_count - first))
            self._until(self._is_in_sync)

        return self._entries_of(act)

    def _create(self, number: int, partition_count: int) -> None:
        outcomes: list[object] = []
        command = CreateStream(
            name=StreamName(f"s{number}"),
            subject=f"s{number}",
            partitions=partition_count,
            replication_factor=3,
            overrides=StreamOverrides(),
            creation_timestamp=1,
        )
        node = self._broker().node
        node.propose(command, node.context.now, outcomes.append)
        self._until(lambda: bool(outcomes))
        assert not isinstance(outcomes[0], LiftbridgeError), outcomes[0]

    def rest(self, seconds: int) -> dict[str, float]:
        """Let the brokers idle; return the messages per second by kind."""
        self._run(SECOND_NS)
        self.network.counts.clear()
        self._run(seconds * SECOND_NS)
        return {kind: count / seconds for kind, count in self.network.counts.items()}

    def lose(self, *, of_metadata_leader: bool) -> tuple[BrokerId, int]:
        """Kill a broker, wait until all partitions are led; return its name and the entries."""
        leader = self._broker().consensus.leader
        assert leader is not None
        victim = next(one for one in self if (one.name == leader.broker) is of_metadata_leader)

        def act() -> None:
            victim.kill()
            gone = (None, victim.name)
            self._until(lambda: all(one.leader not in gone for one in self.partitions))

        return victim.name, self._entries_of(act)

    def come_back(self, name: BrokerId) -> int:
        """Start a broker, wait until its replicas are in sync; return the metadata entries."""

        def act() -> None:
            self.world.machines[name].start()
            self._until(self._is_in_sync)

        return self._entries_of(act)

"""Steps by which leaders are replaced: silent links, reports, stops, resignations."""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.controller.balance import may_stop
from liftbridge_broker.controller.commands import Leadership, Resign, ShutDownBroker
from liftbridge_broker.controller.reports import LeaderReport
from liftbridge_broker.model.ids import NOBODY, BrokerId, Instant, MetadataIndex
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_testkit.replica_brokers import Answer, Broker, Command, require
from liftbridge_testkit.replica_cluster import ReplicaCluster, Steps, Weighted
from liftbridge_testkit.replica_reports import ReportedCluster
from liftbridge_testkit.replica_watch import Copies

HAND_OVER_NS: Final = 10_000 * MILLISECOND_NS
"""Time for which a stopping broker waits for other brokers to take over."""


class Reports(Steps):
    """Links that fail, and followers that report it (C11)."""

    def __init__(self, cluster: ReplicaCluster) -> None:
        """Begin with no link cut."""
        super().__init__(cluster)
        assert isinstance(cluster, ReportedCluster)
        self._life = cluster

    def faults(self) -> Sequence[Weighted]:
        """Return the steps in which links fail and the metadata leader changes."""
        return ((self._step_cut, 2), (self._step_calm, 8), (self._step_hand_over, 1))

    def always(self) -> Sequence[Weighted]:
        """Return the reports of followers that cannot reach their leader."""
        return ((self._step_report, 10),)

    def _step_cut(self) -> None:
        """Cut some followers, one or all, off the leader for a while."""
        cluster = self._life
        leader = cluster.truth.leader
        if leader is None:
            return
        others = [broker for broker in cluster.brokers if broker != leader]
        silent = others if cluster.rng.random() < 0.5 else [cluster.rng.choice(others)]
        for one in silent:
            length = cluster.rng.randrange(500, 5_000) * MILLISECOND_NS
            cluster.cut[one, leader] = Instant(cluster.now + length)

    def _step_calm(self) -> None:
        """Advance the clock after a report by the time in which reports count together."""
        if self._life.has_open_report:
            self._life.now = Instant(
                self._life.now + self._life.rng.randrange(2_000, 3_000) * MILLISECOND_NS
            )

    def _step_hand_over(self) -> None:
        if self._life.rng.random() < 0.3:
            self._life.hand_over()

    def _step_report(self) -> None:
        cluster = self._life
        one = cluster.any_broker()
        if not one.is_running or one.follower is None:
            return
        known = one.follower.state
        heard_at = cluster.heard.get(one.broker, Instant(0))
        if one.follower.suspicion(heard_at, cluster.now) is None:
            return
        assert known.leader is not None
        report = LeaderReport(
            one.broker,
            one.broker_epoch,
            cluster.partition,
            known.leader,
            known.leader_epoch,
            known.partition_epoch,
        )
        cluster.send(Answer(report, cluster.on_report))


class Stops(Steps):
    """Controlled stops of brokers, and resignations of leaders (C13, C19)."""

    def __init__(self, cluster: ReplicaCluster) -> None:
        """Begin without having heard of any broker."""
        super().__init__(cluster)
        assert isinstance(cluster, ReportedCluster)
        self._life = cluster
        self._applied: dict[BrokerId, MetadataIndex] = {}
        self._since: dict[tuple[BrokerId, int], int] = {}

    def faults(self) -> Sequence[Weighted]:
        """Return the steps in which operators stop brokers and disks fill up."""
        return ((self._step_stop, 2), (self._step_resign, 1))

    def always(self) -> Sequence[Weighted]:
        """Return the heartbeats, and the end of stopping brokers."""
        return ((self._step_beat, 6), (self._step_end, 2))

    def _step_stop(self) -> None:
        """Stop one broker, or all of them."""
        cluster = self._life
        one = cluster.any_broker()
        count = 1 if cluster.rng.random() < 0.6 else 3
        for each in (one, *(other for other in cluster.brokers.values() if other is not one))[
            :count
        ]:
            epoch = MetadataIndex(each.broker_epoch)
            cluster.send(Command(ShutDownBroker(broker=each.broker, broker_epoch=epoch)))

    def _step_beat(self) -> None:
        """Send a heartbeat with the index up to which a broker applied the metadata."""
        one = self._life.any_broker()
        told = (one.broker, one.broker_epoch, self._known(one))
        self._life.send(Answer(told, self._on_beat))

    def _known(self, one: Broker) -> int:
        return self._life.history[one.seen].applied_index

    def _on_beat(self, told: object) -> None:
        assert isinstance(told, tuple)
        broker, broker_epoch, applied = told
        if self._life.world.epoch(broker) == broker_epoch:
            self._applied[broker] = MetadataIndex(applied)

    def _step_end(self) -> None:
        """End a stopping broker when the controller releases it, or when it waited too long."""
        cluster = self._life
        one = cluster.any_broker()
        state = cluster.world.state
        if not state.brokers[one.broker].in_controlled_shutdown:
            return
        since = self._since.setdefault((one.broker, one.broker_epoch), cluster.now)
        if may_stop(state, one.broker, self._applied):
            self._check_end(one)
        elif cluster.rng.random() > 0.05 and cluster.now - since < HAND_OVER_NS:
            return
        one.log.sync()
        cluster.end(one)
        one.broker_epoch = cluster.world.register(
            one.broker, previous_broker_epoch=one.broker_epoch
        )
        cluster.note_view()
        one.seen = len(cluster.history) - 1
        cluster.activate(one, kept=None)

    def _check_end(self, one: Broker) -> None:
        cluster = self._life
        cluster.counts["let go"] += 1
        require("who is let go leads nothing", holds=cluster.truth.leader != one.broker)
        brokers = cluster.world.state.brokers
        index = brokers[one.broker].controlled_shutdown_index
        ignorant = [
            other.broker
            for other in cluster.brokers.values()
            if other is not one and not brokers[other.broker].fenced and self._known(other) < index
        ]
        require("all others know who is let go", holds=not ignorant)

    def _step_resign(self) -> None:
        cluster = self._life
        one = cluster.any_broker()
        if one.leader is None:
            return
        others = [name for name in cluster.brokers if name != one.broker]
        successor = cluster.rng.choice([NOBODY, NOBODY, *others])
        command = Resign(
            broker=one.broker,
            broker_epoch=MetadataIndex(one.broker_epoch),
            partitions=(Leadership(cluster.partition, one.leader.leader_epoch),),
            leaves_isr=cluster.rng.random() < 0.5,
            successor=successor,
        )
        cluster.send(Command(command))


class Resignations(Stops):
    """Leaders that resign, without any other fault."""

    def faults(self) -> Sequence[Weighted]:
        """Return frequent resignations: a leader may return before its last request arrives."""
        return ((self._step_resign, 4),)

    def always(self) -> Sequence[Weighted]:
        """Return no step: no broker stops."""
        return ()


def life(seed: int) -> ReportedCluster:
    """Return the run of a seed."""
    return ReportedCluster(seed, families=(Copies, Reports, Stops))


def resigned_life(seed: int) -> ReportedCluster:
    """Return the run of a seed in which leaders only resign."""
    return ReportedCluster(seed, families=(Copies, Resignations))

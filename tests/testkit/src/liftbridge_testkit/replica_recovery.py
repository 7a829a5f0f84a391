"""Steps of partition recoveries, and of damage in its logs (C10, C12)."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from liftbridge_broker.controller.commands import DeclareUnclean, RecoverUnclean
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId
from liftbridge_broker.model.streams import UncleanMode
from liftbridge_broker.node.metadata.inquiries import Inquiries, end_of
from liftbridge_broker.wire.peer.bodies import LogInfo
from liftbridge_testkit.replica_brokers import Answer, Broker, Command
from liftbridge_testkit.replica_cluster import ReplicaCluster, Steps, Weighted
from liftbridge_testkit.replica_unclean import STRANGER, UncleanCluster, is_refused
from liftbridge_testkit.replica_watch import Copies

MODES: Final = tuple(UncleanMode)
UNASKED: Final = 0.1
"""Share of an operator's checks at a partition that brokers will recover without help."""

MISTAKES: Final = 0.05
"""Share of all checks at which an operator names a random broker, with or without a leader."""

CHOOSES_BEST: Final = 0.7


class Recovery(Steps):
    """The metadata leader inquires and concludes; an operator chooses and changes the mode."""

    def __init__(self, cluster: ReplicaCluster) -> None:
        """Begin in a random mode."""
        super().__init__(cluster)
        assert isinstance(cluster, UncleanCluster)
        self._life = cluster
        self._inquiries = Inquiries()
        self._run = 0
        mode = self._life.rng.choice(MODES)
        self._life.apply(self._life.set_mode(mode))

    def faults(self) -> Sequence[Weighted]:
        """Return steps in which the metadata leader is replaced and operators act at bad times."""
        return ((self._step_handover, 1), (self._step_mode, 1), (self._step_lose_all, 1))

    def always(self) -> Sequence[Weighted]:
        """Return the inquiries, which continue while there is no leader."""
        return ((self._step_inquire, 6), (self._step_operator, 1))

    def _step_handover(self) -> None:
        """Replace the metadata leader: answers to the former one are lost."""
        self._inquiries = Inquiries()
        self._run += 1

    def _step_mode(self) -> None:
        cluster = self._life
        cluster.send(Command(cluster.set_mode(cluster.rng.choice(MODES))))

    def _step_lose_all(self) -> None:
        """Fail the power: every process ends, and each may lose something."""
        cluster = self._life
        if cluster.rng.random() < 0.2:
            for broker in cluster.brokers.values():
                cluster.restart(broker, is_clean=False)

    def _step_inquire(self) -> None:
        cluster = self._life
        if cluster.truth.leader is None:
            self._inquiries.hurry(cluster.now)
        state = cluster.world.state
        self._propose(self._inquiries.on_timer(state, self._ask, cluster.now))

    def _propose(self, commands: Sequence[RecoverUnclean]) -> None:
        for command in commands:
            self._life.counts["concluded"] += 1
            self._life.send(Command(command))

    def _ask(self, broker: BrokerId, partitions: tuple[PartitionId, ...]) -> None:
        assert partitions == (self._life.partition,)
        one = self._life.brokers[broker]
        self._life.send(Answer(None, partial(self._on_question, one, self._run)))

    def _on_question(self, one: Broker, run: int, question: object) -> None:
        """Report what a replica holds; nothing while it knows of damage."""
        del question
        if self._life.is_held(one):
            return
        then = partial(self._on_told, one.broker, one.broker_epoch, run)
        self._life.send(Answer(end_of(self._life.partition, one.log), then))

    def _on_told(self, broker: BrokerId, broker_epoch: int, run: int, told: object) -> None:
        assert isinstance(told, LogInfo)
        if run == self._run:
            cluster = self._life
            state = cluster.world.state
            self._propose(
                self._inquiries.on_answer(state, broker, broker_epoch, (told,), cluster.now)
            )

    def _step_operator(self) -> None:
        """Choose a leader as an operator where no broker may, and sometimes where one might."""
        cluster = self._life
        is_due = cluster.mode is UncleanMode.MANUAL
        is_mistaken = cluster.faults and cluster.rng.random() < MISTAKES
        if is_mistaken:
            names = [*cluster.brokers, STRANGER]
            self._choose(cluster.rng.choice(names))
        elif cluster.truth.leader is None and (is_due or cluster.rng.random() < UNASKED):
            brokers = cluster.world.state.brokers
            able = [
                one
                for one in cluster.brokers.values()
                if not brokers[one.broker].fenced and not cluster.is_held(one)
            ]
            if able:
                best = max(able, key=lambda one: cluster.common(one.log))
                is_best = cluster.rng.random() < CHOOSES_BEST
                self._choose((best if is_best else cluster.rng.choice(able)).broker)

    def _choose(self, broker: BrokerId) -> None:
        cluster = self._life
        command = RecoverUnclean(
            partition_id=cluster.partition,
            chosen=broker,
            partition_epoch=cluster.truth.partition_epoch,
        )
        cluster.decisions[command] = cluster.commit_count
        cluster.send(Command(command))


class Damage(Steps):
    """Damage in a log that is detected without a restart of its broker (C12)."""

    def __init__(self, cluster: ReplicaCluster) -> None:
        """Begin without damage."""
        super().__init__(cluster)
        assert isinstance(cluster, UncleanCluster)
        self._life = cluster

    def faults(self) -> Sequence[Weighted]:
        """Return the step that detects damage, mostly at a broker with a role."""
        return ((self._step_damage, 2),)

    def always(self) -> Sequence[Weighted]:
        """Return the declaration of damage, which is repeated until it is known as applied."""
        return ((self._step_declare, 4),)

    def _step_damage(self) -> None:
        """Damage a log, but only under a leader: a report must hold until its replica is chosen."""
        cluster = self._life
        one = cluster.any_broker()
        log = one.log
        has_role = one.leader is not None or one.follower is not None
        # In commit mode the observer expects the records on the disks of the members.
        if cluster.is_commit_mode or not has_role or cluster.truth.leader is None:
            return
        if log.log_end_offset > log.log_start_offset:
            cluster.hold(one, cluster.rng.randrange(log.log_start_offset, log.log_end_offset))

    def _step_declare(self) -> None:
        cluster = self._life
        one = cluster.any_broker()
        if not cluster.is_held(one):
            return
        known = cluster.history[one.seen].partition
        if known.isr == (one.broker,):
            # No other replica could take over: an operator must act.
            cluster.restart(one, is_clean=False)
            return
        session = known.replica_epoch(one.broker)
        assert session is not None
        command = DeclareUnclean(
            broker=one.broker,
            broker_epoch=MetadataIndex(one.broker_epoch),
            partition_id=cluster.partition,
            replica_epoch=session,
        )
        cluster.send(Command(command, partial(self._on_declared, one, cluster.counts["damage"])))

    def _on_declared(self, one: Broker, number: int, answer: object) -> None:
        """Handle the answer. A copy of it may arrive during other damage, with another number."""
        if number == self._life.counts["damage"] and not is_refused(answer):
            self._life.mend(one)


def life(seed: int) -> UncleanCluster:
    """Return the run of a seed."""
    return UncleanCluster(seed, families=(Copies, Recovery, Damage))

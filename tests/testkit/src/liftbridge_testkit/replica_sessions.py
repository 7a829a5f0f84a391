"""Sessions in the life of a partition: repeated registrations, replaced disks, controlled stops.

A new process requests a session until the metadata show one. Until then it does nothing (C1, C2,
C13).
"""

from collections.abc import Sequence
from dataclasses import replace

from liftbridge_broker.controller.commands import (
    FenceBroker,
    RegisterBroker,
    ShutDownBroker,
    UnfenceBroker,
)
from liftbridge_broker.controller.state import RESTARTS_MAX
from liftbridge_broker.model.ids import BrokerId, MetadataIndex
from liftbridge_testkit.replica_brokers import Broker, Command, require
from liftbridge_testkit.replica_cluster import ReplicaCluster, Steps, Weighted
from liftbridge_testkit.replica_logs import ReplicaLog

WIPED_SHARE = 0.15
"""Share of the starts after a crash with an empty disk."""

HELP_SHARE = 0.3
"""Share of the attempts to get a session at which an operator checks why it failed."""

IMPATIENT_SHARE = 0.05
"""Share of the checks of a stopping broker at which it stops waiting."""


class Sessions(Steps):
    """Brokers that start and stop independently."""

    def __init__(self, cluster: ReplicaCluster) -> None:
        """Begin with all brokers running."""
        super().__init__(cluster)
        self._starts: dict[BrokerId, RegisterBroker] = {}
        self._stopping: dict[BrokerId, int] = {}
        self._live = self._unfenced()

    def faults(self) -> Sequence[Weighted]:
        """Return the steps in which brokers stop."""
        return ((self._crash, 1), (self._stop, 1), (self._intrude, 1))

    def always(self) -> Sequence[Weighted]:
        """Return the steps in which brokers start."""
        return (
            (self._register, 4),
            (self._enter, 2),
            (self._beat, 5),
            (self._finish, 4),
            (self._expire, 1),
        )

    # How processes end.

    def _crash(self) -> None:
        cluster, rng = self.cluster, self.cluster.rng
        one = cluster.any_broker()
        if not one.is_running:
            return
        marker = one.broker_epoch
        if cluster.may_lose(one):
            marker = 0
            if rng.random() < WIPED_SHARE:
                cluster.counts["wiped"] += 1
                one.data_dir = f"disk-{one.broker}-{one.run}"
                one.log = ReplicaLog(cluster.partition)
                cluster.lose(one, 0)
            else:
                log = one.log
                cluster.lose(one, rng.randrange(log.recovery_point, log.log_end_offset + 1))
        else:
            one.log.sync()
        self._end(one, marker)

    def _end(self, one: Broker, marker: int) -> None:
        """End a process, and begin the next one."""
        cluster = self.cluster
        cluster.end(one)
        one.is_running = False
        one.broker_epoch = 0
        self._starts[one.broker] = RegisterBroker(
            broker=one.broker,
            incarnation_id=f"{one.broker}-{one.run}",
            data_dir_id=one.data_dir,
            previous_broker_epoch=marker,
            feature_level=one.feature_level,
        )

    def _stop(self) -> None:
        """Begin a controlled stop; the broker repeats its request until an answer arrives."""
        one = self.cluster.any_broker()
        if one.is_running and not self.cluster.world.state.brokers[one.broker].fenced:
            self._stopping[one.broker] = one.broker_epoch

    def _finish(self) -> None:
        """Request the end of a stopping broker, or end it when other brokers have taken over."""
        cluster = self.cluster
        for broker, epoch in [*self._stopping.items()]:
            one = cluster.brokers[broker]
            known = cluster.world.state.brokers[broker]
            is_asked = known.broker_epoch == epoch and known.in_controlled_shutdown
            leads = cluster.world.get(cluster.partition).leader == broker
            if (is_asked and not leads) or cluster.rng.random() < IMPATIENT_SHARE:
                cluster.counts["controlled stop"] += 1
                one.log.sync()
                self._end(one, epoch)
            elif not is_asked:
                cluster.send(Command(ShutDownBroker(broker=broker, broker_epoch=epoch)))

    def _intrude(self) -> None:
        """Start a second process with the name of a running broker, on another directory."""
        cluster = self.cluster
        one = cluster.any_broker()
        if not cluster.world.state.brokers[one.broker].fenced:
            cluster.apply(
                RegisterBroker(
                    broker=one.broker,
                    incarnation_id=f"intruder-{cluster.world.index}",
                    data_dir_id="elsewhere",
                    feature_level=one.feature_level,
                )
            )

    def _expire(self) -> None:
        """End the session of a process that is gone, unless the next process was faster."""
        cluster = self.cluster
        one = cluster.any_broker()
        known = cluster.world.state.brokers[one.broker]
        if not one.is_running and not known.fenced:
            fence = FenceBroker(broker=one.broker, broker_epoch=known.broker_epoch)
            cluster.send(Command(fence))

    def ended(self, one: Broker) -> None:
        """Stop the requests of an ended process; earlier ones may arrive late.

        They are late by at most as many starts as the controller remembers.
        """
        cluster = self.cluster
        self._stopping.pop(one.broker, None)
        cluster.messages = [sent for sent in cluster.messages if not _is_forgotten(sent, one)]
        cluster.late_commands = [
            sent for sent in cluster.late_commands if not _is_forgotten(sent, one)
        ]

    # How they begin.

    def _register(self) -> None:
        """Request the session of a process, again and again."""
        if not self._starts:
            return
        cluster = self.cluster
        broker = cluster.rng.choice([*self._starts])
        if cluster.rng.random() < HELP_SHARE:
            self._help(cluster.brokers[broker])
        cluster.send(Command(self._starts[broker]))

    def _help(self, one: Broker) -> None:
        """Fix the cause of a refusal as an operator: install newer software, or empty the disk."""
        state = self.cluster.world.state
        start = self._starts[one.broker]
        if state.brokers[one.broker].removed:
            one.data_dir = f"disk-{one.broker}-{one.run}"
            start = replace(start, data_dir_id=one.data_dir, previous_broker_epoch=0)
        one.feature_level = max(one.feature_level, state.feature_level)
        self._starts[one.broker] = replace(start, feature_level=one.feature_level)

    def _enter(self) -> None:
        """Take the session of a process from the metadata, which it then knows up to there."""
        cluster = self.cluster
        for broker, command in [*self._starts.items()]:
            known = cluster.world.state.brokers[broker]
            if known.incarnation_id == command.incarnation_id:
                one = cluster.brokers[broker]
                one.is_running = True
                one.broker_epoch = known.broker_epoch
                one.seen = len(cluster.history) - 1
                del self._starts[broker]
                cluster.activate(one, kept=None)

    def _beat(self) -> None:
        """Send a heartbeat; the metadata leader then allows the broker to lead."""
        cluster = self.cluster
        one = cluster.any_broker()
        known = cluster.world.state.brokers[one.broker]
        if one.is_running and known.fenced and known.broker_epoch == one.broker_epoch:
            applied = max(cluster.history[one.seen].applied_index, one.broker_epoch)
            cluster.send(
                Command(
                    UnfenceBroker(
                        broker=one.broker,
                        broker_epoch=MetadataIndex(one.broker_epoch),
                        applied_index=applied,
                    )
                )
            )

    # Invariants.

    def _unfenced(self) -> set[tuple[BrokerId, int]]:
        brokers = self.cluster.world.state.brokers.values()
        return {(known.broker, known.broker_epoch) for known in brokers if not known.fenced}

    def check(self) -> None:
        """Check C2: an admitted broker has its session, or had it and ended since."""
        live = self._unfenced()
        for broker, _ in live - self._live:
            command = self._starts.get(broker)
            known = self.cluster.world.state.brokers[broker]
            is_early = command is not None and known.incarnation_id == command.incarnation_id
            require(f"C2: {broker} is let in before it has its session", holds=not is_early)
        self._live = live

    @property
    def is_well(self) -> bool:
        """Return whether all brokers run and are admitted."""
        brokers = self.cluster.world.state.brokers.values()
        return (
            not self._starts and not self._stopping and all(broker.can_lead for broker in brokers)
        )


def _is_forgotten(sent: object, one: Broker) -> bool:
    """Return whether a message requests a session for a process that is no longer remembered."""
    if not isinstance(sent, Command) or not isinstance(sent.command, RegisterBroker):
        return False
    broker, _, run = sent.command.incarnation_id.partition("-")
    return broker == one.broker and int(run) <= one.run - RESTARTS_MAX

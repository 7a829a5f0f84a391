"""Sessions in the life of a partition: registrations sent twice, disks changed, controlled stops.

A process that begins asks for a session until it has one, and takes it from the metadata. Until
then it does nothing (C1, C2, C13).
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
"""Share of the starts after a crash that find an empty disk."""

HELP_SHARE = 0.3
"""Share of the attempts to get a session at which an operator looks for the cause of a failure."""

IMPATIENT_SHARE = 0.05
"""Share of the checks of a stopping broker at which it stops waiting."""


class Sessions(Steps):
    """Brokers that begin and end in their own time."""

    def __init__(self, cluster: ReplicaCluster) -> None:
        """Begin with all brokers running."""
        super().__init__(cluster)
        self._starts: dict[BrokerId, RegisterBroker] = {}
        self._stopping: dict[BrokerId, int] = {}
        self._live = self._unfenced()

    def faults(self) -> Sequence[Weighted]:
        """Brokers end."""
        return ((self._crash, 1), (self._stop, 1), (self._intrude, 1))

    def always(self) -> Sequence[Weighted]:
        """Brokers begin."""
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
        """A process is gone, and the next one begins."""
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
        """A broker is to stop in order; it asks until it is heard."""
        one = self.cluster.any_broker()
        if one.is_running and not self.cluster.world.state.brokers[one.broker].fenced:
            self._stopping[one.broker] = one.broker_epoch

    def _finish(self) -> None:
        """A broker that stops asks to, or ends when other brokers have taken over."""
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
        """Start a second process under the name of a live one, on another directory."""
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
        """The session of a process that is gone ends, unless the next one was quicker."""
        cluster = self.cluster
        one = cluster.any_broker()
        known = cluster.world.state.brokers[one.broker]
        if not one.is_running and not known.fenced:
            fence = FenceBroker(broker=one.broker, broker_epoch=known.broker_epoch)
            cluster.send(Command(fence))

    def ended(self, one: Broker) -> None:
        """Stop the requests of an ended process; earlier ones may arrive late.

        But not by more starts than the controller remembers.
        """
        cluster = self.cluster
        self._stopping.pop(one.broker, None)
        cluster.messages = [sent for sent in cluster.messages if not _is_forgotten(sent, one)]
        cluster.late_commands = [
            sent for sent in cluster.late_commands if not _is_forgotten(sent, one)
        ]

    # How they begin.

    def _register(self) -> None:
        """A process asks for its session, again and again."""
        if not self._starts:
            return
        cluster = self.cluster
        broker = cluster.rng.choice([*self._starts])
        if cluster.rng.random() < HELP_SHARE:
            self._help(cluster.brokers[broker])
        cluster.send(Command(self._starts[broker]))

    def _help(self, one: Broker) -> None:
        """An operator sees why a process is refused: it gets an empty disk, or newer software."""
        state = self.cluster.world.state
        start = self._starts[one.broker]
        if state.brokers[one.broker].removed:
            one.data_dir = f"disk-{one.broker}-{one.run}"
            start = replace(start, data_dir_id=one.data_dir, previous_broker_epoch=0)
        one.feature_level = max(one.feature_level, state.feature_level)
        self._starts[one.broker] = replace(start, feature_level=one.feature_level)

    def _enter(self) -> None:
        """A process finds its session in the metadata, and knows of all up to there."""
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
        """A sign of life, of which the metadata leader makes that the broker may lead."""
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

    # What must hold.

    def _unfenced(self) -> set[tuple[BrokerId, int]]:
        brokers = self.cluster.world.state.brokers.values()
        return {(known.broker, known.broker_epoch) for known in brokers if not known.fenced}

    def check(self) -> None:
        """C2: whoever is let in has its session, or had it and ended since."""
        live = self._unfenced()
        for broker, _ in live - self._live:
            command = self._starts.get(broker)
            known = self.cluster.world.state.brokers[broker]
            is_early = command is not None and known.incarnation_id == command.incarnation_id
            require(f"C2: {broker} is let in before it has its session", holds=not is_early)
        self._live = live

    @property
    def is_well(self) -> bool:
        """Return whether all run and are let in."""
        brokers = self.cluster.world.state.brokers.values()
        return not self._starts and not self._stopping and all(one.can_lead for one in brokers)


def _is_forgotten(sent: object, one: Broker) -> bool:
    """Return whether a message asks for a session of a process that is no longer remembered."""
    if not isinstance(sent, Command) or not isinstance(sent.command, RegisterBroker):
        return False
    broker, _, run = sent.command.incarnation_id.partition("-")
    return broker == one.broker and int(run) <= one.run - RESTARTS_MAX

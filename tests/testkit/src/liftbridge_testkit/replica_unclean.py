"""A partition that loses more than its promise covers: unclean recovery, damage (C10, C12).

Any broker may lose unsynced records, several at a time, and single logs turn out to be damaged.
These rules must still hold. No broker with a log that may lack records is elected while another one
may be complete. The controller recovers only in the mode that the stream allows, from the reports
of all replicas that were complete, and takes the best of them. The choice of an operator gives up
records that existed at that time, and none that were committed later.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from liftbridge_broker.controller.commands import AlterStream, DeclareUnclean, RecoverUnclean
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Offset, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides, UncleanMode
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_testkit.controller_world import ControllerWorld
from liftbridge_testkit.replica_brokers import Broker, require
from liftbridge_testkit.replica_checks import MIN_ISR, Checks
from liftbridge_testkit.replica_cluster import Steps
from liftbridge_testkit.replica_logs import Record, ReplicaLog
from liftbridge_testkit.replica_watch import WatchedCluster

CLEAN_SHARE: Final = 0.4
"""Share of clean stops among all ends of a process."""

STRANGER: Final = BrokerId("d")
"""A broker of the cluster that holds no replica."""

UNKNOWN: Final = Record(0, b"removed by retention")


class UncleanChecks(Checks):
    """Invariants that exempt logs which diverge since an unclean election.

    Attributes:
        strayed: Brokers whose log may still hold records that such an election gave up.
        held: Brokers that found damage and have not declared it yet, with their sessions then.
        known_from: Start of the committed records; retention had removed it from the log that an
            unclean election made the only one that counts.
    """

    def __init__(
        self,
        world: ControllerWorld,
        partition: PartitionId,
        brokers: Mapping[BrokerId, Broker],
        committed: Sequence[Record],
        counts: Counter[str],
    ) -> None:
        """Look at state that the run changes continuously; see `Checks`."""
        super().__init__(world, partition, brokers, committed, counts)
        self.strayed: set[BrokerId] = set()
        self.held: dict[BrokerId, int] = {}
        self.known_from = 0

    def run(self) -> None:
        """Check the invariants of the whole state."""
        truth = self._world.get(self._partition)
        self.strayed -= set(truth.isr)
        damaged = [self._brokers[one] for one in self.held]
        super().run()
        for one in damaged:
            one.is_clean = False

    def complete(self, name: str, one: Broker) -> None:
        """Check that every log not known to be damaged has all committed records."""
        if one.broker in self.held:
            return
        log, end = one.log, len(self._committed)
        start = max(log.log_start_offset, self.known_from)
        require(name, holds=log.log_end_offset >= end)
        require(name, holds=log.slice(start, end) == self._committed[start:end])

    def matching(self) -> None:
        """Check I5 among logs of one history."""
        self.compare([one.log for name, one in self._brokers.items() if name not in self.strayed])

    def floor(self, one: Broker, end: Offset, *, is_below: bool) -> None:
        """Check I22, and that only an unclean election truncates below a high watermark."""
        if one.broker in self.strayed:
            self._counts["truncation of what was given up"] += 1
        else:
            super().floor(one, end, is_below=is_below)


class UncleanCluster(WatchedCluster):
    """A run.

    Attributes:
        unclean: The invariants, which exempt records that were given up.
        complete: Brokers that held all committed records when enough brokers for a commit were last
            in sync.
        commit_count: Number of records committed so far, including those given up later.
        promised: End of what may not be given up: an unclean election may bring back what another
            one gave up, and it is promised again with the next record that is committed.
        decisions: Choices of operators, with `commit_count` as it was then.
    """

    def __init__(self, seed: int, *, families: Sequence[type[Steps]]) -> None:
        """Begin; see `ReplicaCluster`."""
        self.complete: set[BrokerId] = set()
        self.commit_count = self.promised = 0
        self.decisions: dict[RecoverUnclean, int] = {}
        self._led_since: set[BrokerId] = set()
        self._held: dict[BrokerId, int] = {}
        super().__init__(seed, families=families)
        self.world.start(STRANGER)
        self.unclean = UncleanChecks(
            self.world, self.partition, self.brokers, self.committed, self.counts
        )
        self.unclean.held = self._held
        self.checks = self.unclean

    @property
    def mode(self) -> UncleanMode:
        """Return the unclean mode of the partition."""
        return next(iter(self.world.state.streams.values())).unclean_mode

    # Notes of the observer.

    def on_change(self, before: PartitionState, after: PartitionState) -> None:
        """Check the effect of a command or a registration."""
        if after.unclean_epoch != before.unclean_epoch:
            self._on_unclean_election(before, after)
        if isinstance(self.command, DeclareUnclean):
            is_open = self.command.broker in self._held
            require("damage that was mended takes nobody out", holds=is_open)

    def note_view(self) -> None:
        """Note the replicas that hold everything."""
        super().note_view()
        after = self.truth
        self._led_since |= set(after.isr)
        require("eligible in this history", holds=set(after.elr) <= self._led_since)
        if len(after.isr) >= MIN_ISR:
            self.complete.clear()
        self.complete |= set(after.isr)

    def common(self, log: ReplicaLog) -> int:
        """Return the end of the part of a log that agrees with the promised records."""
        end = min(self.promised, log.log_end_offset)
        for offset in range(max(log.base, self.unclean.known_from), end):
            if log.at(offset) != self.committed[offset]:
                return offset
        return end

    def _on_unclean_election(self, before: PartitionState, after: PartitionState) -> None:
        """Check that an unclean election was allowed.

        The log of its leader is committed from now on.
        """
        assert after.leader is not None
        leader = self.brokers[after.leader]
        kept = self.common(leader.log)
        self._check_election(before, kept)
        self.counts["unclean election"] += 1
        self.counts["given up"] += self.promised - kept
        self._commit_only(leader.log, kept)
        self.unclean.strayed |= {broker for broker in self.brokers if broker != after.leader}
        for broker in self.brokers.values():
            broker.is_clean = broker is leader
        self._led_since.clear()

    def _commit_only(self, log: ReplicaLog, kept: int) -> None:
        """Limit the committed records to those below the high watermark of a log, up to `kept`."""
        self.promised = kept
        del self.committed[kept:]
        if log.base < self.unclean.known_from:
            self.committed[log.base :] = log.slice(log.base, kept)
            self.unclean.known_from = log.base
        missing = log.base - kept
        if missing > 0:
            self.unclean.known_from = log.base
            self.committed += [UNKNOWN] * missing
        start = len(self.committed)
        self.committed += log.slice(start, log.high_watermark)

    def _check_election(self, before: PartitionState, kept: int) -> None:
        loses = kept < self.promised
        command = self.command
        asked: set[BrokerId] = set(self.complete)
        if isinstance(command, RecoverUnclean):
            require("nobody leads before", holds=before.leader is None)
            if command.mode is UncleanMode.MANUAL:
                is_fresh = self.decisions[command] == self.commit_count
                require("a choice gives up what was committed later", holds=is_fresh or not loses)
                return
            self.counts[f"recovered {self.mode.value}"] += 1
            require("operators only", holds=self.mode is not UncleanMode.MANUAL)
            answered = {answer.broker for answer in command.answers}
            if self.mode is UncleanMode.PROACTIVE:
                asked = answered
            else:
                is_due = not before.isr and not before.elr
                require("a complete replica is waited for", holds=is_due)
                require("all that were complete are waited for", holds=asked <= answered)
                asked = answered
        # An empty log that begins where its leader's begins reports no epoch: it holds nothing.
        logs = [self.brokers[one].log for one in asked]
        best = max((self.common(log) for log in logs if log.epochs.latest is not None), default=0)
        require("another one has more", holds=kept >= best)

    def advance(self, one: Broker) -> None:
        """Commit, unless an unclean election has ended this leader's history."""
        assert one.leader is not None
        if one.leader.leader_epoch < self.truth.unclean_epoch:
            one.log.high_watermark = one.leader.high_watermark()
            return
        before = len(self.committed)
        super().advance(one)
        after = len(self.committed)
        self.commit_count += after - before
        if after > before:
            self.promised = after

    # Brokers.

    def activate(self, one: Broker, *, kept: LeaderCore | None) -> None:
        """Act on the metadata, unless damage must be declared first."""
        declared = self._held.get(one.broker)
        if declared is not None:
            session = self.history[one.seen].partition.replica_epoch(one.broker)
            assert session is not None
            if session <= declared:
                return
            del self._held[one.broker]
            kept = None
        super().activate(one, kept=kept)

    def may_lose(self, one: Broker) -> bool:
        """Return whether a broker may lose data: always."""
        del one
        return True

    def is_held(self, one: Broker) -> bool:
        """Return whether a broker found damage that it has not declared yet."""
        return one.broker in self._held

    def hold(self, one: Broker, end: int) -> None:
        """Damage the records of a broker from `end` on.

        The broker stops until the damage is known.
        """
        log = one.log
        session = self.history[one.seen].partition.replica_epoch(one.broker)
        assert session is not None
        self._held[one.broker] = session
        log.recovery_point = Offset(min(log.recovery_point, end))
        self.lose(one, end)
        one.leader = one.follower = one.asked = None
        self.counts["damage"] += 1

    def mend(self, one: Broker) -> None:
        """Continue with the verified records once the metadata show the damage."""
        if self._held.pop(one.broker, None) is not None:
            one.seen = len(self.history) - 1  # the broker's own apply is the answer
            self.activate(one, kept=None)

    def restart(self, one: Broker, *, is_clean: bool) -> None:
        """End a process and register the next one.

        Without a clean marker unless it ended in order.
        """
        if is_clean:
            one.log.sync()
        else:
            self.lose(one, self.rng.randrange(one.log.recovery_point, one.log.log_end_offset + 1))
        self._held.pop(one.broker, None)
        self.end(one)
        marker = one.broker_epoch if is_clean else 0
        one.broker_epoch = self.world.register(one.broker, previous_broker_epoch=marker)
        self.note_view()
        one.seen = len(self.history) - 1
        self.activate(one, kept=None)

    def _step_crash(self) -> None:
        one = self.any_broker()
        is_clean = not self.is_held(one) and self.rng.random() < CLEAN_SHARE
        self.restart(one, is_clean=is_clean)

    def set_mode(self, mode: UncleanMode) -> AlterStream:
        """Return the command that allows brokers to recover the partition."""
        name = next(iter(self.world.state.streams.values())).name
        return AlterStream(name=name, overrides=StreamOverrides(unclean_mode=mode))

    @property
    def is_well(self) -> bool:
        """Return whether all replicas are in sync, hold the same records, and none is damaged."""
        return not self._held and super().is_well


def is_refused(answer: object) -> bool:
    """Return whether an answer of the controller is a refusal."""
    return isinstance(answer, LiftbridgeError)

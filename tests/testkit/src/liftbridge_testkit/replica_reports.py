"""A partition whose leaders are reported, stopped or resign (C11, C13, C19).

Links between brokers fail, followers report unreachable leaders, brokers stop in order or resign.
An observer knows all reports and all metadata. It checks that a leader is replaced only when most
of its in-sync followers reported it lately, not more often than the pauses allow, and never without
a successor. It also checks that no broker resigns more than it must, and that a stopped broker
leads nothing and all brokers know of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from liftbridge_broker.controller.commands import ChangeLeader, Resign
from liftbridge_broker.controller.reports import (
    BACKOFF_NS_MAX,
    BACKOFF_NS_MIN,
    WINDOW_NS,
    LeaderReport,
    LeaderReports,
)
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_testkit.replica_brokers import Command, Fetch, Reply, require
from liftbridge_testkit.replica_cluster import Steps
from liftbridge_testkit.replica_watch import WatchedCluster


@dataclass(slots=True)
class _Pause:
    """The last change of a leader that reports caused."""

    at: Instant
    length: int
    deposed: BrokerId
    broker_epoch: int


class ReportedCluster(WatchedCluster):
    """A run.

    Attributes:
        reports: Reports that the metadata leader holds.
        heard: Time of the last answer of the leader, by broker.
        cut: Links (follower, leader) without delivery, and the time at which that ends.
    """

    def __init__(self, seed: int, *, families: Sequence[type[Steps]]) -> None:
        """Begin; see `ReplicaCluster`."""
        self.reports = LeaderReports()
        self.heard: dict[BrokerId, Instant] = {}
        self.cut: dict[tuple[BrokerId, BrokerId], Instant] = {}
        self._arrivals: list[tuple[Instant, LeaderReport]] = []
        self._decided: dict[ChangeLeader, set[BrokerId]] = {}
        self._pause: _Pause | None = None
        super().__init__(seed, families=families)

    # Messages.

    def _on_fetch(self, fetch: Fetch) -> None:
        until = self.cut.get((fetch.follower, fetch.leader))
        if not self.faults or until is None or self.now >= until:
            super()._on_fetch(fetch)

    def _on_reply(self, reply: Reply) -> None:
        if self.brokers[reply.follower].correlation == reply.correlation:
            self.heard[reply.follower] = self.now
        super()._on_reply(reply)

    # Reports.

    def on_report(self, report: object) -> None:
        """Deliver a report to the metadata leader."""
        assert isinstance(report, LeaderReport)
        self.counts["report"] += 1
        self._arrivals.append((self.now, report))
        change = self.reports.on_report(self.world.state, report, self.now)
        if change is not None:
            command = ChangeLeader(changes=(change,))
            self._decided[command] = self._judge()
            self.counts["change decided"] += 1
            self.send(Command(command))

    @property
    def has_open_report(self) -> bool:
        """Return whether the last report is about the present state, and was not sufficient."""
        if not self._arrivals:
            return False
        report = self._arrivals[-1][1]
        return report.partition_epoch == self.truth.partition_epoch

    def hand_over(self) -> None:
        """Replace the metadata leader; the new one knows of no report."""
        self.reports.clear()
        self._arrivals.clear()
        self._pause = None
        for broker in self.brokers.values():
            if broker.follower is not None:
                broker.follower.repeat_report()

    def _judge(self) -> set[BrokerId]:
        """Return the reporters of the present leader, as an observer counts them."""
        truth = self.truth
        leader = truth.leader
        assert leader is not None
        followers = set(truth.isr) - {leader}
        state = (leader, truth.leader_epoch, truth.partition_epoch)
        counted = {
            report.reporter
            for at, report in self._arrivals
            if self.now - at <= WINDOW_NS
            and report.broker_epoch == self.world.epoch(report.reporter)
            and (report.leader, report.leader_epoch, report.partition_epoch) == state
        } & followers
        require("most of those in sync report", holds=2 * len(counted) > len(followers))
        self._check_pause(leader)
        return counted

    def _check_pause(self, leader: BrokerId) -> None:
        """Check that changes become rarer, except for leaders that had really ended."""
        pause, length = self._pause, BACKOFF_NS_MIN
        if pause is not None:
            broker = self.world.state.brokers[pause.deposed]
            was_right = broker.fenced or broker.broker_epoch != pause.broker_epoch
            since = self.now - pause.at
            if not was_right:
                require("leaders change too often", holds=since >= pause.length)
                if since - pause.length < BACKOFF_NS_MAX:
                    length = min(2 * pause.length, BACKOFF_NS_MAX)
        self._pause = _Pause(self.now, length, leader, self.world.epoch(leader))

    # What the observer sees applied.

    def on_change(self, before: PartitionState, after: PartitionState) -> None:
        """Check the effect of a command."""
        command = self.command
        match command:
            case ChangeLeader():
                self._check_change(command, before, after)
            case Resign():
                self._check_resignation(command, before, after)
            case _:
                pass

    def _check_change(
        self, command: ChangeLeader, before: PartitionState, after: PartitionState
    ) -> None:
        self.counts["change"] += 1
        (change,) = command.changes
        is_present = (before.leader, before.leader_epoch) == (change.exclude, change.leader_epoch)
        require("the leader that was reported leads", holds=is_present)
        followers = set(before.isr) - {change.exclude}
        counted = self._decided[command] & followers
        require("most of those in sync now reported", holds=2 * len(counted) > len(followers))
        require("who was reported is out of sync", holds=change.exclude not in after.isr)
        self._check_successor(after, change.exclude)

    def _check_resignation(
        self, command: Resign, before: PartitionState, after: PartitionState
    ) -> None:
        self.counts["resignation"] += 1
        (meant,) = command.partitions
        given_up = (before.leader, before.leader_epoch, self.world.epoch(command.broker))
        is_meant = given_up == (command.broker, meant.leader_epoch, command.broker_epoch)
        require("who resigns leads and means it", holds=is_meant)
        self._check_successor(after, command.broker)

    def _check_successor(self, after: PartitionState, former: BrokerId) -> None:
        leader = after.leader
        can_lead = leader is not None and self.world.state.brokers[leader].can_lead
        require("a successor that can lead", holds=can_lead and leader != former)

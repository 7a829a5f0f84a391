"""Reports of followers about silent leaders: enough of them replace the leader (C11).

Soft state of the metadata leader: it is lost when another broker takes over; followers notice that
and report again. A report counts only for the exact partition state that the reporter knew.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liftbridge_broker.controller.commands import LeaderChange
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.units import SECOND_NS

WINDOW_NS: Final = 2 * SECOND_NS
BACKOFF_NS_MIN: Final = 2 * SECOND_NS
BACKOFF_NS_MAX: Final = 64 * SECOND_NS
TALLIES_MAX: Final = 100_000


class LeaderReport(NamedTuple):
    """A follower has had no valid answer from its leader for too long.

    Attributes:
        reporter: The follower.
        broker_epoch: Its session.
        partition_id: The partition.
        leader: The leader it cannot reach.
        leader_epoch: Leader epoch it knows.
        partition_epoch: Partition epoch it knows.
    """

    reporter: BrokerId
    broker_epoch: int
    partition_id: PartitionId
    leader: BrokerId
    leader_epoch: int
    partition_epoch: int


@dataclass(slots=True)
class _Tally:
    """Reports on one state of a partition: time of the last report by reporter."""

    partition_epoch: int
    heard: dict[BrokerId, Instant] = field(default_factory=dict)


@dataclass(slots=True)
class _Backoff:
    """Pause in leader changes of a partition until `until`; the next pause lasts `pause_ns`.

    Attributes:
        until: End of the pause.
        pause_ns: Length of the next one.
        deposed: The last replaced leader.
        broker_epoch: Its session then.
    """

    until: Instant
    pause_ns: int
    deposed: BrokerId
    broker_epoch: int

    def was_right(self, state: ClusterState) -> bool:
        """Return whether the last replaced leader was really down, as its session shows.

        Such a change is no flapping, so the next change need not wait: brokers killed one after the
        other are each replaced at once.
        """
        broker = state.brokers.get(self.deposed)
        return broker is None or broker.fenced or broker.broker_epoch != self.broker_epoch


class LeaderReports:
    """Tallies of all partitions; owned by the metadata leader, cleared when it becomes one.

    Args:
        window_ns: Time within which reporters must be heard to be counted together.
        backoff_ns_min: Least time between two changes of the leader of one partition; it doubles
            with each change, and resets after a quiet time of `backoff_ns_max`, and when the last
            replaced leader turns out to be fenced or restarted.
        backoff_ns_max: Maximum of that time.
        tallies_max: Maximum partitions with state; the oldest is evicted.
    """

    def __init__(
        self,
        *,
        window_ns: int = WINDOW_NS,
        backoff_ns_min: int = BACKOFF_NS_MIN,
        backoff_ns_max: int = BACKOFF_NS_MAX,
        tallies_max: int = TALLIES_MAX,
    ) -> None:
        self._window_ns = window_ns
        self._backoff_ns_min = backoff_ns_min
        self._backoff_ns_max = backoff_ns_max
        self._tallies_max = tallies_max
        self._tallies: dict[PartitionId, _Tally] = {}
        self._backoffs: dict[PartitionId, _Backoff] = {}

    def clear(self) -> None:
        """Clear all state, as a new metadata leader must."""
        self._tallies.clear()
        self._backoffs.clear()

    def on_report(
        self, state: ClusterState, report: LeaderReport, now: Instant
    ) -> LeaderChange | None:
        """Count a report; return the change to propose if it completes the required number.

        Args:
            state: Applied metadata.
            report: The report, trusted only as far as the state confirms it.
            now: Time of its arrival.
        """
        partition = state.partition(report.partition_id)
        if partition is None or not _counts(state, partition, report):
            return None
        tally = self._tally(partition)
        # A report of one follower does not extend another's: each expires separately.
        tally.heard[report.reporter] = now
        since = now - self._window_ns
        count = sum(heard >= since for heard in tally.heard.values())  # guard C11.window
        followers = len(partition.isr) - 1
        if 2 * count <= followers:  # guard C11.majority
            return None
        if not self._may_change(state, report, now):
            return None
        return LeaderChange(
            report.partition_id, report.leader_epoch, report.partition_epoch, report.leader
        )

    def _tally(self, partition: PartitionState) -> _Tally:
        """Return the tally of a partition's present state; drop that of an earlier state."""
        number = partition.partition_id
        tally = self._tallies.pop(number, None)
        if tally is None or tally.partition_epoch != partition.partition_epoch:
            tally = _Tally(partition.partition_epoch)
        self._tallies[number] = tally
        if len(self._tallies) > self._tallies_max:
            del self._tallies[next(iter(self._tallies))]
        return tally

    def _may_change(self, state: ClusterState, report: LeaderReport, now: Instant) -> bool:
        """Return whether the pause since the last change has ended; if so, begin a longer pause."""
        partition = report.partition_id
        backoff = self._backoffs.pop(partition, None)
        if backoff is not None and backoff.was_right(state):
            backoff = None
        if backoff is not None and now < backoff.until:  # guard C11.backoff
            self._backoffs[partition] = backoff
            return False
        is_quiet = backoff is None or now - backoff.until >= self._backoff_ns_max
        pause_ns = self._backoff_ns_min if is_quiet or backoff is None else backoff.pause_ns
        self._backoffs[partition] = _Backoff(
            Instant(now + pause_ns),
            min(2 * pause_ns, self._backoff_ns_max),
            report.leader,
            state.brokers[report.leader].broker_epoch,
        )
        if len(self._backoffs) > self._tallies_max:
            del self._backoffs[next(iter(self._backoffs))]
        return True


def _counts(state: ClusterState, partition: PartitionState, report: LeaderReport) -> bool:
    """Return whether the reporter is a live in-sync follower that knows the present state."""
    reporter = state.brokers.get(report.reporter)
    return (
        reporter is not None
        and reporter.broker_epoch == report.broker_epoch  # guard C11.report_session
        and not reporter.fenced  # guard C11.report_fenced
        and report.reporter in partition.isr  # guard C11.report_isr
        and report.reporter != partition.leader  # guard C11.report_self
        and report.leader == partition.leader
        and report.leader_epoch == partition.leader_epoch  # guard C11.report_leader_epoch
        and report.partition_epoch == partition.partition_epoch  # guard C11.report_partition_epoch
    )

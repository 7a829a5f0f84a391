"""Reports of consumers about coordinators that they cannot reach: enough of them replace one.

Soft state of the metadata leader: it is lost when another broker takes over; consumers report
again. A report counts only for the coordinator epoch that the state confirms.
"""

from dataclasses import dataclass, field

from liftbridge_broker.controller.consumer_groups.commands import ChangeCoordinator
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, Instant, MetadataIndex


@dataclass(slots=True)
class _Tally:
    """Time of the last report by member, about the coordinator since `coordinator_epoch`."""

    coordinator_epoch: MetadataIndex
    heard: dict[str, Instant] = field(default_factory=dict)


class CoordinatorReports:
    """Tallies by group; at most one for each group, and one report of each member."""

    def __init__(self) -> None:
        """Start without reports."""
        self._tallies: dict[str, _Tally] = {}

    def clear(self) -> None:
        """Clear all state, as a new metadata leader must."""
        self._tallies.clear()

    def on_report(
        self,
        state: ClusterState,
        group_id: str,
        member_id: str,
        coordinator: BrokerId,
        coordinator_epoch: int,
        window_ns: int,
        now: Instant,
    ) -> ChangeCoordinator | None:
        """Count a report; return the change to propose if more than half of the members agree.

        Args:
            state: Applied metadata.
            group_id: The group.
            member_id: The reporting member.
            coordinator: Coordinator that it cannot reach.
            coordinator_epoch: Metadata index since which that broker coordinates.
            window_ns: Time within which members must report to be counted together.
            now: Time of the report.
        """
        for gone in [one for one in self._tallies if one not in state.groups]:
            del self._tallies[gone]
        group = state.groups.get(group_id)
        if group is None:
            return None
        if (group.coordinator, group.coordinator_epoch) != (coordinator, coordinator_epoch):
            return None
        tally = self._tallies.get(group_id)
        if tally is None or tally.coordinator_epoch != coordinator_epoch:
            tally = self._tallies[group_id] = _Tally(group.coordinator_epoch)
        tally.heard[member_id] = now
        since = now - window_ns
        members = {member.member_id for member in group.members}
        tally.heard = {
            member: heard
            for member, heard in tally.heard.items()
            if heard >= since and member in members  # guard Group.report_window
        }
        if 2 * len(tally.heard) <= len(members):  # guard Group.report_majority
            return None
        return ChangeCoordinator(
            group_id=group_id, coordinator=coordinator, coordinator_epoch=coordinator_epoch
        )

"""Invariants of consumer groups: one reader of each partition, one fence, no commit by the fenced.

A member *holds* a partition from the grant until it is lost; each position is of one hold.
The state is checked as in `group_life`; what clients are told and may do is compared with the
history of the state, which this module keeps itself.
"""

from dataclasses import dataclass, field

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.records import FRAME_PREFIX, FRAME_PREFIX_SIZE
from liftbridge_broker.model.groups import CURSOR_PREFIX, Group, Member
from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.node.groups.seats import Consumer
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.wire.cursors import decode_cursor
from liftbridge_proto import api_pb2
from liftbridge_testkit.group_life import broken_group
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.cluster_atlas import broker_on, state_on
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World

READ_BYTES = 1 << 20
Membership = tuple[str, int]
"""Name and epoch of a member."""


@dataclass(slots=True, eq=False)
class Hold:
    """Metadata indexes between which a membership held a partition; `end` is 0 while it does."""

    member: Membership
    begin: int
    end: int = 0


@dataclass(slots=True, eq=False)
class GroupRules(Watcher):
    """Checks all groups of one world.

    Attributes:
        holds: Who held each partition of a group, in order.
        marks: Hold in which each position was taken, `None` if it is not known; positions are
            unique numbers, in the order in which they were taken.
        answered_at: Newest position when a member learned that one was stored.
        resets: Positions that an operator set, each with a metadata index: what was held up to then
            is over.
    """

    world: World
    holds: dict[tuple[str, PartitionId], list[Hold]] = field(default_factory=dict)
    marks: dict[int, Hold | None] = field(default_factory=dict)
    answered_at: dict[int, int] = field(default_factory=dict)
    resets: dict[int, int] = field(default_factory=dict)
    _top: int = 0
    _groups: dict[str, Group] = field(default_factory=dict)
    _told: dict[tuple[str, int, PartitionId], str] = field(default_factory=dict)
    _seats: dict[tuple[str, int, PartitionId], str] = field(default_factory=dict)
    _reads: dict[str, dict[Membership, frozenset[PartitionId]]] = field(default_factory=dict)

    # -- the state ----------------------------------------------------------------------------

    def on_turn(self, machine: Machine) -> None:
        """Check the state of the member that had a turn: a process may start with a new one."""
        self.on_applied(machine)

    def on_applied(self, machine: Machine) -> None:
        """Check groups that changed, at the first member that applies the change."""
        state = state_on(machine)
        if state is None or state.applied_index <= self._top:
            return
        self._top = state.applied_index
        for group_id in {**self._groups, **state.groups}:
            group, before = state.groups.get(group_id), self._groups.get(group_id)
            if group is before:
                continue
            if group is not None:
                faults = broken_group(state, group)
                if before is not None and group.group_epoch < before.group_epoch:
                    faults.append(f"its epoch fell from {before.group_epoch}")
                if faults:
                    raise BrokenInvariantError("groups", f"{faults}: {group}")
            self._keep(group_id, group, state.applied_index)
        self._groups = dict(state.groups)

    def _keep(self, group_id: str, group: Group | None, index: int) -> None:
        """Remember who holds what."""
        members = () if group is None else group.members
        held = {
            one: (member.member_id, int(member.member_epoch))
            for member in members
            for one in member.held
        }
        for (name, partition), holds in self.holds.items():
            is_over = name == group_id and held.get(partition) != holds[-1].member
            if is_over and not holds[-1].end:
                holds[-1].end = index
        for partition, member in held.items():
            holds = self.holds.setdefault((group_id, partition), [])
            if not holds or holds[-1].end:
                holds.append(Hold(member, index))

    # -- what clients are told and may do -----------------------------------------------------

    def told(self, group_id: str, epoch: int, member_id: str, member: Member) -> None:
        """Check the partitions that a coordinator told a member of a classic group."""
        for partition in member.target:
            owner = self._told.setdefault((group_id, epoch, partition), member_id)
            if owner != member_id:
                raise BrokenInvariantError(
                    "one owner in an epoch",
                    f"{partition} of {group_id} at {epoch}: {owner} and {member_id}",
                )

    def reads(self, group_id: str, member: Membership, partitions: frozenset[PartitionId]) -> None:
        """Check what a member of an incremental group reads from now on: no other member does.

        Memberships that are over do not count: nobody waits for those that are silent.
        """
        reads = self._reads.setdefault(group_id, {})
        reads[member] = partitions
        group = self._groups.get(group_id)
        live = {} if group is None else {one.member_id: one.member_epoch for one in group.members}
        if live.get(member[0]) != member[1]:
            return
        for other, read in reads.items():
            if other != member and live.get(other[0]) == other[1] and read & partitions:
                raise BrokenInvariantError(
                    "one reader at a time", f"{other} and {member} read {sorted(read & partitions)}"
                )

    def seated(self, state: ClusterState, partition: PartitionId, consumer: Consumer) -> None:
        """Check a consumer that gets a seat: no other ever had it under this fence.

        Of a group that has ended, epochs alone decide, until another group of its name begins.
        """
        if consumer.group_id not in state.groups:
            self.world.coverage.count("world", "seat of a group that has ended")
            return
        key = consumer.group_id, consumer.epoch, partition
        other = self._seats.setdefault(key, consumer.member_id)
        if other != consumer.member_id:
            raise BrokenInvariantError(
                "one reader under a fence", f"{key}: {other} and {consumer.member_id}"
            )
        holds = self.holds.get((consumer.group_id, partition), [])
        index = int(state.applied_index)
        holders = {
            hold.member[0] for hold in holds if hold.begin <= index < (hold.end or index + 1)
        }
        if holders != {consumer.member_id}:
            raise BrokenInvariantError(
                "a reader holds its partition",
                f"{consumer} reads {partition} at {index}, held by {holders} of {holds}",
            )

    def next_mark(self, group_id: str, partition: PartitionId, member: Membership) -> int:
        """Return a position that no other commit uses, of the latest hold of a membership."""
        mark = len(self.marks) + 1
        holds = self.holds.get((group_id, partition), [])
        self.marks[mark] = next((one for one in reversed(holds) if one.member == member), None)
        return mark

    @property
    def top(self) -> int:
        """Return the newest metadata index that any broker has applied."""
        return self._top

    def committed(self, mark: int, *, since: int) -> None:
        """Check a commit that a broker accepted: its hold was not over when the call arrived.

        Args:
            mark: The position.
            since: Newest index that any broker had applied when the call arrived.
        """
        hold = self.marks[mark]
        if hold is None or 0 < hold.end <= since:
            raise BrokenInvariantError(
                "no commit by a fenced member", f"{mark} of {hold} is accepted after {since}"
            )

    def answered(self, mark: int) -> None:
        """Note that a member knows that a position is stored."""
        self.answered_at[mark] = len(self.marks)

    def next_reset(self) -> int:
        """Return a position for an operator to set, that no other call uses."""
        mark = len(self.marks) + 1
        self.marks[mark] = None
        return mark

    def reset_arrived(self, mark: int) -> None:
        """Note that a broker gets a reset: if it is stored, nobody held the partition after now."""
        self.resets[mark] = self._top

    def reset_done(self, group_id: str, partition: PartitionId, mark: int, index: int) -> None:
        """Check a reset that succeeds: nobody holds the partition, and nobody held it meanwhile.

        Args:
            group_id: The group.
            partition: The partition.
            mark: The position.
            index: Newest index that the broker has applied.
        """
        self.resets[mark] = max(self.resets[mark], index)
        for hold in self.holds.get((group_id, partition), []):
            if hold.begin <= index and (not hold.end or hold.end > index):
                raise BrokenInvariantError(
                    "nobody reads where a position is reset", f"{mark} at {index}: {hold}"
                )

    # -- the end ------------------------------------------------------------------------------

    def on_end(self) -> None:
        """Check that positions were stored in the order of ownership."""
        committed: dict[bytes, list[tuple[int, int]]] = {}
        for machine in self.world.machines.values():
            broker = broker_on(machine)
            for partition in () if broker is None else broker.node.partitions.values():
                if partition.stream == CURSORS_STREAM and partition.is_led:
                    _read(partition, committed)
        for key, positions in committed.items():
            if key.startswith(CURSOR_PREFIX.encode()):
                self._check_order(key, positions)

    def _check_order(self, key: bytes, positions: list[tuple[int, int]]) -> None:
        """Check the commits of one partition: those of each hold come before those of the next.

        The position goes back only by a reset, or within a hold to a position that the member did
        not know to be stored when it took the later one: calls may overtake one another. After a
        reset follow only positions of later holds.
        """
        last: dict[int, int] = {}
        over: dict[int, int] = {}
        for stream_id, mark in positions:
            if mark in self.resets:
                over[stream_id] = max(over.get(stream_id, 0), self.resets[mark])
                last.pop(stream_id, None)
                self.world.coverage.count("world", "position set back")
            hold, former = self.marks.get(mark), last.get(stream_id, 0)
            if hold is None:
                continue
            if 0 < hold.end <= over.get(stream_id, 0):
                raise BrokenInvariantError(
                    "only later members go on from a reset",
                    f"{key!r}: {mark} of {hold} follows a reset at {over[stream_id]}",
                )
            before = self.marks.get(former)
            if before is not None and 0 < hold.end <= before.begin:
                raise BrokenInvariantError(
                    "no commit by a fenced member",
                    f"{key!r}: {mark} of {hold} follows {former} of {before}",
                )
            if mark < former:
                if before is not hold or self.answered_at.get(mark, former) < former:
                    raise BrokenInvariantError(
                        "a committed position never goes back",
                        f"{key!r}: {mark} of {hold} follows {former} of {before}",
                    )
                self.world.coverage.count("world", "position of a call that was overtaken")
            last[stream_id] = mark
            self.world.coverage.count("world", "position in order")


def _read(partition: Partition, committed: dict[bytes, list[tuple[int, int]]]) -> None:
    """Add the positions in a partition of `__cursors`: stream id and position, in order."""
    log = partition.log
    reader = log.reader(log.log_start_offset)
    while slices := reader.read(READ_BYTES, log.high_watermark).slices:
        frames = b"".join(slices)
        at = 0
        while at < len(frames):
            _, length = FRAME_PREFIX.unpack_from(frames, at)
            start = at + FRAME_PREFIX_SIZE
            at = start + length
            message = api_pb2.Message.FromString(frames[start:at])
            try:
                cursor = decode_cursor(message.value)
            except CorruptionError:
                continue
            committed.setdefault(message.key, []).append((cursor.stream_id, cursor.offset))
    reader.close()

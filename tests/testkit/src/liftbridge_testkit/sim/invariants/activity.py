"""Check that the activity stream holds each change once, in order (I27), in true state.

The changes are those that the metadata log and the state show: commands are decoded here, and the
state shows whether one took effect. Records are compared with them as they are committed.
"""

from typing import NamedTuple

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import BrokerId, Offset
from liftbridge_broker.model.metadata_log import EntryKind
from liftbridge_broker.model.subjects import ACTIVITY_STREAM
from liftbridge_broker.node.metadata.proposals import PREFIX_SIZE
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_proto import api_pb2
from liftbridge_proto.internal.v1 import metadata_pb2
from liftbridge_testkit.batches import frames_of
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.broker import ClusterBroker
from liftbridge_testkit.sim.cluster_atlas import broker_on
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.invariants.replication import Look, ReplicationRules
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher


class Change(NamedTuple):
    """A change: index of its command, kind in the original, and stream or group with its member."""

    event_id: int
    kind: str
    name: str
    member: str = ""


class Activities(Watcher):
    """Compares committed events with applied changes.

    Attributes:
        changes: Changes since the activity stream was turned on for the first time, while it was.
        committed: Records of the stream that were seen committed; each one is the next change.
    """

    def __init__(self, rules: ReplicationRules, coverage: Coverage) -> None:
        """Observe the changes of logs that `rules` reports."""
        self.changes: list[Change] = []
        self.committed = 0
        self._coverage = coverage
        self._top = 0
        self._wanted: set[str] = set()
        self._members: dict[str, frozenset[str]] = {}
        rules.listeners.append(self._on_changed)

    def on_turn(self, machine: Machine) -> None:
        """Check the state of a process that starts with a new one."""
        self.on_applied(machine)

    def on_applied(self, machine: Machine) -> None:
        """Read a command that no member had applied before, and whether it took effect."""
        broker = broker_on(machine)
        state = None if broker is None else broker.node.state
        if broker is None or state is None or state.applied_index <= self._top:
            return
        self._top = index = state.applied_index
        (entry,) = broker.metadata_log.entries(index, index + 1, 0)
        if entry.kind is not EntryKind.COMMAND:
            return
        command = metadata_pb2.Command.FromString(entry.data[PREFIX_SIZE:])
        change = _change(state, index, command) or self._member_change(state, index, command)
        if change is not None and self._wanted:
            self.changes.append(change)
        self._note_setting(state, command)

    def _member_change(
        self, state: ClusterState, index: int, command: metadata_pb2.Command
    ) -> Change | None:
        """Return the change of the members of a group that a command made, `None` for none."""
        known = command.join_group, command.leave_group, command.delete_group
        group_id = next((one.group_id for one in known if one.group_id), "")
        group = state.groups.get(group_id)
        members = () if group is None else group.members
        before = self._members.get(group_id, frozenset())
        self._members[group_id] = after = frozenset(one.member_id for one in members)
        joined = command.join_group.member_id
        if any(one.member_id == joined and one.member_epoch == index for one in members):
            return Change(index, "JOIN_CONSUMER_GROUP", group_id, joined)
        left = command.leave_group.member_id
        if left in before - after:
            return Change(index, "LEAVE_CONSUMER_GROUP", group_id, left)
        return None

    def _note_setting(self, state: ClusterState, command: metadata_pb2.Command) -> None:
        """Note which brokers turn the activity stream on."""
        setting = command.set_activity
        known = state.brokers.get(BrokerId(setting.broker))
        if known is not None and known.broker_epoch == setting.broker_epoch:
            was_on = bool(self._wanted)
            (self._wanted.add if setting.is_wanted else self._wanted.discard)(setting.broker)
            if was_on and not self._wanted:
                self._coverage.count("world", "activity turned off")
        self._wanted -= {one.broker for one in state.brokers.values() if one.removed}

    def _on_changed(
        self,
        machine: Machine,
        broker: ClusterBroker,
        partition: Partition,
        before: Look | None,
        look: Look,
    ) -> None:
        del broker, before, look
        log = partition.log
        if partition.stream != ACTIVITY_STREAM or log.high_watermark <= self.committed:
            return
        if log.log_start_offset > self.committed:
            raise BrokenInvariantError("I27", f"{machine.name} begins at {log.log_start_offset}")
        reader = log.reader(Offset(self.committed))
        try:
            slices = reader.read(1 << 20, log.high_watermark).slices
        except FilesError:
            return  # this disk fails now: a later change, or another replica, shows the events
        finally:
            reader.close()
        for frame in frames_of(slices):
            if frame.offset >= self.committed:
                self._check(machine, frame.offset, frame.value, dict(frame.headers))

    def _check(
        self, machine: Machine, offset: int, value: bytes, headers: dict[str, bytes]
    ) -> None:
        event = api_pb2.ActivityStreamEvent.FromString(value)
        about = next(value for field, value in event.ListFields() if field.message_type)
        kind = api_pb2.ActivityStreamOp.Name(event.op)
        if "GROUP" in kind:
            found = Change(event.id, kind, about.groupId, about.consumerId)
        else:
            found = Change(event.id, kind, about.stream)
        wanted = self.changes[offset] if offset < len(self.changes) else None
        if found != wanted or offset != self.committed or "lost" in headers:
            raise BrokenInvariantError(
                "I27", f"{machine.name}, offset {offset}: {found} is committed, not {wanted}"
            )
        self.committed = offset + 1
        self._coverage.count("world", "activity event committed")

    @property
    def is_complete(self) -> bool:
        """Return whether every change is a committed event."""
        return self.committed == len(self.changes)

    def on_end(self) -> None:
        """Check that none is missing."""
        if not self.is_complete:
            missing = self.changes[self.committed :]
            raise BrokenInvariantError("I27", f"no events of {missing[:5]}")


def _change(state: ClusterState, index: int, command: metadata_pb2.Command) -> Change | None:
    """Return the change of a stream that the command at an index made, `None` for none."""
    touched = {
        stream.name: stream
        for stream in state.streams.values()
        if any(partition.partition_epoch == index for partition in stream.partitions)
    }
    created = command.create_stream.name or command.create_encrypted_stream.stream.name
    found = {
        "CREATE_STREAM": (created, created and index in state.streams),
        "DELETE_STREAM": (command.delete_stream.name, index in state.deleted.values()),
        "PAUSE_STREAM": (command.pause_stream.name, command.pause_stream.name in touched),
        "RESUME_STREAM": (command.resume_stream.name, command.resume_stream.name in touched),
        "SET_STREAM_READONLY": (command.set_readonly.name, command.set_readonly.name in touched),
    }
    made = (
        Change(index, kind, name) for kind, (name, is_done) in found.items() if name and is_done
    )
    return next(made, None)

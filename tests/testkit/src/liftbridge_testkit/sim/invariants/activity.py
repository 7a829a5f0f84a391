"""Check that the activity stream holds each change once, in order (I27), in true state.

The changes are those that the metadata log and the state show: commands are decoded here, and the
state shows whether one took effect. Records are compared with them as they are committed.
"""

from typing import NamedTuple

from liftbridge_broker.controller.state import ClusterState
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
    """A change of a stream: index of its command, kind in the original, and stream."""

    event_id: int
    kind: str
    stream: str


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
        kind = str(command.WhichOneof("command"))
        change = _change(state, index, kind, command)
        if change is not None and self._wanted:
            self.changes.append(change)
        self._note_setting(state, command)

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
        slices = reader.read(1 << 20, log.high_watermark).slices
        reader.close()
        for frame in frames_of(slices):
            if frame.offset >= self.committed:
                self._check(machine, frame.offset, frame.value, dict(frame.headers))

    def _check(
        self, machine: Machine, offset: int, value: bytes, headers: dict[str, bytes]
    ) -> None:
        event = api_pb2.ActivityStreamEvent.FromString(value)
        stream = next(value.stream for field, value in event.ListFields() if field.message_type)
        found = Change(event.id, api_pb2.ActivityStreamOp.Name(event.op), stream)
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


def _change(
    state: ClusterState, index: int, kind: str, command: metadata_pb2.Command
) -> Change | None:
    """Return the change that the command at an index made, `None` for none."""
    touched = {
        stream.name: stream
        for stream in state.streams.values()
        if any(partition.partition_epoch == index for partition in stream.partitions)
    }
    match kind:
        case "create_stream" if index in state.streams:
            return Change(index, "CREATE_STREAM", command.create_stream.name)
        case "delete_stream" if index in state.deleted.values():
            return Change(index, "DELETE_STREAM", command.delete_stream.name)
        case "pause_stream" if command.pause_stream.name in touched:
            return Change(index, "PAUSE_STREAM", command.pause_stream.name)
        case "resume_stream" if command.resume_stream.name in touched:
            return Change(index, "RESUME_STREAM", command.resume_stream.name)
        case "set_readonly" if command.set_readonly.name in touched:
            return Change(index, "SET_STREAM_READONLY", command.set_readonly.name)
        case _:
            return None

"""The metadata log for scripts: each command and its answer.

It applies the committed entries of all brokers to a separate state, so that refused commands appear
as well.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from liftbridge_broker.controller.commands import AlterPartition, Command
from liftbridge_broker.controller.records import Answer
from liftbridge_broker.controller.replay import apply, skip
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import MetadataIndex, PartitionId
from liftbridge_broker.model.metadata_log import EntryKind
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.metadata.proposals import PREFIX_SIZE
from liftbridge_broker.wire.metadata import decode_command
from liftbridge_testkit.sim.cluster_atlas import broker_on
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher

ENTRIES_BYTES = 1 << 30


class Asked(NamedTuple):
    """A command of the log.

    Attributes:
        at: True time of its first commit at any peer.
        command: The command.
        answer: Its outcome; an error for a refusal.
    """

    at: int
    command: Command
    answer: Answer | LiftbridgeError


@dataclass(slots=True)
class Commands(Watcher):
    """The commands of a metadata log.

    Attributes:
        state: Metadata after all committed entries.
        asked: All commands in their order.
        states: All states of each partition.
        told: Number of entries of `asked` already shown to the script, by partition.
    """

    state: ClusterState = field(default_factory=ClusterState)
    asked: list[Asked] = field(default_factory=list)
    states: dict[PartitionId, list[PartitionState]] = field(default_factory=dict)
    told: dict[PartitionId, int] = field(default_factory=dict)

    def on_turn(self, machine: Machine) -> None:
        """Add the entries committed in this turn."""
        broker = broker_on(machine)
        if broker is None:
            return
        log, state = broker.metadata_log, self.state
        commit = min(broker.consensus.core.log.commit, log.last_index)
        if commit <= state.applied_index:
            return
        assert log.first_index <= state.applied_index + 1, "the log was cut before it was read"
        for entry in log.entries(state.applied_index + 1, commit + 1, ENTRIES_BYTES):
            index = MetadataIndex(entry.entry_index)
            if entry.kind is not EntryKind.COMMAND:
                skip(state, index)
                continue
            command = decode_command(entry.data[PREFIX_SIZE:])
            decision = apply(state, index, command)
            self.asked.append(Asked(machine.world.scheduler.now, command, decision.answer))
            for _, partition in state.partitions():
                known = self.states.setdefault(partition.partition_id, [])
                if not known or known[-1] != partition:
                    known.append(partition)

    def changes_of_isr(self, partition: PartitionId) -> int:
        """Return the number of in-sync set changes that leaders requested and that were applied."""
        return sum(
            isinstance(one.command, AlterPartition)
            and one.command.partition_id == partition
            and not isinstance(one.answer, LiftbridgeError)
            for one in self.asked
        )

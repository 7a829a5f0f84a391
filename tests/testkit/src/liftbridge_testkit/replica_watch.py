"""A `ReplicaCluster` with an observer of the effect of each command, and with repeated messages."""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.model.partitions import PartitionState
from liftbridge_testkit.replica_brokers import Answer, Command, Message
from liftbridge_testkit.replica_cluster import ReplicaCluster, Steps, Weighted

ARCHIVE_MAX: Final = 12


class WatchedCluster(ReplicaCluster):
    """A run.

    Attributes:
        command: Command that is being applied, `None` between commands.
        archive: Messages of the control plane whose copies may arrive at any later time.
    """

    def __init__(self, seed: int, *, families: Sequence[type[Steps]]) -> None:
        """Begin; see `ReplicaCluster`."""
        self.command: object = None
        self.archive: list[Message] = []
        super().__init__(seed, families=families)

    @property
    def truth(self) -> PartitionState:
        """Return the partition as the controller has it."""
        return self.world.get(self.partition)

    def send(self, message: Message) -> None:
        """Send a message, and keep a copy of those of the control plane."""
        super().send(message)
        if self.faults and isinstance(message, Command | Answer):
            if len(self.archive) < ARCHIVE_MAX:
                self.archive.append(message)
            else:
                self.archive[self.rng.randrange(ARCHIVE_MAX)] = message

    def apply(self, command: object) -> object:
        """Apply a command and check its effect."""
        self.command = command
        answer = super().apply(command)
        self.command = None
        return answer

    def note_view(self) -> None:
        """Check the changes."""
        before = self.history[-1].partition if self.history else None
        super().note_view()
        after = self.truth
        if before is not None and after != before:
            self.on_change(before, after)

    def on_change(self, before: PartitionState, after: PartitionState) -> None:
        """Handle a change of the partition by `command` or by a registration."""


class Copies(Steps):
    """Repeats old messages."""

    def __init__(self, cluster: ReplicaCluster) -> None:
        """Let the run keep its messages."""
        super().__init__(cluster)
        assert isinstance(cluster, WatchedCluster)
        self._life = cluster

    def faults(self) -> Sequence[Weighted]:
        """Return the step that repeats an archived message."""
        return ((self._step_copy, 3),)

    def _step_copy(self) -> None:
        cluster = self._life
        if cluster.archive:
            cluster.messages.append(cluster.rng.choice(cluster.archive))

"""An administrator of a cluster: moves replicas and leaderships, changes factors and members.

Its requests may be refused, half done, or undone by the next one. It works with the metadata of
some broker, as people do.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol, cast

from liftbridge_broker.controller.commands import (
    AlterStream,
    CancelReassignment,
    Command,
    CordonBroker,
    ElectPreferred,
    Leadership,
    Resign,
    StartReassignment,
)
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant, StreamName
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Lost, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import World

REGRET_NS = 60 * MILLISECOND_NS
"""Maximum time until a mistaken move is cancelled."""


class Member(Serving, Protocol):
    """A program with a member of the metadata group.

    Attributes:
        consensus: Its member.
    """

    consensus: RaftConsensus


class ToGroup(NamedTuple):
    """Request to the metadata leader that is not a command."""

    ask: Callable[[RaftConsensus], None]


Wish = Command | ToGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class RearrangerPlan:
    """Behaviour of the administrator.

    Attributes:
        streams: Streams that always exist.
        operations: Its operations, of `REARRANGING`.
        think_ns: Longest pause between two of them.
    """

    streams: tuple[str, ...]
    operations: tuple[str, ...]
    think_ns: int = 3 * SECOND_NS // 2


@dataclass(slots=True)
class Rearranger:
    """One administrator from `start` until `stop`, which uncordons all brokers at the end."""

    world: World
    calls: Calls
    directory: Directory
    plan: RearrangerPlan
    is_stopped: bool = False
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = self.world.new_random()

    def start(self) -> None:
        """Begin."""
        if self.plan.operations:
            self._later()

    def stop(self) -> None:
        """Stop, except for uncordoning brokers."""
        self.is_stopped = True

    def _later(self) -> None:
        self.world.scheduler.after(self._random.randrange(1, self.plan.think_ns), self._go)

    def _go(self) -> None:
        state = self.directory.state()
        if self.is_stopped:
            if self._uncordon_all(state):
                self._later()
            return
        name = self._random.choice(self.plan.operations)
        wish = None if state is None else REARRANGING[name](self, state)
        if wish is not None:
            self._ask(name, wish)
        self._later()

    def _uncordon_all(self, state: ClusterState | None) -> bool:
        """Uncordon all brokers. Return whether one was cordoned, or no broker could be asked."""
        if state is None:
            return True
        cordoned = [one.broker for one in state.brokers.values() if one.cordoned]
        for broker in cordoned:
            self._ask("uncordon", CordonBroker(broker=broker, cordoned=False))
        return bool(cordoned)

    def _ask(self, name: str, wish: Wish) -> None:
        machine = self._metadata_leader() if isinstance(wish, ToGroup) else None

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            if isinstance(wish, ToGroup):
                wish.ask(cast("Member", serving).consensus)
                serving.node.context.metadata.catch_up()
                serving.node.context.wake_soon()
                answer(None)
            else:
                serving.node.propose(wish, now, answer)

        def answered(outcome: object) -> None:
            is_done = not isinstance(outcome, LiftbridgeError | Lost)
            self.world.coverage.count("admin" if is_done else "admin refused", name)
            self.world.trace.note(self.world.now, "admin", name, is_done)

        self.calls.call("admin", machine or self.directory.any_machine(), serve, answered)

    def _metadata_leader(self) -> Machine | None:
        """Return the machine that considers itself metadata leader in the highest term."""
        found: list[tuple[int, Machine]] = []
        for machine in self.directory.serving():
            consensus = cast("Member", machine.program).consensus
            if consensus.is_leader:
                found.append((consensus.term, machine))
        return max(found, key=lambda pair: pair[0])[1] if found else None

    # Operations.

    def _any_partition(self, state: ClusterState) -> PartitionState | None:
        partitions = [one for _, one in state.partitions()]
        return self._random.choice(partitions) if partitions else None

    def _any_broker(self) -> BrokerId:
        return self._random.choice(list(self.world.machines))

    def reassign(self, state: ClusterState) -> Wish | None:
        """Move replicas of a partition to any brokers; cancel half of the moves soon."""
        partition = self._any_partition(state)
        if partition is None:
            return None
        names = list(self.world.machines)
        count = len(partition.replicas) + self._random.choice((-1, 0, 0, 0, 1))
        target = tuple(self._random.sample(names, max(2, min(count, len(names)))))
        if self._random.random() < 0.5:
            regret = CancelReassignment(partition_id=partition.partition_id)
            pause_ns = self._random.randrange(1, REGRET_NS)
            self.world.scheduler.after(pause_ns, self._ask, "cancel", regret)
        return StartReassignment(partition_id=partition.partition_id, target=target)

    def cancel(self, state: ClusterState) -> Wish | None:
        """Cancel a reassignment in progress."""
        moving = [one for _, one in state.partitions() if one.is_reassigning]
        if not moving:
            return None
        return CancelReassignment(partition_id=self._random.choice(moving).partition_id)

    def factor(self, _state: ClusterState) -> Wish | None:
        """Change the replication factor of a stream."""
        name = StreamName(self._random.choice(self.plan.streams))
        factor = self._random.choice((2, 3, 3, 4))
        return AlterStream(name=name, overrides=StreamOverrides(), replication_factor=factor)

    def settings(self, _state: ClusterState) -> Wish | None:
        """Change settings that affect replication and cleaning."""
        random = self._random
        overrides = random.choice(
            (
                StreamOverrides(min_isr=random.choice((2, 2, 3))),
                StreamOverrides(fsync_policy=random.choice(tuple(FsyncPolicy))),
                StreamOverrides(retention_messages_max=random.choice((0, 30))),
                StreamOverrides(cleaner_interval_ms=random.choice((200, 5_000))),
                StreamOverrides(segment_bytes_max=random.choice((700, 100_000))),
            )
        )
        return AlterStream(name=StreamName(random.choice(self.plan.streams)), overrides=overrides)

    def prefer(self, state: ClusterState) -> Wish | None:
        """Transfer leaderships to the preferred replicas."""
        partitions = tuple(one.partition_id for _, one in state.partitions())
        return ElectPreferred(partitions=partitions) if partitions else None

    def hand_over(self, state: ClusterState) -> Wish | None:
        """Transfer the leadership of a partition to another replica."""
        partition = self._any_partition(state)
        own = None if partition is None else state.brokers.get(partition.leader or BrokerId(""))
        if partition is None or own is None:
            return None
        return Resign(
            broker=own.broker,
            broker_epoch=own.broker_epoch,
            partitions=(Leadership(partition.partition_id, partition.leader_epoch),),
            reason="operator",
        )

    def hand_over_metadata(self, _state: ClusterState) -> Wish | None:
        """Transfer the leadership of the metadata group to another voter."""
        target = self._any_broker()
        return ToGroup(lambda consensus: consensus.transfer(target))

    def remove_voter(self, _state: ClusterState) -> Wish | None:
        """Remove a running broker from the voters; it then requests to rejoin."""
        target = self._any_broker()

        def ask(consensus: RaftConsensus) -> None:
            for peer in consensus.voters:
                if peer.broker == target and len(consensus.voters) > 3:
                    consensus.remove(peer)

        return ToGroup(ask)

    def cordon(self, _state: ClusterState) -> Wish | None:
        """Cordon a broker; sometimes also drain it."""
        draining = self._random.random() < 0.3
        return CordonBroker(broker=self._any_broker(), cordoned=True, draining=draining)

    def uncordon(self, state: ClusterState) -> Wish | None:
        """Uncordon a broker."""
        cordoned = [broker.broker for broker in state.brokers.values() if broker.cordoned]
        if not cordoned:
            return None
        return CordonBroker(broker=self._random.choice(cordoned), cordoned=False)


REARRANGING: dict[str, Callable[[Rearranger, ClusterState], Wish | None]] = {
    "reassign": Rearranger.reassign,
    "cancel": Rearranger.cancel,
    "factor": Rearranger.factor,
    "settings": Rearranger.settings,
    "prefer": Rearranger.prefer,
    "hand over": Rearranger.hand_over,
    "hand over metadata": Rearranger.hand_over_metadata,
    "remove voter": Rearranger.remove_voter,
    "cordon": Rearranger.cordon,
    "uncordon": Rearranger.uncordon,
}

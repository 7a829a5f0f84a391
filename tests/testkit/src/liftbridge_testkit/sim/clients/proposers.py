"""Clients of a metadata group: random commands at random members, and reads.

Every command has a unique number, so its index in the log can be found. Some commands depend on the
state of a member, which may be outdated: guards must refuse them then.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, cast

from liftbridge_broker.controller.commands import (
    MEMBER_ALREADY,
    AlterPartition,
    AlterStream,
    ChangeLeader,
    Command,
    CordonBroker,
    CreateStream,
    DeclareUnclean,
    DeleteStream,
    ElectPreferred,
    FenceBroker,
    InitPublisher,
    IsrMember,
    LeaderChange,
    ShutDownBroker,
    StartReassignment,
)
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import ChangeNotMadeError, InternalError, LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant, StreamName
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.metadata.proposals import PREFIX_SIZE
from liftbridge_broker.wire.metadata import encode_command
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Lost, Serving
from liftbridge_testkit.sim.invariants.raft import RaftRules
from liftbridge_testkit.sim.world import World

if TYPE_CHECKING:
    from liftbridge_testkit.sim.voter import Voter

STREAMS = ("s", "t", "u", "v")
TIMEOUT_NS = 8 * SECOND_NS
PROBE_NS = SECOND_NS // 10


class Fate(Enum):
    """Outcome of a proposal as its proposer knows it."""

    OPEN = "open"
    APPLIED = "applied"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    DECLINED = "declined"
    """A member refused by its state, perhaps before the command reached the log."""


@dataclass(slots=True, eq=False)
class Proposal:
    """One command that was proposed.

    Attributes:
        number: Its unique number.
        floor: Highest index answered to any client before it was proposed.
        data: Its bytes in the log; unique when `is_unique`.
        is_unique: Whether no other command has these bytes.
        fate: Known fate.
        index: Index at which it was applied, by its answer; 0 while unknown.
    """

    number: int
    floor: int
    data: bytes
    is_unique: bool
    fate: Fate = Fate.OPEN
    index: int = 0


@dataclass(slots=True)
class Proposals:
    """All proposals of a run.

    Attributes:
        answered: Highest index answered to any client.
        open_count: Proposals without any outcome.
    """

    world: World
    answered: int = 0
    open_count: int = 0
    _all: list[Proposal] = field(default_factory=list)

    def add(self, command: Command, *, is_unique: bool) -> Proposal:
        """Add a proposal before it is sent."""
        number = len(self._all)
        proposal = Proposal(number, self.answered, encode_command(command), is_unique)
        self._all.append(proposal)
        self.open_count += 1
        return proposal

    @property
    def next_number(self) -> int:
        """Return the number of the next proposal."""
        return len(self._all)

    def applied(self, proposal: Proposal, index: int) -> None:
        """Note the answer; its index must be above all indexes answered before the proposal."""
        self._settle(proposal, Fate.APPLIED)
        proposal.index = index
        if index <= proposal.floor:
            raise BrokenInvariantError(
                "linearizable commands",
                f"proposal {proposal.number} was applied at {index}, though {proposal.floor} had "
                "been answered before it was made",
            )
        self.answered = max(self.answered, index)

    def refused(self, proposal: Proposal) -> None:
        """Note that the group refused it and did not store it."""
        self._settle(proposal, Fate.REFUSED)

    def declined(self, proposal: Proposal) -> None:
        """Note that a guard refused it."""
        self._settle(proposal, Fate.DECLINED)

    def unknown(self, proposal: Proposal) -> None:
        """Note that the outcome is unknown."""
        self._settle(proposal, Fate.UNKNOWN)

    def _settle(self, proposal: Proposal, fate: Fate) -> None:
        assert proposal.fate is Fate.OPEN
        proposal.fate = fate
        self.open_count -= 1
        self.world.coverage.count("client", f"proposal {fate.value}")

    def check(self, rules: RaftRules) -> None:
        """Compare with the committed log: each applied command once, no refused one."""
        places: dict[bytes, list[int]] = {}
        for index, entry in enumerate(rules.entries):
            places.setdefault(entry.data[PREFIX_SIZE:], []).append(index)
        for proposal in self._all:
            found = places.get(proposal.data, [])
            if not proposal.is_unique:
                continue
            if len(found) > 1:
                raise BrokenInvariantError(
                    "once", f"proposal {proposal.number} is in the log at {found}"
                )
            if proposal.fate is Fate.APPLIED and found != [proposal.index]:
                raise BrokenInvariantError(
                    "answered", f"proposal {proposal.number} at {found}, not at {proposal.index}"
                )
            if proposal.fate is Fate.REFUSED and found:
                raise BrokenInvariantError(
                    "refused", f"proposal {proposal.number} was refused and is at {found}"
                )


class Proposer:
    """One client of the group from `start` until `stop`."""

    def __init__(self, world: World, calls: Calls, proposals: Proposals, think_ns: int) -> None:
        self.is_stopped = False
        self._world = world
        self._calls = calls
        self._proposals = proposals
        self._think_ns = think_ns
        self._random = world.new_random()

    def start(self) -> None:
        """Begin."""
        self._later()

    def stop(self) -> None:
        """Stop proposing."""
        self.is_stopped = True

    def _later(self) -> None:
        self._world.scheduler.after(self._random.randrange(1, self._think_ns), self._go)

    def _go(self) -> None:
        if self.is_stopped:
            return
        machine = self._random.choice(list(self._world.machines.values()))
        if self._random.random() < 0.15:
            self._read(machine.name)
        else:
            command, is_unique = self._command(machine.name)
            self._propose(machine.name, command, is_unique=is_unique)
        self._later()

    def probe(self) -> Proposal:
        """Propose one command at any member until it is answered."""
        probe = Proposal(-1, 0, b"", is_unique=False)
        self._probe(probe)
        return probe

    def _probe(self, probe: Proposal) -> None:
        def done(proposal: Proposal) -> None:
            if proposal.fate is Fate.APPLIED:
                probe.index = proposal.index
            else:
                self._world.scheduler.after(PROBE_NS, self._probe, probe)

        machine = self._random.choice(list(self._world.machines.values()))
        command = CordonBroker(broker=machine.name, cordoned=False)
        self._propose(machine.name, command, is_unique=False, done=done)

    # -- proposals and reads ------------------------------------------------------------------

    def _propose(
        self,
        name: str,
        command: Command,
        *,
        is_unique: bool,
        done: object = None,
    ) -> None:
        proposal = self._proposals.add(command, is_unique=is_unique)

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            voter = cast("Voter", serving)

            def answered(outcome: object) -> None:
                # Refusals by the state machine have an index as well; the state returns it.
                answer((outcome, voter.driver.state.applied_index))

            voter.act(lambda: voter.driver.propose(command, now, answered))

        def settled(outcome: object) -> None:
            self._settle(proposal, outcome)
            if callable(done):
                done(proposal)

        machine = self._world.machines[BrokerId(name)]
        self._calls.call("proposer", machine, serve, settled, timeout_ns=TIMEOUT_NS)

    def _settle(self, proposal: Proposal, outcome: object) -> None:
        text = "answered"
        if isinstance(outcome, Lost):
            text = outcome.reason
            if outcome.is_refused:
                self._proposals.refused(proposal)
            else:
                self._proposals.unknown(proposal)
        else:
            assert isinstance(outcome, tuple)
            answer, index = outcome
            if isinstance(answer, LiftbridgeError):
                text = answer.text
                self._refused(proposal, answer)
            else:
                self._proposals.applied(proposal, index)
        self._world.trace.note(
            self._world.now, "proposer", proposal.fate.value, proposal.number, proposal.index, text
        )

    def _refused(self, proposal: Proposal, error: LiftbridgeError) -> None:
        """Note a refusal: one by the log is definite if it says so.

        One by the state is an entry.
        """
        if not isinstance(error, InternalError):
            self._proposals.declined(proposal)
        elif isinstance(error, ChangeNotMadeError):
            self._proposals.refused(proposal)
        else:
            self._proposals.unknown(proposal)

    def _read(self, name: str) -> None:
        """Read linearizably: the state must contain everything answered before the read."""
        floor = self._proposals.answered

        def serve(serving: Serving, _now: Instant, _wall_ns: int, answer: Answer) -> None:
            voter = cast("Voter", serving)

            def ready(error: LiftbridgeError | None) -> None:
                answer(voter.driver.state.applied_index if error is None else error)

            voter.act(lambda: voter.driver.read(ready))

        def done(outcome: object) -> None:
            if not isinstance(outcome, int):
                self._world.coverage.count("client", "read refused")
                return
            self._world.coverage.count("client", "read")
            if outcome < floor:
                raise BrokenInvariantError(
                    "linearizable reads",
                    f"{name} answered a read at index {outcome}, after {floor} had been answered",
                )

        machine = self._world.machines[BrokerId(name)]
        self._calls.call("proposer", machine, serve, done, timeout_ns=TIMEOUT_NS)

    # -- commands -----------------------------------------------------------------------------

    def _command(self, name: str) -> tuple[Command, bool]:
        """Return a command, and whether its bytes are unique."""
        random, number = self._random, self._proposals.next_number
        stream = StreamName(random.choice(STREAMS))
        machine = self._world.machines[BrokerId(name)]
        program = machine.program
        if program is not None and program.is_ready and random.random() < 0.5:
            command = self._on_belief(cast("Voter", program).driver.state, name)
            if command is not None:
                return command, False
        kind = random.randrange(10)
        if kind < 3:
            factor = random.choice((1, 2, 3, 3))
            overrides = StreamOverrides(min_isr=random.choice((1, min(2, factor))))
            create = CreateStream(
                name=stream,
                subject=stream,
                partitions=random.choice((1, 3)),
                replication_factor=factor,
                overrides=overrides,
                creation_timestamp=number,
            )
            return create, True
        if kind < 4:
            return DeleteStream(name=stream), False
        if kind < 7:
            overrides = StreamOverrides(retention_messages_max=number + 1)
            return AlterStream(name=stream, overrides=overrides), True
        return InitPublisher(stream=stream, publisher=f"op{number}"), True

    def _on_belief(self, state: ClusterState, name: str) -> Command | None:
        """Return a command that depends on what a member knows: epochs, leaders, in-sync sets."""
        random = self._random
        brokers = [broker for broker in state.brokers.values() if not broker.removed]
        if brokers and random.random() < 0.3:
            broker = random.choice(brokers)
            kind = random.randrange(4)
            if kind < 2:
                return FenceBroker(broker=broker.broker, broker_epoch=broker.broker_epoch)
            if kind == 2:
                return ShutDownBroker(broker=broker.broker, broker_epoch=broker.broker_epoch)
            return CordonBroker(broker=broker.broker, cordoned=bool(random.randrange(2)))
        partitions = [partition for _, partition in state.partitions()]
        if not partitions or len(brokers) < 2:
            return None
        return self._on_partition(state, random.choice(partitions), name)

    def _on_partition(
        self, state: ClusterState, partition: PartitionState, name: str
    ) -> Command | None:
        random = self._random
        kind = random.randrange(6)
        brokers = [broker.broker for broker in state.brokers.values() if not broker.removed]
        leader = partition.leader
        if kind == 0:
            return ElectPreferred(partitions=(partition.partition_id,))
        if kind == 1:
            target = tuple(random.sample(brokers, random.randrange(1, len(brokers) + 1)))
            return StartReassignment(partition_id=partition.partition_id, target=target)
        if leader is None:
            return None
        if kind == 2:
            change = LeaderChange(
                partition.partition_id,
                partition.leader_epoch,
                partition.partition_epoch,
                leader,
            )
            return ChangeLeader(changes=(change,))
        if kind == 3:
            broker = random.choice(partition.replicas)
            epoch = partition.replica_epoch(broker)
            return DeclareUnclean(
                broker=broker,
                broker_epoch=state.brokers[broker].broker_epoch,
                partition_id=partition.partition_id,
                replica_epoch=epoch if epoch is not None else 0,
                reason=f"asked at {name}",
            )
        return self._alter(state, partition)

    def _alter(self, state: ClusterState, partition: PartitionState) -> Command:
        """Return the request that a leader would send: one replica more or fewer in sync."""
        random, leader = self._random, partition.leader
        assert leader is not None
        others = [replica for replica in partition.replicas if replica != leader]
        change = random.choice(others) if others else leader
        isr = [broker for broker in partition.isr if broker != change]
        if change not in partition.isr or not others:
            isr = [*partition.isr, change] if others else list(partition.isr)
        members = []
        for broker in isr:
            epoch = partition.replica_epoch(broker)
            is_old = broker in partition.isr
            members.append(IsrMember(broker, MEMBER_ALREADY if is_old or epoch is None else epoch))
        return AlterPartition(
            broker=leader,
            broker_epoch=state.brokers[leader].broker_epoch,
            partition_id=partition.partition_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=tuple(members),
            is_recovering=partition.is_recovering and random.random() < 0.5,
        )

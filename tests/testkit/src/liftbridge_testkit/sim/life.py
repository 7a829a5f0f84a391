"""One run of a world: its contents, drawn from the seed, and its phases.

First safety: faults happen while clients work, and every turn is checked. Then liveness: all faults
stop, and within bounded time every partition must accept a write with policy ALL, every publisher
must know its outcomes, and every reader must reach the end. Last, the logs are compared with the
histories.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from liftbridge_broker.controller.commands import CreateStream
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.model.subjects import RESERVED_STREAMS
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.storage.log.opened import OpenedReader
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.checkers import all_checkers
from liftbridge_testkit.sim.clients.admin import Admin
from liftbridge_testkit.sim.clients.calls import Calls, Lost, serving_on
from liftbridge_testkit.sim.clients.consumers import GroupConsumer
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.clients.granter import Granter
from liftbridge_testkit.sim.clients.publishers import Publisher, PublisherPlan
from liftbridge_testkit.sim.clients.readers import Reader
from liftbridge_testkit.sim.clients.rearranger import Rearranger
from liftbridge_testkit.sim.faults import Faults
from liftbridge_testkit.sim.history import FinalLog, Frames, History, Record
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World

if TYPE_CHECKING:
    from liftbridge_broker.storage.log.reader import LogReader

SETTLE_NS = 60 * SECOND_NS
"""Maximum virtual time to recover."""

TURNS_MAX = 100_000
"""Maximum number of turns to recover: more of them are a busy loop."""

LOOK_NS = 50 * MILLISECOND_NS


class Starting(Protocol):
    """A client of any kind."""

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self) -> None:
        """Start nothing more."""
        ...


class Writer(Starting, Protocol):
    """A publisher of any kind."""

    @property
    def in_flight(self) -> int:
        """Return the number of runs or messages whose outcome is unknown."""
        ...


class LivenessError(BrokenInvariantError):
    """An expected event did not happen after all faults ended."""

    def __init__(self, text: str) -> None:
        super().__init__("liveness", text)


@dataclass(slots=True)
class Turns(Watcher):
    """Counts turns of processes: the events of a run."""

    count: int = 0

    def on_turn(self, machine: Machine) -> None:
        """Count a turn."""
        del machine
        self.count += 1


def wait_for(world: World, turns: Turns, what: str, happens: Callable[[], bool]) -> None:
    """Run until a condition holds, with a check from time to time.

    A disk first completes the calls that it got while it was slow.

    Raises:
        LivenessError: The condition did not hold in time, or there is a busy loop.
    """
    begin = max([world.now, *(machine.disk_free_at for machine in world.machines.values())])
    until, last = begin + SETTLE_NS, turns.count + TURNS_MAX
    while not happens():
        if world.now >= until:
            raise LivenessError(f"{what}: not within {SETTLE_NS // SECOND_NS} s")
        look_at = world.now + LOOK_NS
        while world.now < look_at:
            next_at = world.scheduler.next_at
            if next_at is None or next_at > look_at:
                world.run_until(look_at)
            elif turns.count > last:
                raise LivenessError(f"{what}: {TURNS_MAX} events went by without it")
            else:
                world.scheduler.step()


@dataclass(slots=True)
class Life:
    """A world with its clients and faults.

    Attributes:
        events_max: Turns after which the safety phase ends.
        time_max_ns: Virtual time after which it ends.
        publishers: All publishers.
        readers: All readers.
        admins: All administrators of streams, at least one.
        rearrangers: All administrators of the cluster.
        askers: Clients that query logs.
        archivers: Clients that set cursors which hold back retention.
        consumers: Members of consumer groups.
        resetters: Operators who reset positions of groups.
        callers: Clients that access rules may forbid what they do.
        granters: Administrators of access rules.
        keepers: Who keeps the master keys of brokers.
        creates: Streams to create first.
        probes: Clients that must be able to write when all faults have ended.
        faults: Source of faults, `None` for none.
        epilogue: Steps after recovery, `None` for none.
        waits: What else must happen in the end, and how to see it.
        turns: Counter of turns.
    """

    world: World
    events_max: int = 5_000
    time_max_ns: int = 120 * SECOND_NS
    history: History = field(init=False)
    calls: Calls = field(init=False)
    directory: Directory = field(init=False)
    publishers: list[Writer] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    admins: list[Admin] = field(default_factory=list)
    rearrangers: list[Rearranger] = field(default_factory=list)
    askers: list[Starting] = field(default_factory=list)
    archivers: list[Starting] = field(default_factory=list)
    consumers: list[GroupConsumer] = field(default_factory=list)
    resetters: list[Starting] = field(default_factory=list)
    callers: list[Starting] = field(default_factory=list)
    granters: list[Granter] = field(default_factory=list)
    keepers: list[Starting] = field(default_factory=list)
    creates: list[CreateStream] = field(default_factory=list)
    probes: list[PublisherPlan] = field(default_factory=list)
    faults: Faults | None = None
    epilogue: Callable[[], None] | None = None
    waits: list[tuple[str, Callable[[], bool]]] = field(default_factory=list)
    turns: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        self.history = History(self.world.coverage)
        self.history.checkers = all_checkers(self.history)
        self.calls = Calls(self.world)
        self.directory = Directory(self.world)
        self.world.watchers.append(self.turns)

    # -- phases -------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all phases.

        Raises:
            BrokenInvariantError: A promise is broken.
        """
        self.begin()
        self.break_things()
        self.recover()
        self.check()

    def begin(self) -> None:
        """Start all machines, and wait until some broker serves."""
        for machine in self.world.machines.values():
            delay = self.world.random.randrange(200 * MILLISECOND_NS)
            self.world.scheduler.after(delay, machine.start)
        self.expect("a broker that serves", lambda: bool(self.directory.serving()))
        for command in self.creates:
            self._create(command)

    def _create(self, command: CreateStream) -> None:
        outcomes: list[object] = [None]

        def done(outcome: object) -> None:
            outcomes.append(outcome)

        def is_there() -> bool:
            if isinstance(outcomes[-1], LiftbridgeError | Lost | None):
                outcomes.append(0)
                self.admins[0].propose("create", command, done)
            state = self.directory.state()
            return state is not None and state.stream(command.name) is not None

        self.expect(f"stream {command.name}", is_there)

    def break_things(self) -> None:
        """Run the safety phase: clients work, faults happen."""
        users: list[Starting] = [
            *self.publishers,
            *self.readers,
            *self.admins,
            *self.rearrangers,
            *self.askers,
            *self.archivers,
            *self.granters,
            *self.consumers,
            *self.resetters,
            *self.keepers,
            *self.callers,
        ]
        for user in users:
            user.start()
        if self.faults is not None:
            self.faults.start()
        last = self.turns.count + self.events_max
        self.world.run_while(lambda: self.turns.count < last, at_most_ns=self.time_max_ns)

    def recover(self) -> None:
        """Run the liveness phase: all faults end, and everything must recover."""
        self.world.trace.note(self.world.now, "world", "heal")
        if self.faults is not None:
            self.faults.heal()
        users: list[Starting] = [*self.publishers, *self.admins, *self.rearrangers]
        users += (*self.archivers, *self.granters, *self.resetters, *self.keepers)
        for user in users:
            user.stop()
        for consumer in self.consumers:
            consumer.calm()
        self.expect("all brokers", self._are_all_serving)
        self.expect("other leaders of what is offline", self._is_taken_over)
        self._restart_offline()
        self.expect("all brokers", self._are_all_serving)
        self._replace_damaged()
        self._probe()
        self.expect(
            "outcomes of all runs",
            lambda: all(not publisher.in_flight for publisher in self.publishers),
        )
        self.expect("everything committed", self.is_all_committed)
        self.expect("readers at the end", self._are_readers_done)
        self.expect(
            "rules that allow everybody everything",
            lambda: all(granter.is_open for granter in self.granters),
        )
        self.expect(
            "consumers that read what they are to read",
            lambda: all(consumer.is_settled for consumer in self.consumers),
        )
        for user in (*self.readers, *self.askers, *self.consumers, *self.callers):
            user.stop()
        if self.epilogue is not None:
            self.epilogue()
        for what, happens in self.waits:
            self.expect(what, happens)
        # A late answer may have changed replicas since.
        self.expect("everything committed at the end", self.is_all_committed)

    def _are_all_serving(self) -> bool:
        return len(self.directory.serving()) == len(self.world.machines)

    def _is_taken_over(self) -> bool:
        """Return whether no leader has a log that failed while others are in sync (L8)."""
        state = self.directory.state()
        if state is None:
            return False
        for _, one in state.partitions():
            machine = self.world.machines.get(one.leader) if one.leader is not None else None
            program = None if machine is None else serving_on(machine)
            if program is None or len(one.isr) == 1:
                continue
            partition = program.node.partitions.get(one.partition_id)
            if partition is not None and partition.offline_reason:
                return False
        return True

    def _restart_offline(self) -> None:
        """Restart a broker whose files failed, as an operator does."""
        for machine in self.world.machines.values():
            program = serving_on(machine)
            if program is not None and any(
                partition.offline_reason for partition in program.node.partitions.values()
            ):
                machine.stop()
                self.expect("an orderly stop", partial(_has_other, machine, machine.incarnation))

    def _replace_damaged(self) -> None:
        """Replace a disk that damages its data, as an operator does."""
        for machine in self.world.machines.values():
            if machine.files.is_damaged:
                assert self.faults is not None
                atlas = self.faults.atlas
                # A partition may wait for records of this disk: it need not be whole.
                self.expect("a group of others", partial(atlas.may_replace, machine))
                self.world.coverage.rare("spoiled disk replaced")
                machine.wipe()
                self.expect("all brokers", self._are_all_serving)
                self.expect("everything committed but for spoiled disks", self._is_rest_committed)

    def _is_rest_committed(self) -> bool:
        """Return whether all is committed, except records of another damaged disk, which is next.

        The broker of that disk leads such a partition, or no broker does: an unclean election waits
        for its answer.
        """
        held_back = {
            partition.partition_id
            for machine in self.world.machines.values()
            if machine.files.is_damaged and (program := serving_on(machine)) is not None
            for partition in program.node.partitions.values()
            if partition.offline_reason and partition.role is not Role.FOLLOWER
        }
        return self.is_all_committed(but=held_back)

    def _probe(self) -> None:
        """Write to every partition that clients use, with policy ALL."""
        probes = [
            Publisher(self.world, self.calls, self.directory, self.history, plan)
            for plan in self.probes
            if not self._is_offline(plan)
        ]
        for probe in probes:
            probe.start()
        self.expect("a write to each partition", lambda: all(one.acked_count for one in probes))
        for probe in probes:
            probe.stop()
        self.expect("outcomes of probes", lambda: all(not one.in_flight for one in probes))

    def _is_offline(self, plan: PublisherPlan) -> bool:
        """Return whether recovery detected damage that it must not cut; only an operator may.

        This happens only after a failed sync: then a segment before the last one may be damaged.
        """
        partition = self.leader_of(plan.stream, plan.number)
        if partition is None or not partition.offline_reason:
            return False
        if not self.world.coverage.counts["fault", "EIO on fsync"]:
            raise LivenessError(f"{plan.stream}: stays offline: {partition.offline_reason}")
        self.world.coverage.count("world", "partition stays offline")
        return True

    def is_all_committed(self, but: Collection[PartitionId] = ()) -> bool:
        """Return whether all replicas hold the same, all of it committed, and all are in sync."""
        ends: dict[PartitionId, int] = {}
        for machine in self.world.machines.values():
            program = serving_on(machine)
            if program is None:
                return False
            for partition in program.node.partitions.values():
                if partition.offline_reason or partition.partition_id in but:
                    continue
                end = partition.log.log_end_offset
                known = ends.setdefault(partition.partition_id, end)
                if partition.log.high_watermark < end or end != known:
                    return False
        # A broker that applied more may have begun a replica unknown to other brokers.
        return self.directory.state() is not None and all(
            len(one.isr) == len(one.replicas)
            for state in self.directory.states()
            for _, one in state.partitions()
            if one.partition_id not in but
        )

    def check(self) -> None:
        """Check every partition against the histories, and call the watchers."""
        for machine in self.world.machines.values():
            program = serving_on(machine)
            assert program is not None
            for partition in program.node.partitions.values():
                # Clients with a history do not write the brokers' own streams.
                if not partition.offline_reason and partition.stream not in RESERVED_STREAMS:
                    self.history.check_end(final_log(partition, self.history.frames))
        for watcher in self.world.watchers:
            watcher.on_end()

    # -- waiting ------------------------------------------------------------------------------

    def expect(self, what: str, happens: Callable[[], bool]) -> None:
        """Run until a condition holds, with a check from time to time."""
        wait_for(self.world, self.turns, what, happens)

    def _are_readers_done(self) -> bool:
        for reader in self.readers:
            partition = self.leader_of(reader.plan.stream, reader.plan.number)
            if partition is None or partition.is_paused or partition.offline_reason:
                continue  # it cannot be read: nothing to wait for
            if reader.partition != partition.partition_id:
                return False
            log = partition.log
            # Retention may have left no record to read.
            next_kept = max(reader.next_offset, log.log_start_offset)
            if reader.next_offset >= 0 and next_kept < log.high_watermark:
                return False
        return True

    def leader_of(self, stream: str, number: int) -> Partition | None:
        """Return the partition object at its leader; `None` when there is none."""
        place = self.directory.find(stream, number)
        if place is None or place.leader is None:
            return None
        program = serving_on(place.leader)
        if program is None:
            return None
        return program.node.partitions.get(place.partition)


def _has_other(machine: Machine, incarnation: int) -> bool:
    """Return whether the process of this incarnation is gone."""
    return machine.incarnation != incarnation


def final_log(partition: Partition, frames: Frames) -> FinalLog:
    """Return all committed records of a partition, read as a subscriber reads them."""
    log, cipher = partition.log, partition.writer.cipher
    records: list[Record] = []
    reader: LogReader | OpenedReader = log.reader(log.log_start_offset)
    if cipher is not None:
        reader = OpenedReader(log, log.log_start_offset, cipher)
    while slices := reader.read(1 << 20, log.high_watermark).slices:
        for piece in slices:
            records += frames.records(piece)
    reader.close()
    return FinalLog(
        PartitionId(partition.partition_id),
        int(log.log_start_offset),
        int(log.high_watermark),
        records,
        partition.options.compact_enabled,
    )

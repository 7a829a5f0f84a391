"""Stage of a script: a cluster with fixed links and clocks, and the verbs that act on it.

Machines are named A, B, C...; a partition is `s/0`. Leader epochs are named e1, e2... in the order
in which they were elected, because only their order matters. All invariants and checkers of the
simulator are on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from liftbridge_broker.controller.state import ClusterState, PublisherState
from liftbridge_broker.model.ids import BrokerId, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.model.units import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.control import ControlOptions
from liftbridge_broker.node.metadata.failure_detector import PROBE_NS
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.sim.breaking.parts import FaultPlan
from liftbridge_testkit.sim.broker import ClusterBroker, ClusterSettings
from liftbridge_testkit.sim.checkers.answers import AnswersAreTrue
from liftbridge_testkit.sim.clients.admin import Admin, AdminPlan
from liftbridge_testkit.sim.clients.publishers import Publisher
from liftbridge_testkit.sim.cluster_atlas import ClusterAtlas, broker_on, state_on
from liftbridge_testkit.sim.faults import Faults
from liftbridge_testkit.sim.history import Write
from liftbridge_testkit.sim.invariants import watch_all
from liftbridge_testkit.sim.invariants.leaders import LeaderLogs
from liftbridge_testkit.sim.invariants.retention import HeldBack, Promise
from liftbridge_testkit.sim.kinds import kinds_of
from liftbridge_testkit.sim.life import Life
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.network import Held, Verdict
from liftbridge_testkit.sim.scripts.commands import Commands
from liftbridge_testkit.sim.trace import Trace
from liftbridge_testkit.sim.world import Watcher, World

SEED = 1
WAIT_NS = 20 * SECOND_NS
"""Maximum virtual time of a step that waits."""

LOOK_NS = MILLISECOND_NS
_UNITS = {"us": MICROSECOND_NS, "ms": MILLISECOND_NS, "s": SECOND_NS, "m": 60 * SECOND_NS}


def duration_ns(text: str) -> int:
    """Parse `20ms`, `3s` or `10m`. Return nanoseconds."""
    for unit in ("us", "ms", "s", "m"):
        if text.endswith(unit) and text.removesuffix(unit).isdigit():
            return int(text.removesuffix(unit)) * _UNITS[unit]
    raise ValueError(f"no duration: {text}")


def split_options(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return plain words, and those of the form `name=value`."""
    plain = [word for word in words if "=" not in word]
    options = dict(word.split("=", 1) for word in words if "=" in word)
    return plain, options


@dataclass(slots=True)
class Epochs(Watcher):
    """Names leader epochs by the order in which they were elected.

    Attributes:
        known: Epochs of each partition; the first is e1.
        before: Last elected epoch without a name, where the script gave its own epochs.
    """

    known: dict[PartitionId, list[int]] = field(default_factory=dict)
    before: dict[PartitionId, int] = field(default_factory=dict)

    def on_turn(self, machine: Machine) -> None:
        """Note new epochs."""
        state = state_on(machine)
        if state is not None:
            for _, partition in state.partitions():
                epochs = self.known.setdefault(partition.partition_id, [])
                last = max(self.before.get(partition.partition_id, 0), *epochs[-1:], 0)
                if partition.leader_epoch > last:
                    epochs.append(partition.leader_epoch)

    def name(self, partition: PartitionId, epoch: int | None) -> str:
        """Return `e1` for the first, `e0` for any before, `e?` for one without an election."""
        epochs = self.known.get(partition, [])
        if epoch is not None and epoch < min(epochs, default=0):
            return "e0"
        return f"e{epochs.index(epoch) + 1}" if epoch in epochs else "e?"


@dataclass(slots=True)
class Changes(Watcher):
    """Keeps each state of partitions, as some broker first applied it."""

    known: dict[PartitionId, list[PartitionState]] = field(default_factory=dict)
    _newest: dict[PartitionId, int] = field(default_factory=dict)

    def on_turn(self, machine: Machine) -> None:
        """Note new states."""
        state = state_on(machine)
        if state is None:
            return
        for _, partition in state.partitions():
            if partition.partition_epoch > self._newest.get(partition.partition_id, 0):
                self._newest[partition.partition_id] = partition.partition_epoch
                self.known.setdefault(partition.partition_id, []).append(partition)


@dataclass(slots=True)
class Sender:
    """An idempotent publisher of a script.

    Attributes:
        number: Number in the history.
        place: Partition to publish to.
        state: Its id and epoch.
        next_sequence: Sequence of its next message.
        sequences: Sequences of its messages, by their names in the script.
    """

    number: int
    place: str
    state: PublisherState
    next_sequence: int = 0
    sequences: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Rule:
    """Fate of messages of one kind on one link; `*` for any.

    Attributes:
        source: Sender.
        target: Receiver.
        kind: One name of their kind.
        verdict: Whether they arrive.
        is_copied: Whether a copy of each is held.
    """

    source: str
    target: str
    kind: str
    verdict: Verdict
    is_copied: bool = False

    def is_on(self, source: str, target: str) -> bool:
        """Return whether the rule is for messages on a link."""
        return self.source in {"*", source} and self.target in {"*", target}

    def fits(self, source: str, target: str, kinds: Sequence[str]) -> bool:
        """Return whether the rule is for a message."""
        return self.is_on(source, target) and (self.kind == "*" or self.kind in kinds)


@dataclass(slots=True)
class Stage:
    """One play of one script.

    Attributes:
        seed: Seed of all random choices; exact steps need none.
        wait_ns: Maximum virtual time of a step that waits.
        world: World of the script.
        life: Clients, histories and checkers.
        epochs: Names of leader epochs.
        writes: Published writes, by their names in the script.
        outcomes: Their outcomes; absent while open.
        changes: Changes of partitions.
        commands: Requested commands, and the answers.
        disks: Copies of the files of machines.
        senders: Idempotent publishers, by their names in the script.
        loads: Continuous publishers, by their names in the script.
        positions: Next positions of readers, by reader and partition.
        fetching: Messages of the data plane so far: source, target and payload.
        fetching_seen: Number of them that `answers` has shown, by link and partition.
        settings: Settings of all brokers.
        held: Checks what cursors hold back.
        cursors: Greatest offset set in cursors of a partition.
        answers: Checks the answers of brokers about logs.
    """

    seed: int = SEED
    wait_ns: int = WAIT_NS
    world: World = field(init=False)
    life: Life = field(init=False)
    epochs: Epochs = field(default_factory=Epochs)
    writes: dict[str, Write] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    commands: Commands = field(default_factory=Commands)
    disks: dict[BrokerId, dict[str, bytes]] = field(default_factory=dict)
    senders: dict[str, Sender] = field(default_factory=dict)
    loads: dict[str, Publisher] = field(default_factory=dict)
    positions: dict[tuple[str, PartitionId], int] = field(default_factory=dict)
    fetching: list[tuple[str, str, bytes]] = field(default_factory=list)
    fetching_seen: dict[tuple[str, PartitionId], int] = field(default_factory=dict)
    settings: ClusterSettings = field(init=False)
    defaults: dict[str, StreamOptions] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    told: dict[tuple[str, str], int] = field(default_factory=dict)
    held: HeldBack = field(init=False)
    cursors: dict[PartitionId, int] = field(default_factory=dict)
    answers: AnswersAreTrue = field(default_factory=AnswersAreTrue)

    def __post_init__(self) -> None:
        self.world = World(self.seed, Trace())
        conditions = self.world.network.conditions
        conditions.delay_ns_min, conditions.delay_ns_jitter = MILLISECOND_NS, 0
        self.life = Life(self.world)
        self.life.calls.delay_ns_jitter = 0
        self.life.history.checkers.append(self.answers)
        self.life.admins.append(
            Admin(self.world, self.life.calls, self.life.directory, AdminPlan(streams=()))
        )
        rules = watch_all(self.world)
        atlas = ClusterAtlas(self.world, rules.committed_end)
        self.life.faults = Faults(self.world, FaultPlan(kinds=()), atlas)
        LeaderLogs(self.life.history, rules)
        self.held = HeldBack(rules, self.world.coverage)
        self.world.watchers += [
            self.held,
            self.epochs,
            self.changes,
            self.commands,
            Told(self.told),
        ]
        self.world.network.filter = self._filter

    def hold_back(self, stream: str, bytes_max: int) -> None:
        """Let the cursor of `set-cursor` hold back retention of a stream, up to a limit."""
        self.held.promises[stream] = Promise(lambda one: self.cursors.get(one, 0), bytes_max)

    def note_cursor(self, offset: int) -> None:
        """Note that a cursor of the first partition of `s` is about to be set."""
        if "s" in self.held.promises:
            partition = self.newest("s/0").partition_id
            self.cursors[partition] = max(offset, self.cursors.get(partition, 0))

    # -- finding ------------------------------------------------------------------------------

    def machine(self, name: str) -> Machine:
        """Return a machine by its name."""
        return self.world.machines[BrokerId(name)]

    def broker(self, name: str) -> ClusterBroker:
        """Return the broker of a machine, which must run."""
        broker = broker_on(self.machine(name))
        assert broker is not None, f"{name} does not run"
        return broker

    def newest(self, place: str) -> PartitionState:
        """Return a partition from the newest applied metadata."""
        stream, _, number = place.partition("/")
        found: tuple[int, PartitionState] | None = None
        for machine in self.world.machines.values():
            state = state_on(machine)
            known = state.stream(stream) if state is not None else None
            partition = known.partition(int(number or 0)) if known is not None else None
            if state is None or partition is None:
                continue
            if found is None or state.applied_index > found[0]:
                found = (state.applied_index, partition)
        assert found is not None, f"nobody knows {place}"
        return found[1]

    def metadata(self) -> ClusterState:
        """Return the newest applied metadata."""
        states = [state_on(machine) for machine in self.world.machines.values()]
        return max(
            (state for state in states if state is not None),
            key=lambda state: state.applied_index,
        )

    def replica(self, name: str, place: str) -> Partition:
        """Return a replica on a machine."""
        return self.broker(name).node.partitions[self.newest(place).partition_id]

    # -- time ---------------------------------------------------------------------------------

    def run_for(self, nanoseconds: int) -> None:
        """Run events for a duration."""
        self.world.run_until(self.world.now + nanoseconds)

    def wait_until(self, what: str, happens: Callable[[], bool]) -> None:
        """Run events until a condition holds."""
        until = self.world.now + self.wait_ns
        while not happens():
            assert self.world.now < until, f"{what}: not within {self.wait_ns // SECOND_NS} s"
            self.run_for(LOOK_NS)

    # -- machines -----------------------------------------------------------------------------

    def cluster(self, words: Sequence[str]) -> None:
        """`cluster A B C [later=D,E] [probes=on]`: brokers that found a cluster, and others.

        The others are not started. Without probes, brokers that end are silent as those that hang.
        """
        names, options = split_options(words)
        probe_ns = PROBE_NS if options.get("probes") == "on" else 0
        self.settings = ClusterSettings(
            peers=tuple(BrokerId(name) for name in names), control=ControlOptions(probe_ns=probe_ns)
        )
        later = options.get("later", "").split(",") if "later" in options else []
        for name in (*names, *later):
            machine = self.world.add_machine(
                name, lambda ports: ClusterBroker(ports, self.settings_of(ports.broker))
            )
            machine.clock.drift_ppm = machine.clock.wall_skew_ns = 0
            speed = machine.files.speed
            speed.sync_ns_min, speed.sync_ns_jitter = MILLISECOND_NS, 0
        for name in names:
            self.machine(name).start()
        for name in names:
            self.ready(name)

    def settings_of(self, name: str) -> ClusterSettings:
        """Return the configuration of a broker: the common one, with separate stream defaults."""
        defaults = self.defaults.get(name, self.settings.broker.defaults)
        return replace(self.settings, broker=replace(self.settings.broker, defaults=defaults))

    def ready(self, name: str) -> None:
        """Wait until a broker serves."""

        def is_ready() -> bool:
            program = self.machine(name).program
            return program is not None and program.is_ready

        self.wait_until(f"{name} ready", is_ready)

    # -- links --------------------------------------------------------------------------------

    def ways(self, text: str) -> list[tuple[str, str]]:
        """Parse links: `A-B` both ways, `A>B` one way, `A` all links from and to it."""
        if "-" in text:
            one, other = text.split("-")
            return [(one, other), (other, one)]
        if ">" in text:
            source, target = text.split(">")
            return [(source, target)]
        others = [name for name in self.world.machines if name != text]
        return [(text, other) for other in others] + [(other, text) for other in others]

    def _filter(self, source: str, target: str, channel: Channel, payload: bytes) -> Verdict:
        if channel is Channel.DATA:
            self.fetching.append((source, target, payload))
        rules = [rule for rule in self.rules if rule.is_on(source, target)]
        if not rules:
            return Verdict.PASS
        kinds = kinds_of(payload)
        rule = next((rule for rule in rules if rule.fits(source, target, kinds)), None)
        if rule is None:
            return Verdict.PASS
        if rule.is_copied:
            network = self.world.network
            ends = network.endpoints[source], network.endpoints[target]
            network.held.append(Held(*ends, channel, payload))
        return rule.verdict


@dataclass(slots=True)
class Told(Watcher):
    """Counts transitions by machine and kind."""

    counts: dict[tuple[str, str], int]

    def on_transition(self, machine: Machine, kind: str, fields: Mapping[str, object]) -> None:
        """Count a transition."""
        del fields
        key = (machine.name, kind)
        self.counts[key] = self.counts.get(key, 0) + 1

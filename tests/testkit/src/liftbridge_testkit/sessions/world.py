"""Three brokers, a few partitions, a controller, and a network between them.

Time advances from event to event, such as an arriving message or a completed sync. After each event
every process sends the messages that are due. `life.py` makes the random choices. This module and
`replica_checks` check the invariants after every event that touches a partition.
"""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final, NamedTuple

from liftbridge_broker.controller.commands import ChangeLeader, Command, UnfenceBroker
from liftbridge_broker.controller.reports import LeaderReport, LeaderReports
from liftbridge_broker.controller.state import effective_min_isr, is_commit_mode
from liftbridge_broker.errors import LiftbridgeError, NoMetadataLeaderError
from liftbridge_broker.model.fetching import FetchPosition
from liftbridge_broker.model.ids import BrokerId, Instant, Offset, PartitionId
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.replication.isr import IsrProposal
from liftbridge_testkit.controller_world import ControllerWorld
from liftbridge_testkit.replica_brokers import Broker, Fetch, require
from liftbridge_testkit.replica_checks import MIN_ISR, Checks
from liftbridge_testkit.replica_logs import Record, ReplicaLog
from liftbridge_testkit.sessions.process import LIMITS, Led, Process, Terms, Told, View

NAMES: Final = "abc"
POLICIES: Final = (FsyncPolicy.INTERVAL, FsyncPolicy.AUTO, FsyncPolicy.COMMIT)
"""Policies of the partitions, one stream each."""

LINK_NS: Final = MILLISECOND_NS
OVERTAKEN_NS: Final = 40 * MILLISECOND_NS
COPY_NS: Final = 200 * MILLISECOND_NS
LATE_NS: Final = 1_500 * MILLISECOND_NS
"""Delays of an overtaken message, of a copy, and of a very late copy."""


class Weather(NamedTuple):
    """Probabilities of what happens to a message.

    Attributes:
        lost: It does not arrive.
        overtaken: Later messages arrive before it.
        doubled: A copy arrives soon after.
        late: A copy arrives much later.
        leaderless: A command finds no leader of the metadata.
    """

    lost: float = 0.0
    overtaken: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    leaderless: float = 0.0


CALM: Final = Weather()


class SessionWorld:
    """A run.

    Attributes:
        rng: Chance.
        now: Time.
        counts: Counts of events.
        weather: For messages between brokers.
        council: For commands and their answers.
        overtaken_ns: Additional delay of a reordered message.
        link_ns: Delay of messages without a fault.
        deaf: Brokers that receive no metadata.
        processes: Processes by broker.
        replicas: Replicas by partition and broker.
        history: Metadata after each command.
        metadata: The controller.
        lost_at: Time of the last answer that a session does not exist.
        event_count: Number of events so far, and of those planned.
    """

    def __init__(self, seed: int) -> None:
        """Start the brokers and create the partitions."""
        self.rng = Random(f"sessions {seed}")
        self.now = Instant(10_000 * MILLISECOND_NS)
        self.counts: Counter[str] = Counter()
        self.weather = self.council = CALM
        self.overtaken_ns = OVERTAKEN_NS
        self.link_ns = LINK_NS
        self.deaf: set[BrokerId] = set()
        self.lost_at = Instant(0)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self.event_count = 0
        self._value = 0
        self._arrival: dict[tuple[str, str], int] = {}
        self._touched: set[PartitionId] = set()
        self.metadata = ControllerWorld()
        self.metadata.start(NAMES)
        self._reports = LeaderReports(
            backoff_ns_min=500 * MILLISECOND_NS, backoff_ns_max=1_000 * MILLISECOND_NS
        )
        self.replicas: dict[PartitionId, dict[BrokerId, Broker]] = {}
        self.committed: dict[PartitionId, list[Record]] = {}
        self._checks: dict[PartitionId, Checks] = {}
        for number, policy in enumerate(POLICIES):
            self._create(f"s{number}", policy)
        self.history: list[View] = []
        self.note_view()
        self.processes: dict[BrokerId, Process] = {}
        for name in map(BrokerId, NAMES):
            self.begin(name)

    def _create(self, name: str, policy: FsyncPolicy) -> None:
        partition = self.metadata.create(3, name=name, min_isr=MIN_ISR, fsync_policy=policy)
        brokers = {
            BrokerId(one): Broker(BrokerId(one), ReplicaLog(partition), run=-1) for one in NAMES
        }
        self.replicas[partition] = brokers
        self.committed[partition] = []
        self._checks[partition] = Checks(
            self.metadata, partition, brokers, self.committed[partition], self.counts
        )

    # Events.

    def after(self, delay_ns: int, act: Callable[[], None]) -> None:
        """Call a function later."""
        self.event_count += 1
        heappush(self._events, (self.now + delay_ns, self.event_count, act))

    def run(self, span_ns: int) -> None:
        """Run events for a duration."""
        end = self.now + span_ns
        while self._events and self._events[0][0] <= end:
            at, _, act = heappop(self._events)
            self.now = Instant(max(at, self.now))
            act()
            self.settle()
        self.now = Instant(end)
        self.settle()

    def settle(self) -> None:
        """Let every process send its due messages; check the partitions that changed."""
        for process in self.processes.values():
            if process.paused_until <= self.now:
                process.pump()
        for partition in self._touched:
            self._checks[partition].run()
        self._touched.clear()

    def touch(self, partition: PartitionId) -> None:
        """Note a change of a partition."""
        self._touched.add(partition)

    def touch_all(self) -> None:
        """Note a possible change of any partition."""
        self._touched.update(self.replicas)

    # The network.

    def send(self, sender: BrokerId, to: BrokerId, act: Callable[[Process], None]) -> None:
        """Send a message to the process that the broker has on arrival."""
        for delay in self._delays(sender, to, self.weather):
            self.after(delay, lambda: self._deliver(to, act))

    def _delays(self, sender: str, to: str, weather: Weather) -> list[int]:
        """Return the delays of a message and of its copies."""
        rng = self.rng
        delays: list[int] = []
        if rng.random() < weather.late:
            self.counts["late"] += 1
            delays.append(rng.randrange(LATE_NS))
        if rng.random() < weather.lost:
            self.counts["lost"] += 1
            return delays
        if rng.random() < weather.overtaken:
            self.counts["overtaken"] += 1
            return [*delays, rng.randrange(self.overtaken_ns)]
        if rng.random() < weather.doubled:
            self.counts["doubled"] += 1
            delays.append(rng.randrange(COPY_NS))
        way = sender, to
        arrival = self._arrival[way] = max(self._arrival.get(way, 0), self.now + self.link_ns)
        return [*delays, arrival - self.now]

    def _deliver(self, to: BrokerId, act: Callable[[Process], None]) -> None:
        process = self.processes[to]
        if process.paused_until > self.now:
            self.after(process.paused_until - self.now, lambda: self._deliver(to, act))
            return
        act(process)
        self.touch_all()

    # The metadata.

    def note_view(self) -> None:
        """Keep the present metadata, for brokers that learn of them later."""
        state = self.metadata.state
        self.history.append(
            View(
                self.metadata.index,
                {
                    one.partition_id: Terms(
                        one, effective_min_isr(stream, one), is_commit_mode(stream, one)
                    )
                    for stream, one in state.partitions()
                },
                frozenset(broker.broker for broker in state.brokers.values() if broker.can_lead),
                {broker.broker: broker.broker_epoch for broker in state.brokers.values()},
            )
        )

    def apply(self, command: Command) -> object:
        """Apply a command. Return the answer."""
        answer = self.metadata.apply(command).answer
        self.counts[f"{type(command).__name__} {getattr(answer, 'code', 'applied')}"] += 1
        self.note_view()
        self.touch_all()
        return answer

    def learn(self, process: Process, to: int, *, at_once: bool = False) -> None:
        """Give a process later metadata, step by step, or at once by a snapshot."""
        while process.seen < to:
            process.seen = to if at_once else process.seen + 1
            process.learn(self.history[process.seen], has_gap=at_once)
        self.touch_all()

    def ask(self, process: Process, command: Command, then: Callable[[object], None]) -> None:
        """Send a command to the controller; the answer may be lost."""
        if self.rng.random() < self.council.leaderless:
            self.counts["not attempted"] += 1
            error = NoMetadataLeaderError()
            self.after(LINK_NS, lambda: self._answered(process, error, then))
            return
        for delay in self._delays(process.broker, "", self.council):
            self.after(delay, lambda: self._asked(process, command, then))

    def _asked(self, process: Process, command: Command, then: Callable[[object], None]) -> None:
        answer = self.apply(command)
        for delay in self._delays("", process.broker, self.council):
            self.after(delay, lambda: self._answered(process, answer, then))

    def _answered(self, process: Process, answer: object, then: Callable[[object], None]) -> None:
        if self.processes[process.broker] is process:
            is_told = process.broker not in self.deaf and self.rng.random() < 0.7
            if is_told:  # mostly the broker's own apply is the answer
                self.learn(process, len(self.history) - 1)
            then(answer)
            self.touch_all()

    def report(self, process: Process, report: LeaderReport) -> None:
        """Report a silent leader to the controller."""
        for delay in self._delays(process.broker, "", self.council):
            self.after(delay, lambda: self._on_report(report))

    def _on_report(self, report: LeaderReport) -> None:
        self.counts["report"] += 1
        change = self._reports.on_report(self.metadata.state, report, self.now)
        if change is not None:
            self.apply(ChangeLeader(changes=(change,)))

    # Brokers.

    def begin(self, broker: BrokerId) -> None:
        """Start a process, which knows the metadata of its registration."""
        replicas = {partition: held[broker] for partition, held in self.replicas.items()}
        process = Process(self, broker, self.metadata.epoch(broker), replicas)
        self.processes[broker] = process
        process.seen = len(self.history) - 1
        process.learn(self.history[-1], has_gap=True)
        self.touch_all()

    def unfence(self, process: Process) -> None:
        """Allow a fenced broker to lead again after a heartbeat."""
        known = self.metadata.state.brokers[process.broker]
        if known.fenced and known.broker_epoch == process.broker_epoch:
            self.learn(process, len(self.history) - 1)
            answer = self.apply(
                UnfenceBroker(
                    broker=process.broker,
                    broker_epoch=process.broker_epoch,
                    applied_index=self.metadata.index,
                )
            )
            require(f"unfenced: {answer}", holds=not isinstance(answer, LiftbridgeError))

    def restart(self, broker: BrokerId, *, keeps: Callable[[ReplicaLog], int] | None) -> None:
        """Restart a process with all its data, or with the data that `keeps` leaves."""
        for held in self.replicas.values():
            one = held[broker]
            if keeps is None:
                one.log.sync()
            else:
                end = keeps(one.log)
                self.counts["lossy"] += end < one.log.log_end_offset
                one.log.lose(end)
                one.is_clean = False
        marker = 0 if keeps else self.metadata.epoch(broker)
        self.metadata.register(broker, previous_broker_epoch=marker)
        self.counts["restart"] += 1
        self.note_view()
        self.begin(broker)

    def append(self, led: Led, count: int) -> None:
        """Append records at a leader."""
        for _ in range(count):
            self._value += 1
            led.replica.log.append(led.leader_epoch, b"%d" % self._value)
        led.core.on_append(self.now)
        led.process.notify(led.partition)
        led.process.commit(led)
        self.counts["append"] += 1
        self.touch(led.partition)

    def sync(self, process: Process, partition: PartitionId) -> None:
        """Sync the records of a replica to disk."""
        one = process.replicas[partition]
        if one.log.recovery_point < one.log.log_end_offset:
            one.log.sync()
            process.on_flushed(partition)
            self.touch(partition)

    # Actions of processes that the observer checks.

    def on_lost(self) -> None:
        """Note a leader's answer that the session does not exist."""
        self.lost_at = self.now
        self.counts["session lost"] += 1

    def on_proposal(self, led: Led, proposal: IsrProposal) -> None:
        """Check that joining replicas sent recently, and that no replica leaves too early."""
        isr, members = led.core.state.isr, [broker for broker, _ in proposal.isr]
        for broker in set(members) - set(isr):
            silence = self.now - max(led.process.heard.get(broker, Instant(0)), led.began)
            require(f"{broker} is silent and joins", holds=silence <= LIMITS.lag_ns)
        if len(members) < MIN_ISR:
            for broker in set(isr) - set(members):
                span = self.now - led.joined[broker]
                require(f"{broker} leaves too few", holds=span > LIMITS.lag_hard_ns)

    def on_accepted(self, leader: Led, follower: BrokerId, fetch: FetchPosition) -> None:
        """Check I21: the records of an accepted follower equal those of the leader."""
        assert isinstance(fetch, Told)
        self.counts["accepted"] += 1
        seen = Fetch(follower, leader.process.broker, 0, fetch, fetch.held)
        self._checks[leader.partition].prefix(leader.replica, seen)

    def on_cut(
        self, replica: Broker, partition: PartitionId, end: Offset, *, is_below: bool
    ) -> None:
        """Check I22: no committed record, and none below the high watermark, is truncated."""
        self._checks[partition].floor(replica, end, is_below=is_below)

    def commit(self, led: Led) -> bool:
        """Store the committed end of a leader. Return whether it moved."""
        log, partition = led.replica.log, led.partition
        before, after = log.high_watermark, led.core.high_watermark()
        log.high_watermark = after
        if led.is_commit_mode and after > before:
            for member in led.core.maximal_isr:
                is_durable = self.replicas[partition][member].log.recovery_point >= after
                require("commit mode: on disk everywhere", holds=is_durable)
        committed = self.committed[partition]
        known, records = committed[before:after], log.slice(before, after)
        require("I10: another record was committed", holds=records[: len(known)] == known)
        committed += records[len(known) :]
        self.touch(partition)
        return after != before

    # Liveness.

    @property
    def is_well(self) -> bool:
        """Return whether every partition is in sync everywhere, and all of it is committed."""
        return all(self.is_partition_well(partition) for partition in self.replicas) and all(
            process.seen == len(self.history) - 1 for process in self.processes.values()
        )

    def is_partition_well(self, partition: PartitionId) -> bool:
        """Return whether all replicas are in sync and hold the same committed records."""
        logs = [one.log for one in self.replicas[partition].values()]
        return (
            len(self.metadata.get(partition).isr) == len(NAMES)
            and len({log.log_end_offset for log in logs}) == 1
            and all(log.high_watermark == log.log_end_offset for log in logs)
        )

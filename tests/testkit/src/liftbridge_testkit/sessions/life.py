"""Applies random faults to a `SessionWorld`, in episodes; after each it must recover.

A world in which everything breaks all the time shows little: the next fault brings back what was
lost before. So most episodes are short, and the brokers must recover from them without help.
"""

from collections.abc import Callable
from typing import Final

from liftbridge_broker.controller.commands import Leadership, Resign
from liftbridge_broker.errors import NotEnoughReplicasError
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_testkit.replica_brokers import require
from liftbridge_testkit.replica_logs import ReplicaLog
from liftbridge_testkit.sessions.process import Led, Process
from liftbridge_testkit.sessions.world import (
    CALM,
    LATE_NS,
    LINK_NS,
    NAMES,
    OVERTAKEN_NS,
    SessionWorld,
    Weather,
)

EPISODES: Final = 8
STORM_STEPS: Final = 60
PACE_NS: Final = 20 * MILLISECOND_NS
"""Maximum time between two steps."""

LINKS_NS: Final = (LINK_NS, LINK_NS, 6 * MILLISECOND_NS, 25 * MILLISECOND_NS)
"""Maximum delays of messages."""

HEAL_NS: Final = 30_000 * MILLISECOND_NS
"""Maximum time to recover after an episode."""

QUIET_NS: Final = 1_600 * MILLISECOND_NS
"""Time without faults after which no session ends; longer than a fetch may lack an answer."""


class SessionLife:
    """A run of a world.

    Attributes:
        world: The world.
    """

    def __init__(self, seed: int) -> None:
        """Start the world."""
        self.world = SessionWorld(seed)
        self._rng = self.world.rng

    @property
    def events(self) -> int:
        """Return the counts of events so far."""
        return self.world.event_count

    def run(self) -> None:
        """Run all episodes.

        Raises:
            BrokenError: An invariant is broken.
        """
        episodes: tuple[Callable[[], None], ...] = (
            self._storm,
            self._storm,
            self._drizzle,
            self._drizzle,
            self._silence,
            self._office,
            self._rebirth,
            self._council,
        )
        for _ in range(EPISODES):
            self._rng.choice(episodes)()
            self.heal()
        self.work_in_peace()

    # Episodes.

    def _storm(self) -> None:
        """Inject all faults."""
        rng = self._rng
        chances = [rng.choice((0.0, 0.03, 0.1, 0.25)) for _ in range(5)]
        self.world.weather = self.world.council = Weather(*chances)
        self.world.link_ns = rng.choice(LINKS_NS)
        faults = [self._crash, self._fence, self._resign, self._retain, self._pause, self._wait]
        chosen = rng.sample(faults, rng.randrange(1, len(faults)))
        for _ in range(STORM_STEPS):
            self._step(chosen if rng.random() < 0.08 else self._work)

    def _drizzle(self) -> None:
        """Lose one or two messages, delay, duplicate or reorder them."""
        rng = self._rng
        chances = [0.0, 0.0, 0.0, 0.0]
        chances[rng.randrange(4)] = 0.15
        self.world.link_ns = rng.choice(LINKS_NS)
        for _ in range(rng.randrange(1, 4)):
            self.world.weather = Weather(*chances)
            self._step(self._work if rng.random() < 0.7 else [self._resign, self._fence])
            self.world.weather = CALM
            for _ in range(rng.randrange(3)):
                self._step(self._work)

    def _silence(self) -> None:
        """Stop a broker while others work."""
        process = self._any_process()
        process.paused_until = Instant(self.world.now + self._rng.randrange(6_000) * MILLISECOND_NS)
        while self.world.now < process.paused_until:
            self._step(self._work)

    def _office(self) -> None:
        """Elect a broker that does not learn of it: others report it, and take over."""
        world = self.world
        process = self._any_process()
        world.deaf.add(process.broker)
        partition = self._rng.choice(list(world.replicas))
        self._hand_over(partition, process.broker)
        end = world.now + HEAL_NS
        while (
            world.metadata.get(partition).leader == process.broker
            and partition not in process.leading
        ):
            self._step(self._work)
            require("a leader that does not lead is replaced", holds=world.now < end)
        world.deaf.clear()

    def _rebirth(self) -> None:
        """Restart a broker. Messages of its former process are late, and its first ones are lost.

        Few records arrive meanwhile, so that old positions look valid.
        """
        world, rng = self.world, self._rng
        for _ in range(rng.randrange(4, 12)):
            self._step(self._work)
        world.overtaken_ns = LATE_NS
        world.weather = Weather(overtaken=1.0)
        for _ in range(rng.randrange(1, 3)):
            self._step(self._work)
        world.weather = Weather(lost=rng.choice((0.0, 0.5, 0.9)))
        self._crash()
        for _ in range(STORM_STEPS):
            self._step(self._work if rng.random() < 0.05 else self._upkeep)
            if rng.random() < 0.1:
                world.weather = CALM

    def _council(self) -> None:
        """Lose and delay commands, often without a leader of the metadata."""
        world, rng = self.world, self._rng
        world.council = Weather(*[rng.choice((0.0, 0.3, 0.6)) for _ in range(5)])
        self._fence()
        for _ in range(2 * STORM_STEPS):
            self._step([self._fence] if rng.random() < 0.02 else self._work)

    def heal(self) -> None:
        """Stop all faults, and wait until all is in order."""
        world = self.world
        world.weather = world.council = CALM
        world.link_ns, world.overtaken_ns = LINK_NS, OVERTAKEN_NS
        world.deaf.clear()
        for process in world.processes.values():
            process.paused_until = min(process.paused_until, world.now)
        end = world.now + HEAL_NS
        while not world.is_well:
            self._step(self._upkeep)
            require("all is in order in the end", holds=world.now < end)
        world.counts["healed"] += 1

    def work_in_peace(self) -> None:
        """Check that without faults no session ends, though leaders change and records arrive."""
        world = self.world
        world.run(LATE_NS + QUIET_NS)
        began, world.link_ns = world.now, self._rng.choice(LINKS_NS)
        for _ in range(STORM_STEPS):
            self._step([*self._work, self._resign] if self._rng.random() < 0.2 else self._work)
        self.heal()
        require("a session lasts while nothing is lost", holds=world.lost_at < began)

    # Steps.

    @property
    def _upkeep(self) -> list[Callable[[], None]]:
        return [self._learn, self._learn, self._look, self._sync, self._unfence]

    @property
    def _work(self) -> list[Callable[[], None]]:
        return [self._append, self._append, self._append, *self._upkeep]

    def _step(self, acts: list[Callable[[], None]]) -> None:
        self._rng.choice(acts)()
        self.world.run(self._rng.randrange(PACE_NS))
        for process in self.world.processes.values():
            if process.paused_until <= self.world.now:
                process.suspect()

    def _any_process(self) -> Process:
        return self.world.processes[BrokerId(self._rng.choice(NAMES))]

    def _any_awake(self) -> Process | None:
        process = self._any_process()
        return process if process.paused_until <= self.world.now else None

    def _any_led(self) -> Led | None:
        process = self._any_awake()
        found = list(process.leading.values()) if process else []
        return self._rng.choice(found) if found else None

    def _append(self) -> None:
        led = self._any_led()
        if led is None or not led.core.is_serving:
            return
        try:
            led.core.check_min_isr()
        except NotEnoughReplicasError:
            if self._rng.random() < 0.7:
                return  # else a record with acks of the leader alone
        self.world.append(led, self._rng.randrange(1, 4))

    def _learn(self) -> None:
        world, process = self.world, self._any_awake()
        if process is None or process.broker in world.deaf:
            return
        last = len(world.history) - 1
        if process.seen < last:
            to = last if world.weather == CALM else self._rng.randrange(process.seen + 1, last + 1)
            world.learn(process, to, at_once=self._rng.random() < 0.15)

    def _look(self) -> None:
        """Let all leaders check whether another in-sync set is due."""
        for process in self.world.processes.values():
            if process.paused_until <= self.world.now:
                for led in tuple(process.leading.values()):
                    process.propose(led)

    def _sync(self) -> None:
        process = self._any_awake()
        if process is not None:
            for partition in process.replicas:
                self.world.sync(process, partition)

    def _unfence(self) -> None:
        process = self._any_awake()
        if process is not None and process.broker not in self.world.deaf:
            self.world.unfence(process)

    # Faults.

    def _fence(self) -> None:
        """Fence a broker, which continues as a zombie."""
        broker = BrokerId(self._rng.choice(NAMES))
        if not self.world.metadata.state.brokers[broker].fenced:
            self.world.metadata.fence(broker)
            self.world.note_view()
            self.world.touch_all()

    def _resign(self) -> None:
        partition = self._rng.choice(list(self.world.replicas))
        isr = self.world.metadata.get(partition).isr
        if isr:
            self._hand_over(partition, self._rng.choice(isr))

    def _hand_over(self, partition: PartitionId, successor: BrokerId) -> None:
        state = self.world.metadata.get(partition)
        if state.leader not in (None, successor):
            self.world.apply(
                Resign(
                    broker=state.leader,
                    broker_epoch=self.world.metadata.epoch(state.leader),
                    partitions=(Leadership(partition, state.leader_epoch),),
                    successor=successor,
                )
            )

    def _crash(self) -> None:
        """End a process and start it again: cleanly, or without its unsynced data.

        One broker at a time may have lost something (the fault model with a minimum of two).
        """
        world, rng = self.world, self._rng
        broker = BrokerId(rng.choice(NAMES))
        is_whole = all(
            one.is_clean
            for held in world.replicas.values()
            for one in held.values()
            if one.broker != broker
        )

        def keeps(log: ReplicaLog) -> int:
            return rng.randrange(log.recovery_point, log.log_end_offset + 1)

        world.restart(broker, keeps=keeps if is_whole and rng.random() < 0.6 else None)

    def _retain(self) -> None:
        led = self._any_led()
        if led is not None and led.core.is_serving:
            log = led.replica.log
            log.set_log_start(self._rng.randrange(log.log_start_offset, log.high_watermark + 1))
            led.process.notify(led.partition)
            self.world.touch(led.partition)

    def _pause(self) -> None:
        process = self._any_process()
        process.paused_until = Instant(self.world.now + self._rng.randrange(1_500) * MILLISECOND_NS)

    def _wait(self) -> None:
        self.world.run(self._rng.randrange(1_000) * MILLISECOND_NS)

"""Runs of one broker alone, with every client and fault that needs no other broker.

The promise of a lone broker: an acknowledged record survives any kill, and under fsync policy
`commit` or `auto` any power cut. Under `interval` and `never` a power cut may take the end of a
log; the promise then restarts with the records that survive.
"""

from dataclasses import dataclass
from random import Random

from liftbridge_broker.controller.commands import CreateStream
from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.partition.runs import POLICY_ALL, POLICY_LEADER, POLICY_NONE
from liftbridge_broker.node.reading.subscription import StartPosition
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.wire.acks import AckPolicy
from liftbridge_testkit.sim.breaking.parts import FaultPlan
from liftbridge_testkit.sim.clients.admin import OPERATIONS, Admin, AdminPlan
from liftbridge_testkit.sim.clients.calls import serving_on
from liftbridge_testkit.sim.clients.nats_publishers import NatsPublisher, NatsPublisherPlan
from liftbridge_testkit.sim.clients.publishers import Publisher, PublisherPlan
from liftbridge_testkit.sim.clients.readers import Reader, ReaderPlan
from liftbridge_testkit.sim.faults import Faults
from liftbridge_testkit.sim.history import History
from liftbridge_testkit.sim.life import Life
from liftbridge_testkit.sim.lone import BrokerSettings, LoneBroker
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.trace import Trace
from liftbridge_testkit.sim.world import Watcher, World

FAULTS = (
    "kill",
    "crash losing all",
    "crash losing some",
    "crash within a turn",
    "pause",
    "loop stall",
    "controlled shutdown",
    "clock jump",
    "clock drift",
    "NATS link",
    "flapping link",
    "retry storm",
    "NATS outage",
    "slow disk",
    "EIO on append",
    "EIO on fsync",
    "disk full",
)
STREAMS = ("s", "t", "u")
KEYS = (b"k1", b"k2", b"k3")


class LoneAtlas:
    """Atlas of one broker: power cuts are part of the promise, damage to its only disk is not."""

    def may_lose(self, machine: Machine) -> bool:
        """Return true; `LossWatch` informs the checkers."""
        del machine
        return True

    def may_damage(self, machine: Machine) -> bool:
        """Return false."""
        del machine
        return False

    may_replace = may_refuse_reads = may_damage

    def leading(self) -> list[Machine]:
        """Return no machine: there is only one."""
        return []


@dataclass(slots=True)
class LossWatch(Watcher):
    """Restarts the promise of the checkers after a power cut or a failed disk."""

    history: History
    _is_waiting: bool = False

    def on_turn(self, machine: Machine) -> None:
        """Read what is left, from a broker that serves again."""
        program = serving_on(machine) if self._is_waiting else None
        if program is not None:
            self._is_waiting = False
            for partition in program.node.partitions.values():
                if not partition.is_commit_mode:
                    self.history.may_lose(partition.partition_id, partition.log.log_end_offset)

    def on_process_end(self, machine: Machine, reason: str, lost_bytes: int) -> None:
        """Allow the loss of unsynced records after a crash or a failed sync."""
        del machine, lost_bytes
        if reason in {"crashed", "failed"}:
            self._is_waiting = True


def _settings(random: Random) -> BrokerSettings:
    return BrokerSettings(
        flush=FlushLimits(
            interval_ns=random.choice((50, 1_000)) * MILLISECOND_NS,
            bytes_max=random.choice((2_000, 1 << 20)),
            journal_ns=random.choice((10, 100)) * MILLISECOND_NS,
            background_ns=random.choice((500, 60_000)) * MILLISECOND_NS,
            background_bytes_max=random.choice((2_000, 1 << 20)),
        ),
        snapshot_entries=random.choice((8, 64)),
    )


def _overrides(random: Random) -> StreamOverrides:
    return StreamOverrides(
        fsync_policy=random.choice(tuple(FsyncPolicy)),
        segment_bytes_max=random.choice((600, 5_000, 1 << 20)),
        segment_age_ms_max=random.choice((0, 0, 500)),
        retention_messages_max=random.choice((0, 0, 0, 50)),
        retention_age_ms_max=0,
        compact_enabled=random.random() < 0.3,
        cleaner_interval_ms=random.choice((100, 5_000)),
        optimistic_concurrency=random.random() < 0.2,
    )


def make_lone_life(seed: int, trace: Trace) -> Life:
    """Draw a run from a seed."""
    world = World(seed, trace)
    random = world.new_random()
    settings = _settings(random)
    machine = world.add_machine("a", lambda ports: LoneBroker(ports, settings))
    # A sector lost between kept ones takes a log offline, and there is no other replica.
    machine.files.lost_sector_chance = 0.0
    machine.files.cold_ppm = random.choice((0, 10_000, 300_000))
    life = Life(world, events_max=random.choice((1_000, 3_000)), time_max_ns=90 * SECOND_NS)
    kinds = tuple(kind for kind in FAULTS if random.random() < 0.5)
    plan = FaultPlan(
        kinds=kinds,
        pace_ns=random.choice((300, 1_000, 3_000)) * MILLISECOND_NS,
        duration_ns=random.choice((200, 2_000, 8_000)) * MILLISECOND_NS,
        restart_ns=random.choice((50, 2_000)) * MILLISECOND_NS,
    )
    life.faults = Faults(world, plan, LoneAtlas())
    world.watchers += [LossWatch(life.history), life.faults]
    admin = Admin(
        world,
        life.calls,
        life.directory,
        AdminPlan(
            streams=STREAMS,
            operations=tuple(name for name in OPERATIONS if random.random() < 0.5),
        ),
    )
    life.admins.append(admin)
    for name in STREAMS:
        _add_stream(life, name, _overrides(random), random)
    return life


def _add_stream(life: Life, name: str, overrides: StreamOverrides, random: Random) -> None:
    """Plan a stream and its clients; it is created when the brokers have started."""
    command = CreateStream(
        name=StreamName(name), subject=f"sub.{name}", partitions=1, overrides=overrides
    )
    life.creates.append(command)
    keys = KEYS if overrides.compact_enabled else ()
    life.probes.append(PublisherPlan(stream=name, run_max=1, keys=keys, think_ns=SECOND_NS))
    for _ in range(random.randrange(1, 3)):
        policy = random.choice((POLICY_ALL, POLICY_ALL, POLICY_LEADER, POLICY_NONE))
        # Without acks an idempotent publisher would repeat a run with an unknown outcome for ever.
        may_repeat = not overrides.optimistic_concurrency and policy != POLICY_NONE
        is_idempotent = may_repeat and random.random() < 0.3
        plan = PublisherPlan(
            stream=name,
            policy=policy,
            think_ns=random.choice((20, 200, 2_000)) * MILLISECOND_NS,
            run_max=random.choice((1, 3, 12)),
            size_max=random.choice((60, 500)),
            keys=keys,
            window=1 if is_idempotent else random.choice((1, 3)),
            is_idempotent=is_idempotent,
            expects_offsets=bool(overrides.optimistic_concurrency),
        )
        life.publishers.append(
            Publisher(life.world, life.calls, life.directory, life.history, plan)
        )
    if not overrides.optimistic_concurrency and not overrides.compact_enabled:
        policy = random.choice((AckPolicy.ALL, AckPolicy.LEADER, AckPolicy.NONE))
        nats = NatsPublisherPlan(stream=name, policy=policy, think_ns=400 * MILLISECOND_NS)
        life.publishers.append(NatsPublisher(life.world, life.directory, life.history, nats))
    for _ in range(random.randrange(0, 3)):
        start = random.choice(
            (
                StartPosition.EARLIEST,
                StartPosition.EARLIEST,
                StartPosition.LATEST,
                StartPosition.NEW_ONLY,
            )
        )
        reader = ReaderPlan(stream=name, start=start, leaves_ppm=random.choice((0, 50_000)))
        life.readers.append(
            Reader(life.world, life.calls, life.directory, life.history, reader, len(life.readers))
        )

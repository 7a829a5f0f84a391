"""Runs of a cluster: replicated streams, every client, every fault.

The promise of a cluster: a record acknowledged with policy ALL survives as long as fewer replicas
than its minimum in sync lose their unsynced data, or their disk, before all replicas are in sync
again (docs/explanation/durability.md). `ClusterAtlas` keeps the faults within that.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from liftbridge_broker.config.options import AccessOptions
from liftbridge_broker.controller.commands import CreateStream
from liftbridge_broker.model.ids import BrokerId, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions, StreamOverrides
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.partition.runs import POLICY_ALL, POLICY_LEADER, POLICY_NONE
from liftbridge_broker.node.reading.subscription import StartPosition
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.wire.acks import AckPolicy
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING
from liftbridge_testkit.sim.breaking.parts import FaultPlan
from liftbridge_testkit.sim.broker import ClusterBroker, ClusterSettings
from liftbridge_testkit.sim.checkers.answers import AnswersAreTrue
from liftbridge_testkit.sim.clients.admin import OPERATIONS, Admin, AdminPlan
from liftbridge_testkit.sim.clients.archivers import CURSOR, Archiver
from liftbridge_testkit.sim.clients.askers import Asker, AskerPlan
from liftbridge_testkit.sim.clients.callers import GUARDED, Caller
from liftbridge_testkit.sim.clients.consumers import ConsumerPlan, GroupConsumer
from liftbridge_testkit.sim.clients.granter import CALLERS, MEMBER, ROOT, Granter
from liftbridge_testkit.sim.clients.key_keepers import KeyKeeper
from liftbridge_testkit.sim.clients.named import Named
from liftbridge_testkit.sim.clients.nats_publishers import NatsPublisher, NatsPublisherPlan
from liftbridge_testkit.sim.clients.publishers import Publisher, PublisherPlan
from liftbridge_testkit.sim.clients.readers import Reader, ReaderPlan
from liftbridge_testkit.sim.clients.rearranger import (
    REARRANGING,
    Rearranger,
    RearrangerPlan,
)
from liftbridge_testkit.sim.clients.resetters import Resetter
from liftbridge_testkit.sim.cluster_atlas import (
    ClusterAtlas,
    consensus_on,
)
from liftbridge_testkit.sim.epilogue import LogRot
from liftbridge_testkit.sim.faults import Faults
from liftbridge_testkit.sim.forging import CLUSTER_KEYS, Forger
from liftbridge_testkit.sim.invariants import watch_all
from liftbridge_testkit.sim.invariants.absences import Absences
from liftbridge_testkit.sim.invariants.access import AccessRules
from liftbridge_testkit.sim.invariants.activity import Activities
from liftbridge_testkit.sim.invariants.groups import GroupRules
from liftbridge_testkit.sim.invariants.leaders import LeaderLogs
from liftbridge_testkit.sim.invariants.replication import ReplicationRules
from liftbridge_testkit.sim.invariants.retention import HeldBack, Promise
from liftbridge_testkit.sim.late_frames import LateFrames
from liftbridge_testkit.sim.leaps import Leaps
from liftbridge_testkit.sim.life import Life
from liftbridge_testkit.sim.lone import BrokerSettings
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.master_keys import SimMasterKeys
from liftbridge_testkit.sim.program import Ports
from liftbridge_testkit.sim.rare import GroupPoints, RarePoints
from liftbridge_testkit.sim.trace import Trace
from liftbridge_testkit.sim.voter_life import FAULTS as GROUP_FAULTS
from liftbridge_testkit.sim.voter_life import draw_conditions
from liftbridge_testkit.sim.world import World

FAULTS = (
    *GROUP_FAULTS,
    "EIO on read",
    "forged frames",
    "late metadata",
    "false absence",
    "metadata rot",
    "misdirected write",
    "retry storm",
)
NAMES = ("a", "b", "c", "d", "e")
STREAMS = ("s", "t")
ASKED_EVERY = 8
"""One run in this many has askers: each of their questions costs a round of the metadata."""

ARCHIVED_EVERY, ARCHIVED = 8, 7
"""One run in this many, with this remainder, has an archiver whose cursor holds retention back.

These runs were chosen because they had met the fewest faults; the archiver changes all else.
"""

SAFE_EVERY, SAFE = 8, 7
"""One run with shapes in this many, with this remainder, keeps two replicas of every record.

So disks may be damaged and crashes may lose writes. These runs were chosen because they had met
the fewest faults; two replicas change all else.
"""

ACTIVITY_EVERY, ACTIVE = 8, 5
"""One run in this many, with this remainder, has the activity stream."""

LEAPS_EVERY, LEAPING = 8, 3
"""One run in this many, with this remainder, has clocks that sometimes leap."""

GROUPED_EVERY, GROUPED = 8, 5
"""One run in this many, with this remainder, has consumers that form groups."""

ACCESS_EVERY, ACCESSED = 16, (0, GROUPED)
"""Of so many runs, those with these remainders have access rules: one with groups, one without."""

ENCRYPTION_EVERY, ENCRYPTED = 16, 1
"""One run in this many, with this remainder, has an encrypted stream."""

COORDINATOR_FAULTS = ("coordinator killed", "coordinator paused", "coordinator isolated")
"""Faults of runs with groups."""

KEYS = (b"k1", b"k2", b"k3", b"k4")


def _settings(random: Random, peers: tuple[str, ...]) -> ClusterSettings:
    broker = BrokerSettings(
        flush=FlushLimits(
            interval_ns=random.choice((50, 1_000)) * MILLISECOND_NS,
            bytes_max=random.choice((2_000, 1 << 20)),
            journal_ns=random.choice((10, 100)) * MILLISECOND_NS,
            background_ns=random.choice((500, 60_000)) * MILLISECOND_NS,
            background_bytes_max=random.choice((2_000, 1 << 20)),
        ),
        snapshot_entries=random.choice((4, 20, 200)),
    )
    keys = random.choice((OPEN_KEYRING, CLUSTER_KEYS))
    return ClusterSettings(peers=tuple(BrokerId(peer) for peer in peers), broker=broker, keys=keys)


class Shape(NamedTuple):
    """Settings of a stream.

    Attributes:
        factor: Replicas of each partition.
        min_isr: In-sync replicas that a commit needs; `None` follows the defaults of brokers.
        partitions: Number of partitions; clients use the first.
        has_policy: Whether it sets its own fsync policy; otherwise the defaults of brokers apply.
    """

    factor: int = 3
    min_isr: int | None = 2
    partitions: int = 1
    has_policy: bool = True

    def on(self, brokers: int) -> "Shape":
        """Return the shape with at most as many replicas as there are brokers."""
        least = None if self.min_isr is None else min(self.min_isr, brokers)
        return self._replace(factor=min(self.factor, brokers), min_isr=least)


class Variety(NamedTuple):
    """Differences between runs of one kind of world.

    Attributes:
        shapes: Shape of each stream.
        defaults: Defaults of brokers for streams, if not the usual ones.
        trusts_commit: Whether power cuts do not count while all streams have fsync policy `commit`.
        has_damage: Whether disks are damaged; not if a stream may need only one replica, because
            the promise could weaken while damage is in use.
        has_late_frames: Whether frames are repeated long after their time.
        has_archiver: Whether the cursor of an archiver holds back a stream.
        has_groups: Whether consumers form groups.
        has_access: Whether callers need rights, and rules change.
        has_leaps: Whether clocks sometimes leap, and a stream keeps records for a limited time.
        opens_slowly: Whether a turn opens only one new replica.
        has_activity: Whether brokers turn the activity stream on, some not at each start.
        has_encryption: Whether the last stream is encrypted, and master keys come and go.
    """

    shapes: Mapping[str, Shape] = MappingProxyType(dict.fromkeys(STREAMS, Shape()))
    defaults: Mapping[str, StreamOptions] = MappingProxyType({})
    trusts_commit: bool = False
    has_damage: bool = True
    has_late_frames: bool = False
    has_archiver: bool = False
    has_groups: bool = False
    has_access: bool = False
    has_leaps: bool = False
    opens_slowly: bool = False
    has_activity: bool = False
    has_encryption: bool = False


def make_cluster_life(seed: int, trace: Trace) -> Life:
    """Draw a run from a seed, with streams of the usual shape."""
    variety = Variety(
        has_archiver=seed % ARCHIVED_EVERY == ARCHIVED,
        has_groups=seed % GROUPED_EVERY == GROUPED,
        has_access=seed % ACCESS_EVERY in ACCESSED,
        has_leaps=seed % LEAPS_EVERY == LEAPING,
        has_activity=seed % ACTIVITY_EVERY == ACTIVE,
        has_encryption=seed % ENCRYPTION_EVERY == ENCRYPTED,
    )
    return _make_life(seed, trace, variety)


def make_shapes_life(seed: int, trace: Trace) -> Life:
    """Draw a run from a seed, with streams of any shape, on brokers with other defaults."""
    # A separate generator: everything else is drawn as in other runs.
    random = Random(f"shapes {seed}")
    shapes = {}
    is_safe = seed % SAFE_EVERY == SAFE
    is_commit = random.random() < 0.4 and not is_safe
    for name in STREAMS:
        factor = random.choice((3, 3, 4, 5) if is_safe else (1, 2, 2, 3, 3, 4, 5))
        least = range(2, factor + 1) if is_safe else (None, *range(1, factor + 1))
        shapes[name] = Shape(
            factor,
            random.choice(least),
            random.choice((1, 1, 2, 3)),
            has_policy=not is_commit and random.random() < 0.5,
        )
    policies = (FsyncPolicy.COMMIT,) if is_commit else tuple(FsyncPolicy)
    # By default a stream of two replicas needs one.
    needs_two = all((one.min_isr or 0) > 1 and one.factor > 2 for one in shapes.values())
    default_min_isr = (0, 2) if needs_two else (0, 0, 1, 2)
    defaults = {
        name: StreamOptions(
            fsync_policy=random.choice(policies), min_isr=random.choice(default_min_isr)
        )
        for name in NAMES
    }
    variety = Variety(
        shapes,
        defaults,
        trusts_commit=is_commit,
        has_damage=needs_two and not is_commit,
        has_late_frames=random.random() < 0.5,
        opens_slowly=random.random() < 0.5,
    )
    return _make_life(seed, trace, variety)


def _make_life(seed: int, trace: Trace, variety: Variety) -> Life:
    world = World(seed, trace)
    random = world.new_random()
    first = NAMES[: random.choice((3, 3, 3, 5))]
    machines = NAMES[: min(len(NAMES), len(first) + random.choice((0, 0, 1)))]
    settings = _settings(random, first)
    masters: dict[BrokerId, SimMasterKeys] = {}
    for name in machines:
        own = _of_broker(settings, variety, name, seed)
        if variety.has_encryption:
            keys = SimMasterKeys(Random(f"master keys {seed} {name}"))
            masters[BrokerId(name)] = keys
            own = replace(own, masters=keys)
        make = partial(_make_broker, own)
        machine = world.add_machine(name, make)
        machine.files.cold_ppm = random.choice((0, 0, 10_000))
        machine.files.lost_sector_chance = 0.0
    draw_conditions(world, random)
    if not settings.keys.accepts_unsigned:
        world.network.intruders["forged frames"] = Forger(world.new_random())
    if variety.has_late_frames:
        world.network.intruders["late frames"] = LateFrames(world)
    life = Life(world, events_max=random.choice((3_000, 6_000)), time_max_ns=120 * SECOND_NS)
    plan = FaultPlan(
        kinds=(
            *(kind for kind in FAULTS if random.random() < 0.4),
            *(("late frames",) * variety.has_late_frames),
            *(COORDINATOR_FAULTS * variety.has_groups),
        ),
        pace_ns=random.choice((500, 2_000, 5_000)) * MILLISECOND_NS,
        duration_ns=random.choice((300, 3_000, 10_000)) * MILLISECOND_NS,
        restart_ns=random.choice((100, 3_000)) * MILLISECOND_NS,
        down_max=random.choice((1, 1, 2, len(machines))),
    )
    rules = watch_all(world)
    atlas = ClusterAtlas(world, rules.committed_end, variety.trusts_commit, variety.has_damage)
    life.faults = Faults(world, plan, atlas)
    LeaderLogs(life.history, rules)
    world.watchers += [
        Absences(world),
        RarePoints(world, rules),
        GroupPoints(world, consensus_on),
        atlas,
        life.faults,
    ]
    shapes = {name: shape.on(len(machines)) for name, shape in variety.shapes.items()}
    operations = tuple(name for name in OPERATIONS if random.random() < 0.4)
    factor = min(shape.factor for shape in shapes.values())
    admin = AdminPlan(streams=STREAMS, replication_factor=factor, operations=operations)
    if variety.has_activity:
        pace_ns = 300 * MILLISECOND_NS
        admin = replace(admin, operations=tuple(OPERATIONS), think_ns=pace_ns)
    life.admins.append(Admin(world, life.calls, life.directory, admin))
    changes = tuple(name for name in REARRANGING if random.random() < 0.3)
    rearranging = RearrangerPlan(streams=STREAMS, operations=changes)
    life.rearrangers.append(Rearranger(world, life.calls, life.directory, rearranging))
    for name in STREAMS:
        _add_stream(life, name, random, shapes[name])
    _add_kinds(life, variety, rules, seed)
    if variety.has_encryption:
        _encrypt_a_stream(life, masters)
    _delete_keys(life, seed)
    rot = LogRot(life, seed)
    life.epilogue = rot if rot.is_wanted else None
    return life


def _add_kinds(life: Life, variety: Variety, rules: ReplicationRules, seed: int) -> None:
    """Add what only some runs have."""
    world = life.world
    if seed % ASKED_EVERY == 0:
        _add_askers(life)
    if variety.has_access:
        _add_callers(life)
    if variety.has_groups:
        _add_groups(life, seed)
    if variety.has_archiver:
        _add_archiver(life, HeldBack(rules, world.coverage))
    if variety.has_activity:
        activities = Activities(rules, world.coverage)
        world.watchers.append(activities)
        life.waits.append(("an event of each change", lambda: activities.is_complete))
    if variety.has_leaps:
        _age_a_stream(life)
        Leaps(world)


def _make_broker(settings: ClusterSettings, ports: Ports) -> ClusterBroker:
    return ClusterBroker(ports, settings)


def _of_broker(
    settings: ClusterSettings, variety: Variety, name: str, seed: int
) -> ClusterSettings:
    """Settings of one broker, which may differ from those of others."""
    defaults = variety.defaults.get(name)
    if defaults is not None:
        settings = replace(settings, broker=replace(settings.broker, defaults=defaults))
    if variety.opens_slowly:
        settings = replace(settings, openings_per_turn=1)
    if variety.has_access:
        is_enabled = bool(Random(f"access {seed}").randrange(2))
        access = AccessOptions(is_enabled=is_enabled, super_users=(ROOT,))
        settings = replace(settings, access=access)
    if variety.has_activity:
        off_every = Random(f"activity {seed} {name}").choice((1, 1, 2, 3, 1_000))
        settings = replace(settings, activity_off_every=off_every)
    return settings


def _add_askers(life: Life) -> None:
    """Add clients that query logs, with a separate generator: all else stays unchanged."""
    random = life.world.new_random()
    checker = AnswersAreTrue()
    life.history.checkers.append(checker)
    for name in STREAMS:
        for _ in range(random.randrange(3)):
            plan = AskerPlan(name, random.choice((100, 400, 2_000)) * MILLISECOND_NS)
            parts = life.world, life.calls, life.directory, life.history, checker
            life.askers.append(Asker(*parts, plan, len(life.askers)))


def _add_callers(life: Life) -> None:
    """Add clients with names that use a stream, and a granter who changes their rights."""
    life.creates.append(
        CreateStream(
            name=StreamName(GUARDED),
            subject=f"lb.{GUARDED}",
            replication_factor=3,
            overrides=StreamOverrides(min_isr=2),
        )
    )
    rules = AccessRules(life.world)
    life.world.watchers.append(rules)
    life.granters.append(Granter(life.world, life.calls, life.directory, rules))
    for who in CALLERS:
        parts = life.world, life.calls, life.directory, life.history
        life.callers.append(Caller(*parts, Named(who, rules)))


def _add_groups(life: Life, seed: int) -> None:
    """Add a group of each kind, whose members read a stream of their own and passing ones."""
    random = Random(f"groups {seed}")
    named = [Named(MEMBER, granter.rules) for granter in life.granters]
    assert life.faults is not None
    life.faults.coordinating = partial(_coordinating, life)
    rules = GroupRules(life.world)
    life.world.watchers.append(rules)
    for name, partitions in ((CURSORS_STREAM, 1), ("grouped", 5)):
        life.creates.append(
            CreateStream(
                name=StreamName(name),
                subject=f"lb.{name}",
                partitions=partitions,
                replication_factor=3,
                overrides=StreamOverrides(min_isr=2),
                is_internal=name == CURSORS_STREAM,
            )
        )
    for group, streams in (("classic", ("grouped",)), ("incremental", ("grouped", "x", "*"))):
        for _ in range(random.randrange(2, 5)):
            plan = ConsumerPlan(
                group=group,
                is_incremental=group == "incremental",
                streams=streams[: random.choice((1, len(streams)))],
                stalls_ppm=random.choice((0, 40_000, 100_000)),
                leaves_ppm=random.choice((0, 20_000, 100_000)),
            )
            parts = life.world, life.calls, life.directory, plan, rules, len(life.consumers)
            life.consumers.append(GroupConsumer(*parts, named=named[0] if named else None))
    if random.randrange(2):
        who = named[0] if named else None
        life.resetters.append(
            Resetter(life.world, life.calls, life.directory, rules, "incremental", who)
        )


def _coordinating(life: Life) -> list[Machine]:
    """Return the machines that coordinate groups, as some broker knows."""
    state = life.directory.state()
    groups = () if state is None else state.groups.values()
    machines = life.world.machines
    return [machines[group.coordinator] for group in groups if group.coordinator in machines]


def _add_archiver(life: Life, held: HeldBack) -> None:
    """Let a cursor hold back a stream whose retention is always due."""
    random = life.world.new_random()
    life.world.watchers.append(held)
    at = random.randrange(len(life.creates))
    bytes_max = random.choice((0, 0, 4_000))
    command = life.creates[at]
    overrides = replace(
        command.overrides,
        segment_bytes_max=random.choice((800, 2_000)),
        retention_messages_max=random.choice((3, 20)),
        cleaner_interval_ms=500,
        retention_cursor=CURSOR,
        retention_cursor_bytes_max=bytes_max,
    )
    life.creates[at] = replace(command, overrides=overrides)
    cursors = CreateStream(
        name=StreamName(CURSORS_STREAM),
        subject=f"lb.{CURSORS_STREAM}",
        replication_factor=3,
        overrides=StreamOverrides(compact_enabled=True, min_isr=2, cleaner_interval_ms=1_000),
        is_internal=True,
    )
    life.creates.insert(0, cursors)
    archiver = Archiver(
        life.world,
        life.calls,
        life.directory,
        command.name,
        random.choice((100, 300, 1_000)) * MILLISECOND_NS,
        is_lazy=random.random() < 0.5,
    )
    life.archivers.append(archiver)
    held.promises[command.name] = Promise(lambda one: archiver.told.get(one, 0), bytes_max)


def _delete_keys(life: Life, seed: int) -> None:
    """Delete keys in half of the streams with deletions, and drop their tombstones soon.

    It uses a separate generator, so that runs without such streams stay unchanged.
    """
    random = Random(f"deleted keys {seed}")
    for at, command in enumerate(life.creates):
        if not command.overrides.compact_enabled or command.is_internal or random.random() < 0.5:
            continue
        overrides = replace(
            command.overrides,
            tombstone_retention_ms=random.choice((1, 2_000)),
            segment_bytes_max=800,
            cleaner_interval_ms=500,
        )
        life.creates[at] = replace(command, overrides=overrides)
        deletes_ppm = random.choice((100_000, 400_000))
        for publisher in life.publishers:
            if isinstance(publisher, Publisher) and publisher.plan.stream == command.name:
                publisher.plan = replace(publisher.plan, deletes_ppm=deletes_ppm)


def _encrypt_a_stream(life: Life, masters: Mapping[BrokerId, SimMasterKeys]) -> None:
    """Encrypt the last stream, which is not compacted: that would encrypt records anew."""
    command = life.creates[-1]
    overrides = replace(command.overrides, encryption=True, compact_enabled=False)
    life.creates[-1] = replace(command, overrides=overrides)
    life.keepers.append(KeyKeeper(life.world, life.calls, life.directory, masters))


def _age_a_stream(life: Life) -> None:
    """Limit the first stream by age only."""
    command = life.creates[0]
    overrides = replace(
        command.overrides,
        segment_bytes_max=800,
        retention_age_ms_max=4_000,
        retention_messages_max=0,
        cleaner_interval_ms=500,
    )
    life.creates[0] = replace(command, overrides=overrides)


def _add_stream(life: Life, name: str, random: Random, shape: Shape) -> None:
    """Plan a stream and its clients."""
    expects_offsets = random.random() < 0.15
    keys = KEYS if not expects_offsets and random.random() < 0.2 else ()
    fsync = random.choice(tuple(FsyncPolicy))
    overrides = StreamOverrides(
        min_isr=shape.min_isr,
        fsync_policy=fsync if shape.has_policy else None,
        segment_bytes_max=random.choice((800, 5_000, 1 << 20)),
        retention_messages_max=random.choice((0, 0, 0, 50)),
        retention_age_ms_max=random.choice((0, 0, 0, 4_000)),
        compact_enabled=bool(keys),
        cleaner_interval_ms=random.choice((500, 5_000)),
        optimistic_concurrency=expects_offsets,
    )
    life.creates.append(
        CreateStream(
            name=StreamName(name),
            subject=f"sub.{name}",
            partitions=shape.partitions,
            replication_factor=shape.factor,
            overrides=overrides,
        )
    )
    life.probes.append(PublisherPlan(stream=name, run_max=1, keys=keys, think_ns=SECOND_NS))
    for _ in range(random.randrange(1, 3)):
        policy = random.choice((POLICY_ALL, POLICY_ALL, POLICY_ALL, POLICY_LEADER, POLICY_NONE))
        # Without acks an idempotent publisher would repeat a run with an unknown outcome for ever.
        may_repeat = not expects_offsets and policy != POLICY_NONE
        is_idempotent = may_repeat and random.random() < 0.4
        plan = PublisherPlan(
            stream=name,
            policy=policy,
            think_ns=random.choice((20, 100, 500)) * MILLISECOND_NS,
            run_max=random.choice((1, 3, 8)),
            keys=keys,
            window=1 if is_idempotent else random.choice((1, 3)),
            is_idempotent=is_idempotent,
            expects_offsets=expects_offsets,
        )
        life.publishers.append(
            Publisher(life.world, life.calls, life.directory, life.history, plan)
        )
    if not expects_offsets and not keys and random.random() < 0.5:
        policy = random.choice((AckPolicy.ALL, AckPolicy.LEADER, AckPolicy.NONE))
        nats = NatsPublisherPlan(stream=name, policy=policy, think_ns=400 * MILLISECOND_NS)
        life.publishers.append(NatsPublisher(life.world, life.directory, life.history, nats))
    for _ in range(random.randrange(0, 3)):
        start = random.choice(
            (StartPosition.EARLIEST, StartPosition.EARLIEST, StartPosition.LATEST)
        )
        reader = ReaderPlan(
            stream=name,
            start=start,
            leaves_ppm=random.choice((0, 50_000)),
            reads_replica=random.random() < 0.4,
        )
        life.readers.append(
            Reader(life.world, life.calls, life.directory, life.history, reader, len(life.readers))
        )

"""Faults of links between machines."""

from collections.abc import Callable, Mapping
from typing import Final

from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.metadata.failure_detector import GAP_NS
from liftbridge_broker.ports.transport import Channel
from liftbridge_testkit.sim.breaking.parts import Breaking, Undo

Ways = tuple[tuple[str, str], ...]

SEPARATE_NS: Final = GAP_NS * 13 // 10
"""Time after which an absence is another one; the clocks of machines run up to a tenth too fast."""


def _cut(faults: Breaking, ways: Ways) -> Undo:
    network = faults.world.network
    for source, target in ways:
        network.cut(source, target)

    def mend() -> None:
        for source, target in ways:
            network.mend(source, target)

    return mend


def _ways_of(faults: Breaking, name: str) -> Ways:
    """Return all links from and to a machine."""
    others = [other for other in faults.world.machines if other != name]
    return (*((name, other) for other in others), *((other, name) for other in others))


def _cut_pair(faults: Breaking) -> Undo | None:
    pair = faults.pair()
    if pair is None:
        return None
    one, other = pair
    return _cut(faults, ((one, other), (other, one)))


def _cut_one_way(faults: Breaking) -> Undo | None:
    pair = faults.pair()
    return None if pair is None else _cut(faults, (pair,))


def _isolate(faults: Breaking) -> Undo | None:
    pair = faults.pair()
    return None if pair is None else _cut(faults, _ways_of(faults, pair[0]))


def _isolate_leader(faults: Breaking) -> Undo | None:
    machine = faults.any_leading()
    if machine is None or len(faults.world.machines) < 2:
        return None
    return _cut(faults, _ways_of(faults, machine.name))


def _isolate_coordinator(faults: Breaking) -> Undo | None:
    machine = faults.any_coordinating()
    return None if machine is None else _cut(faults, _ways_of(faults, machine.name))


def _split(faults: Breaking) -> Undo | None:
    names = list(faults.world.machines)
    if len(names) < 4:
        return None
    faults.random.shuffle(names)
    at = faults.random.randrange(1, len(names))
    ways = [(name, other) for name in names[:at] for other in names[at:]]
    return _cut(faults, tuple(ways + [(other, one) for one, other in ways]))


def _swizzle(faults: Breaking) -> Undo | None:
    """Cut machines off one after the other, and reconnect them in another order."""
    world, random = faults.world, faults.random
    names = list(world.machines)
    if len(names) < 2:
        return None
    chosen = random.sample(names, random.randrange(1, len(names) + 1))
    mends: list[Undo] = []
    is_over = [False]

    def cut(name: str) -> None:
        if not is_over[0]:
            mends.append(_cut(faults, _ways_of(faults, name)))

    def mend() -> None:
        if mends:
            mends.pop(random.randrange(len(mends)))()

    def end() -> None:
        is_over[0] = True
        for count in range(len(mends)):
            world.scheduler.after(count * 100 * MILLISECOND_NS, mend)

    for count, name in enumerate(chosen):
        world.scheduler.after(count * 100 * MILLISECOND_NS, cut, name)
    return end


def _slow_link(faults: Breaking) -> Undo | None:
    pair = faults.pair()
    if pair is None:
        return None
    network = faults.world.network
    network.slow(*pair, faults.random.randrange(10 * MILLISECOND_NS, SECOND_NS))
    return lambda: network.slow(*pair, 0)


def _late_metadata(faults: Breaking) -> Undo | None:
    """Delay metadata to a machine, and deliver everything else in time."""
    pair = faults.pair()
    if pair is None:
        return None
    network, name = faults.world.network, pair[0]
    extra_ns = faults.random.randrange(50 * MILLISECOND_NS, 900 * MILLISECOND_NS)
    network.slow_channel(name, Channel.METADATA, extra_ns)
    return lambda: network.slow_channel(name, Channel.METADATA, 0)


def _nats_link(faults: Breaking) -> Undo | None:
    name = faults.random.choice(list(faults.world.network.endpoints) or [""])
    if not name:
        return None
    faults.world.network.unlink(name)
    return lambda: faults.world.network.relink(name)


def _flapping_link(faults: Breaking) -> Undo | None:
    """Cut and restore one link to NATS again and again."""
    world, random = faults.world, faults.random
    name = random.choice(list(world.machines))
    is_down, is_over = [False], [False]

    def flap() -> None:
        if is_over[0]:
            return
        is_down[0] = not is_down[0]
        (world.network.unlink if is_down[0] else world.network.relink)(name)
        world.scheduler.after(random.randrange(1, 300 * MILLISECOND_NS), flap)

    def end() -> None:
        is_over[0] = True
        if is_down[0]:
            world.network.relink(name)

    flap()
    return end


def _nats_outage(faults: Breaking) -> Undo | None:
    faults.world.network.begin_outage()
    return faults.world.network.end_outage


def _false_absence(faults: Breaking) -> Undo | None:
    """Let NATS say that nobody listens for a broker that lives, as after the loss of a route."""
    network, random = faults.world.network, faults.random
    name, channels = random.choice(list(faults.world.machines)), tuple(Channel)
    if random.randrange(3) == 0:
        network.deny(name, frozenset(channels))
        return lambda: network.deny(name, frozenset())
    is_in_turn = random.randrange(2) == 1
    is_over = [False]

    def deny(channel: Channel) -> None:
        if is_over[0]:
            return
        network.deny(name, frozenset((channel,)))
        if is_in_turn:
            other = random.choice([one for one in channels if one is not channel])
            delay_ns = random.randrange(SEPARATE_NS, 4 * SEPARATE_NS)
            faults.world.scheduler.after(delay_ns, deny, other)

    def end() -> None:
        is_over[0] = True
        network.deny(name, frozenset())

    deny(random.choice(channels))
    return end


def _forged_frames(faults: Breaking) -> Undo | None:
    """Send forged frames in the names of brokers, as an attacker without the cluster's secret."""
    return _intrude(faults, "forged frames")


def _late_frames(faults: Breaking) -> Undo | None:
    """Repeat frames long after their time."""
    return _intrude(faults, "late frames")


def _intrude(faults: Breaking, kind: str) -> Undo | None:
    world, random = faults.world, faults.random
    if kind not in world.network.intruders:
        return None
    is_over = [False]

    def say() -> None:
        if is_over[0]:
            return
        world.network.intrude(kind)
        world.scheduler.after(random.randrange(1, 40 * MILLISECOND_NS), say)

    def end() -> None:
        is_over[0] = True

    say()
    return end


LINKS: Mapping[str, Callable[[Breaking], Undo | None]] = {
    "cut between two": _cut_pair,
    "cut one way": _cut_one_way,
    "one isolated": _isolate,
    "leader isolated": _isolate_leader,
    "coordinator isolated": _isolate_coordinator,
    "split": _split,
    "swizzle": _swizzle,
    "slow link": _slow_link,
    "late metadata": _late_metadata,
    "NATS link": _nats_link,
    "flapping link": _flapping_link,
    "NATS outage": _nats_outage,
    "false absence": _false_absence,
    "forged frames": _forged_frames,
    "late frames": _late_frames,
}

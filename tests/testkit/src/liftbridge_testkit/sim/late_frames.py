"""Frames of brokers that are repeated unchanged long after their time, up to minutes.

With signatures, the session refuses such a frame. Without them, the rules of replication must
refuse or tolerate it. `LATE` counts the kinds of frames that arrived.
"""

from typing import Final

from liftbridge_broker.model.fetching import FetchBody
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_broker.wire.peer.frame import is_signed, read_open
from liftbridge_broker.wire.peer.messages import PeerHeader, decode
from liftbridge_testkit.sim.cluster_atlas import broker_on
from liftbridge_testkit.sim.world import World

LATE: Final = (
    "late fetch of a former process",
    "late fetch from a lower offset in one epoch",
    "late fetch in an epoch that is over",
    "late message of a former registration",
)
"""Rare points: kinds of frames that arrive late."""

KEPT_MAX = 300
KEEPING = 0.05
"""Probability of keeping each frame in place of another one, so that all ages occur."""


class LateFrames:
    """Late frames of one world, with a separate random generator."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.new_random()
        self._kept: list[tuple[str, Channel, bytes]] = []

    def overhear(self, target: str, channel: Channel, payload: bytes) -> None:
        """Record a message that a broker sent to another one, or to all."""
        random = self._random
        if random.random() >= KEEPING:
            return
        frame = (target, Channel.METADATA if target == EVERYONE else channel, payload)
        if len(self._kept) < KEPT_MAX:
            self._kept.append(frame)
        else:
            self._kept[random.randrange(KEPT_MAX)] = frame

    def frame(self, brokers: list[str]) -> tuple[str, Channel, bytes] | None:
        """Return a frame sent to one of `brokers` before; `None` without one."""
        if not self._kept:
            return None
        target, channel, payload = self._random.choice(self._kept)
        if target == EVERYONE:
            target = self._random.choice(brokers)
        if target not in brokers:
            return None
        if not is_signed(payload):
            piece = read_open(payload)
            if not piece.kind:
                self._count(target, decode(piece)[0])
        return target, channel, payload

    def _count(self, target: str, header: PeerHeader) -> None:
        broker = broker_on(self._world.machines[BrokerId(target)])
        sender = self._world.machines.get(header.sender)
        if broker is None or sender is None:
            return
        rare, own = self._world.coverage.rare, broker.node.state.brokers.get(header.sender)
        if own is not None and 0 < header.broker_epoch < own.broker_epoch:
            rare("late message of a former registration")
        if not isinstance(header.body, FetchBody):
            return
        if own is not None and header.incarnation_id != own.incarnation_id:
            rare("late fetch of a former process")
            return
        follower = broker_on(sender)
        for position in header.body.partitions:
            partition = broker.node.partitions.get(position.partition)
            copy = None if follower is None else follower.node.partitions.get(position.partition)
            if partition is None or copy is None:
                continue
            if position.leader_epoch < partition.leader_epoch:
                rare("late fetch in an epoch that is over")
            elif partition.is_led and position.fetch_offset < copy.log.log_end_offset:
                rare("late fetch from a lower offset in one epoch")

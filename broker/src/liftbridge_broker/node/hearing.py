"""A new stream is told of when the leaders of its partitions hear their subjects.

What is published at a broker that does not lead goes over NATS, and NATS loses what nobody listens
to. So the broker that proposed the stream asks each leader, again and again until it answers, and
answers its client then. Soft state: a leader keeps nothing of a question it cannot answer yet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant, PartitionId, StreamName
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.node.openings import Openings
from liftbridge_broker.node.replica_host import Speaker
from liftbridge_broker.ports.messaging import Messaging
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.wire.peer import PeerHeader
from liftbridge_broker.wire.peer_bodies import ListeningReply, ListeningRequest

HEARING_NS: Final = 1_000 * MILLISECOND_NS
"""Time after which a client is answered all the same; a leader may be dead."""

PARTITION_NS: Final = 2 * MILLISECOND_NS
"""More of it for each partition: leaders open so many by and by."""

ASK_FIRST_NS: Final = 5 * MILLISECOND_NS
ASK_NS: Final = 50 * MILLISECOND_NS
"""Longest time between two questions; it doubles from `ASK_FIRST_NS` up to this."""


class HearingHost(Protocol):
    """What is asked of the node."""

    messaging: Messaging
    openings: Openings

    @property
    def broker(self) -> BrokerId:
        """Id of this broker."""
        ...

    @property
    def now(self) -> Instant:
        """Time of this turn."""
        ...

    @property
    def state(self) -> ClusterState:
        """Applied metadata."""
        ...

    def is_listening(self, partition_id: PartitionId) -> bool:
        """Whether the messages of a partition are taken here."""
        ...


@dataclass(slots=True, eq=False)
class _Wait:
    """Somebody who waits.

    Attributes:
        unheard: Partitions whose leaders did not answer yet.
        done: What to call in the end.
        ends_at: When it is called at the latest.
    """

    unheard: set[PartitionId]
    done: Callable[[], None]
    ends_at: Instant


class Hearing:
    """Those who wait for leaders to listen, and answers to the same question of others."""

    def __init__(self, host: HearingHost, speaker: Speaker) -> None:
        """Begin with nobody who waits."""
        self._host = host
        self._speaker = speaker
        self._waits: dict[_Wait, None] = {}  # in order of arrival; looked at each `ASK_NS`
        self._unheard: dict[PartitionId, list[_Wait]] = {}
        self._ask_at = Instant(0)
        self._pause_ns = ASK_FIRST_NS

    def wait(
        self, partitions: Sequence[PartitionId], done: Callable[[], None], now: Instant
    ) -> None:
        """Call `done` once all of some partitions are listened to, or when time is over."""
        if not partitions:
            done()
            return
        time_ns = HEARING_NS + PARTITION_NS * len(partitions)
        wait = _Wait(set(partitions), done, Instant(now + time_ns))
        self._waits[wait] = None
        for partition_id in partitions:
            self._unheard.setdefault(partition_id, []).append(wait)
        self._pause_ns = ASK_FIRST_NS
        self._ask_at = Instant(now + ASK_FIRST_NS)
        self._ask(partitions)

    def on_peer(self, header: PeerHeader) -> bool:
        """Take a message of another broker; returns whether it was one of these."""
        match header.body:
            case ListeningRequest(partitions):
                self._answer(
                    partitions,
                    lambda found: self._speaker.send(
                        header.sender, Channel.METADATA, ListeningReply(found)
                    ),
                )
            case ListeningReply(partitions):
                self._heard(header.sender, partitions)
            case _:
                return False
        return True

    def on_timer(self, now: Instant) -> None:
        """Ask again, and let those go whose time is over."""
        for wait in [wait for wait in self._waits if wait.ends_at <= now]:
            self._let_go(wait)
        if self._waits and self._ask_at <= now:
            self._pause_ns = min(2 * self._pause_ns, ASK_NS)
            self._ask_at = Instant(now + self._pause_ns)
            self._ask(list(self._unheard))

    def next_deadline(self) -> Instant | None:
        """When `on_timer` wants to be called, `None` while nobody waits."""
        first = next(iter(self._waits), None)
        return None if first is None else min(first.ends_at, self._ask_at)

    def end(self) -> None:
        """Let everybody go; the broker stops."""
        for wait in list(self._waits):
            self._let_go(wait)

    def _ask(self, partitions: Sequence[PartitionId]) -> None:
        asked: dict[BrokerId, list[PartitionId]] = {}
        for partition_id in partitions:
            state = self._host.state.partition(partition_id)
            if state is None:
                self._settle(partition_id)  # deleted meanwhile: nobody will listen
            elif state.leader is not None:
                asked.setdefault(state.leader, []).append(partition_id)
        for leader, led in asked.items():
            if leader == self._host.broker:
                self._answer(tuple(led), lambda found: self._heard(self._host.broker, found))
            else:
                self._speaker.send(leader, Channel.METADATA, ListeningRequest(tuple(led)))

    def _answer(
        self,
        partitions: tuple[PartitionId, ...],
        reply: Callable[[tuple[PartitionId, ...]], None],
    ) -> None:
        """Reply with what is listened to here, once the NATS server knows."""
        found = tuple(one for one in partitions if self._host.is_listening(one))
        if found:
            self._host.messaging.when_subscribed(lambda: reply(found))

    def _heard(self, leader: BrokerId, partitions: tuple[PartitionId, ...]) -> None:
        """A broker listens; one that led before does not count."""
        for partition_id in partitions:
            state = self._host.state.partition(partition_id)
            if state is not None and state.leader == leader:
                self._settle(partition_id)

    def _settle(self, partition_id: PartitionId) -> None:
        """Nobody has to wait for a partition any more."""
        for wait in self._unheard.pop(partition_id, ()):
            wait.unheard.discard(partition_id)
            if not wait.unheard:
                self._let_go(wait)

    def _let_go(self, wait: _Wait) -> None:
        """End a wait; what is done then may begin others."""
        del self._waits[wait]
        for partition_id in wait.unheard:
            others = [one for one in self._unheard[partition_id] if one is not wait]
            if others:
                self._unheard[partition_id] = others
            else:
                del self._unheard[partition_id]
        wait.done()


def once_heard(
    host: HearingHost,
    hearing: Hearing | None,
    name: StreamName,
    reply: Callable[[object], None],
) -> Callable[[object], None]:
    """Tell of a new stream only when it hears its subject, or what follows at once is lost.

    Args:
        host: The node.
        hearing: Its way to ask leaders; `None` for a broker alone.
        name: Name of the stream.
        reply: Gets the outcome of the command that makes it.

    Returns:
        What to give the outcome to.
    """

    def answered(outcome: object) -> None:
        if isinstance(outcome, LiftbridgeError):
            reply(outcome)
        elif hearing is None:
            host.openings.when_open(lambda: host.messaging.when_subscribed(lambda: reply(outcome)))
        else:
            stream = host.state.stream(name)  # perhaps deleted meanwhile: nobody will listen
            partitions = () if stream is None else stream.partitions
            found = [partition.partition_id for partition in partitions]
            hearing.wait(found, lambda: reply(outcome), host.now)

    return answered

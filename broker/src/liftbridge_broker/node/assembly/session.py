"""The session of a broker with its cluster: registration, and orderly hand-over.

Every request here is repeated until its effect shows in the applied metadata: a message, a leader
or an answer may be lost at any time, and each command is idempotent.

All waits are generators: after each yield, the owner waits for the next change of the metadata or
for a short time, and runs the next step.
"""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Final

from liftbridge_broker.controller.commands import (
    FEATURE_LEVEL,
    AdvertiseListeners,
    Command,
    CreateStream,
    RegisterBroker,
    UnfenceBroker,
)
from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InternalError,
    LiftbridgeError,
    StaleBrokerEpochError,
    UnavailableError,
)
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.node.assembly.core import Core
from liftbridge_broker.node.assembly.progress import Progress
from liftbridge_broker.node.metadata.leader_wait import leader_wait_ns
from liftbridge_broker.node.replicas.claims import quarantined_partitions, verified_partitions

LOOK_NS: Final = 20 * MILLISECOND_NS
"""Longest time between two steps, for state that no applied command announces."""

PROPOSAL_NS: Final = 1 * SECOND_NS
"""Time after which a proposal without an answer is repeated."""

PAUSE_NS: Final = 100 * MILLISECOND_NS
"""Time between a refusal and the next attempt."""

SILENT_NS: Final = 1 * SECOND_NS
TRANSFER_NS: Final = 1 * SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """Facts that a broker registers about itself, besides the state of its data directory.

    Attributes:
        host: Address at which clients reach the broker.
        port: Port of that address.
        listeners: Addresses of the further listeners.
        zone: Zone or rack, empty when unknown.
        version: Version of the software, for people.
        started: Wall clock of the start, nanoseconds since 1970, for people.
        replicas_max: Largest number of replicas that it may have; 0 when not known.
    """

    host: str
    port: int
    listeners: tuple[ListenerAddress, ...] = ()
    zone: str = ""
    version: str = ""
    started: int = 0
    replicas_max: int = 0


class _Attempts:
    """One command, proposed until its effect shows in the metadata.

    Args:
        core: The broker.
        command: The command; must be idempotent.
        refused_ns: Time for which definite refusals are ignored, because their cause is temporary:
            the session of the previous process still counts.
    """

    def __init__(self, core: Core, command: Command, refused_ns: int) -> None:
        self._core = core
        self._command = command
        self._refusals_end = Instant(core.clock.now() + refused_ns)
        self._next_at = core.clock.now()
        self._made_count = 0
        self._outcome: object = None

    def make(self) -> None:
        """Propose when it is time; no-op while no leader is known.

        Raises:
            LiftbridgeError: The metadata group refused the command permanently.
        """
        now = self._core.clock.now()
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, LiftbridgeError):
            self._note(outcome, now)
        if now < self._next_at or self._core.consensus.leader is None:
            return
        self._next_at = Instant(now + PROPOSAL_NS)
        self._made_count += 1
        self._core.node.propose(self._command, now, partial(self._take, self._made_count))

    def _take(self, number: int, outcome: object) -> None:
        """Keep the outcome of the latest proposal; ignore the outcomes of earlier ones."""
        if number == self._made_count:
            self._outcome = outcome

    def _note(self, error: LiftbridgeError, now: Instant) -> None:
        passes = isinstance(error, InternalError | UnavailableError)
        if not passes and (
            now >= self._refusals_end or not isinstance(error, FailedPreconditionError)
        ):
            raise error
        self._next_at = Instant(now + PAUSE_NS)


def register(core: Core, announcement: Announcement) -> Generator[None, None, None]:
    """Start a broker session and receive from NATS.

    Ends once the broker may lead, which requires a quorum of the metadata group.

    Args:
        core: The broker, open.
        announcement: Facts that it registers about itself.

    Raises:
        LiftbridgeError: The metadata group refused the command.
    """
    own = yield from _begin(core, announcement)
    core.store.begin_session(core.node.state.applied_index, core.clock.now())
    yield from advertise(core, announcement.listeners)
    core.node.listen()
    yield from _be_unfenced(core, own)


def _begin(core: Core, announcement: Announcement) -> Generator[None, None, BrokerState]:
    """Become a member of the metadata group, and wait until the registration is applied here."""
    identity = core.store.identity
    command = RegisterBroker(
        broker=identity.broker_id,
        incarnation_id=core.incarnation_id,
        data_dir_id=identity.data_dir_id,
        host=announcement.host,
        port=announcement.port,
        previous_broker_epoch=core.store.last_stop.broker_epoch or 0,
        clean_partitions=verified_partitions(core.node.partitions, core.store),
        known_index=core.store.last_stop.known_index,
        quarantined_partitions=quarantined_partitions(core.node.partitions),
        zone=announcement.zone,
        version=announcement.version,
        feature_level=FEATURE_LEVEL,
        started=announcement.started,
        replicas_max=announcement.replicas_max,
    )
    attempts = _Attempts(core, command, 2 * core.options.control.session_ns)
    progress = Progress(core.clock, core.observer)
    while (own := core.registration) is None:
        core.joining.on_timer(core.clock.now())
        if core.joining.is_member:
            attempts.make()
        progress.note(_awaited(core))
        yield
    return own


def _awaited(core: Core) -> str:
    """Describe what the start of the broker's session waits for."""
    if core.joining.is_member:
        leader = core.consensus.leader
        if leader is not None:
            return f"registration by {leader.broker}"
        voters = ", ".join(peer.broker for peer in core.consensus.voters)
        return f"a leader of the metadata group, whose voters are {voters}"
    leader = core.joining.leader
    return "a cluster with a leader" if leader is None else f"admission by {leader.broker}"


def advertise(core: Core, listeners: tuple[ListenerAddress, ...]) -> Generator[None, None, None]:
    """Announce the broker's further listeners to clients through the metadata.

    Ends when they show in the applied metadata, or the session is over.

    Args:
        core: The broker, registered.
        listeners: All further listeners; those of the last start count until they are announced.

    Raises:
        LiftbridgeError: The metadata group refused the command.
    """
    own = core.registration
    if own is None or own.listeners == listeners:
        return
    progress = Progress(core.clock, core.observer)
    command = AdvertiseListeners(
        broker=own.broker, broker_epoch=own.broker_epoch, listeners=listeners
    )
    attempts = _Attempts(core, command, 0)
    while own is not None and own.listeners != listeners:
        try:
            attempts.make()
        except StaleBrokerEpochError:
            return  # another process has the session, and announces its own addresses
        progress.note("the cluster to record the listeners")
        yield
        own = core.registration
    if own is not None:
        addresses = [f"{name}={host}:{port}" for name, host, port in listeners]
        core.observer.transition("listeners_advertised", {"listeners": addresses})


def _be_unfenced(core: Core, registered: BrokerState) -> Generator[None, None, None]:
    """Wait until the metadata leader unfences this broker; one without peers proposes that."""
    progress = Progress(core.clock, core.observer)
    ask = _Attempts(
        core,
        UnfenceBroker(
            broker=registered.broker,
            broker_epoch=registered.broker_epoch,
            applied_index=core.node.state.applied_index,
        ),
        0,
    )
    while (own := core.registration) is None or own.fenced:
        if core.node.cluster is None:
            ask.make()
        progress.note("the metadata leader to unfence this broker")
        yield


def create_stream(core: Core, command: CreateStream) -> Generator[None, None, None]:
    """Ensure that an internal stream exists; the first broker creates it.

    Raises:
        LiftbridgeError: The metadata group refused the command.
    """
    attempts = _Attempts(core, command, 2 * core.options.control.session_ns)
    progress = Progress(core.clock, core.observer)
    with contextlib.suppress(AlreadyExistsError):
        while core.node.state.stream(command.name) is None:
            if not _awaits_founders(core, command.replication_factor):
                attempts.make()
            progress.note(f"the stream {command.name}")
            yield


def _awaits_founders(core: Core, replication_factor: int) -> bool:
    """Return whether brokers that have not registered yet make room for all replicas."""
    registered = sum(not broker.removed for broker in core.node.state.brokers.values())
    return registered < replication_factor <= len(core.consensus.voters)


# -- the end of a session -------------------------------------------------------------------------


def has_company(core: Core) -> bool:
    """Return whether other brokers could take over this one's partitions, or vote without it."""
    if core.registration is None or core.node.cluster is None:
        return False
    others = [
        broker for broker in core.node.state.brokers.values() if broker.broker != core.node.broker
    ]
    return any(not other.removed for other in others) or len(core.consensus.voters) > 1


def hand_over(core: Core, timeout_ns: int) -> Generator[None, None, bool]:
    """Controlled shutdown: move this broker's leaderships, and wait until the new leaders know it.

    It gives up when no metadata leader is known for `leader_wait_ns`, as when all brokers stop at
    once, or when nothing can be sent to other brokers for `SILENT_NS`.

    Args:
        core: The broker.
        timeout_ns: Bound of the whole hand-over.

    Returns:
        Whether all leaderships were transferred, at the end.
    """
    cluster = core.node.cluster
    assert cluster is not None
    session = cluster.session
    began = led = heard = core.clock.now()
    session.want_shutdown = True
    session.hurry(began)
    core.node.on_timer(began, core.clock.wall_ns())
    while not session.may_stop:
        now = core.clock.now()
        if core.consensus.leader is not None:
            led = now
        if core.is_connected:
            heard = now
        wait_ns = leader_wait_ns(core.node.state, core.consensus.voters, core.node.broker)
        if now - began >= timeout_ns or now - led >= wait_ns or now - heard >= SILENT_NS:
            break
        yield
    yield from _transfer(core)
    return session.may_stop


def _transfer(core: Core) -> Generator[None, None, None]:
    """Transfer the leadership of the metadata group to another live voter, with a short bound."""
    began = core.clock.now()
    while core.consensus.is_leader and core.clock.now() - began < TRANSFER_NS:
        target = _successor(core)
        if target is None:
            return
        with contextlib.suppress(LiftbridgeError):
            core.consensus.transfer(target)
        yield


def _successor(core: Core) -> BrokerId | None:
    """Return the other voter with the longest log among live brokers that are not stopping."""
    brokers = core.node.state.brokers
    living = [
        (core.consensus.match(peer) or 0, BrokerId(peer.broker))
        for peer in core.consensus.voters
        if peer != core.me and (known := brokers.get(BrokerId(peer.broker))) and known.can_lead
    ]
    return max(living)[1] if living else None

"""The session of a broker with its cluster: registration, and orderly hand-over.

Every request here is repeated until its effect shows in the applied metadata: a message, a leader
or an answer may be lost at any time, and each command is idempotent.
"""

import asyncio
import contextlib
from importlib import metadata as packages
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
from liftbridge_broker.model.ids import BrokerId, Instant, StreamName
from liftbridge_broker.model.listeners import ListenerAddress
from liftbridge_broker.model.streams import MILLISECOND_NS, StreamOverrides
from liftbridge_broker.model.subjects import CURSORS_STREAM, internal_subject
from liftbridge_broker.node.metadata.leader_wait import leader_wait_ns
from liftbridge_broker.node.replicas.claims import quarantined_partitions, verified_partitions
from liftbridge_broker.server.core import Core
from liftbridge_broker.server.limits import replicas_max
from liftbridge_broker.server.progress import Progress

SECOND_NS: Final = 1_000_000_000
LOOK_SECONDS: Final = 0.02
"""Interval between two checks of state that no applied command announces."""

PROPOSAL_NS: Final = 1 * SECOND_NS
"""Time after which a proposal without an answer is repeated."""

PAUSE_NS: Final = 100 * MILLISECOND_NS
"""Time between a refusal and the next attempt."""

SILENT_NS: Final = 1 * SECOND_NS
TRANSFER_NS: Final = 1 * SECOND_NS


class _Attempts:
    """One command, proposed until its effect shows in the metadata.

    Args:
        core: The broker.
        command: The command; must be idempotent.
        refused_ns: Time for which definite refusals are ignored, because their cause is temporary:
            the session of the previous process has not ended.
    """

    def __init__(self, core: Core, command: Command, refused_ns: int) -> None:
        self._core = core
        self._command = command
        self._refusals_end = Instant(core.clock.now() + refused_ns)
        self._next_at = core.clock.now()
        self._answer: asyncio.Future[object] | None = None

    def make(self) -> None:
        """Propose if due; no-op while no leader is known.

        Raises:
            LiftbridgeError: The metadata refused permanently.
        """
        now = self._core.clock.now()
        if self._answer is not None and self._answer.done():
            outcome, self._answer = self._answer.result(), None
            if isinstance(outcome, LiftbridgeError):
                self._note(outcome, now)
        if now < self._next_at or self._core.consensus.leader is None:
            return
        self._next_at = Instant(now + PROPOSAL_NS)
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._core.node.propose(self._command, now, answer.set_result)

    def _note(self, error: LiftbridgeError, now: Instant) -> None:
        passes = isinstance(error, InternalError | UnavailableError)
        if not passes and (
            now >= self._refusals_end or not isinstance(error, FailedPreconditionError)
        ):
            raise error
        self._next_at = Instant(now + PAUSE_NS)


async def _look_again(core: Core) -> None:
    """Wait for a metadata change, but at most `LOOK_SECONDS`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS):
            await core.changed.wait()
    core.changed.clear()


async def register(core: Core, port: int, listeners: tuple[ListenerAddress, ...] = ()) -> None:
    """Start a broker session, receive from NATS, create the broker's own streams.

    Returns when the broker may lead; never without a quorum of the metadata group.

    Args:
        core: The broker.
        port: Bound client port; advertised unless another is configured.
        listeners: Addresses of the further listeners.

    Raises:
        LiftbridgeError: The metadata refused.
    """
    own = await _begin(core, port)
    core.store.begin_session(core.node.state.applied_index, core.clock.now())
    await advertise(core, listeners)
    core.node.listen()
    await _be_unfenced(core, own)
    if core.options.cursors.partitions:
        await _create_cursors(core)


async def _begin(core: Core, port: int) -> BrokerState:
    """Join the metadata group, and wait until this broker has applied its registration."""
    options, identity = core.options, core.store.identity
    command = RegisterBroker(
        broker=identity.broker_id,
        incarnation_id=core.incarnation_id,
        data_dir_id=identity.data_dir_id,
        host=options.listen.advertised_host,
        port=options.listen.advertised_port or port,
        previous_broker_epoch=core.store.clean_broker_epoch or 0,
        clean_partitions=verified_partitions(core.node),
        known_index=core.store.known_index,
        quarantined_partitions=quarantined_partitions(core.node),
        zone=options.clustering.zone,
        version=packages.version("liftbridge-broker"),
        feature_level=FEATURE_LEVEL,
        started=core.clock.wall_ns(),
        replicas_max=replicas_max(core.options.data.directory),
    )
    attempts = _Attempts(core, command, 2 * options.clustering.session_ns)
    progress = Progress(core.clock, core.observer)
    while (own := core.registration) is None:
        core.joining.on_timer(core.clock.now())
        if core.joining.is_member:
            attempts.make()
        progress.note(_awaited(core))
        await _look_again(core)
    return own


def _awaited(core: Core) -> str:
    """Describe the cause of the wait for the session."""
    if core.joining.is_member:
        leader = core.consensus.leader
        if leader is not None:
            return f"registration by {leader.broker}"
        voters = ", ".join(peer.broker for peer in core.consensus.voters)
        return f"a leader of the metadata group, whose voters are {voters}"
    leader = core.joining.leader
    return "a cluster with a leader" if leader is None else f"admission by {leader.broker}"


async def advertise(core: Core, listeners: tuple[ListenerAddress, ...]) -> None:
    """Announce the broker's further listeners to clients through the metadata.

    Returns once the applied metadata have them, or the session has ended.

    Args:
        core: The broker, registered.
        listeners: All further listeners; those of the last start count until this announcement.

    Raises:
        LiftbridgeError: The metadata refused.
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
            return  # another process has the session and announces its addresses
        progress.note("the cluster to record the listeners")
        await _look_again(core)
        own = core.registration
    if own is not None:
        told = [f"{name}={host}:{port}" for name, host, port in listeners]
        core.observer.transition("listeners_advertised", {"listeners": told})


async def _be_unfenced(core: Core, registered: BrokerState) -> None:
    """Wait until the metadata leader unfences this broker; a single broker unfences itself."""
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
        await _look_again(core)


async def _create_cursors(core: Core) -> None:
    """Ensure the stream that keeps cursors exists; the first broker creates it."""
    cursors = core.options.cursors
    command = CreateStream(
        name=StreamName(CURSORS_STREAM),
        subject=internal_subject(core.options.clustering.namespace, "cursors"),
        partitions=cursors.partitions,
        replication_factor=cursors.replication_factor,
        overrides=StreamOverrides(
            compact_enabled=True,
            auto_pause_ms=cursors.auto_pause_ns // MILLISECOND_NS,
            auto_pause_disable_if_subscribers=True,
        ),
        creation_timestamp=core.clock.wall_ns(),
        is_internal=True,
    ).with_defaults(core.node.options.defaults)
    attempts = _Attempts(core, command, 2 * core.options.clustering.session_ns)
    progress = Progress(core.clock, core.observer)
    with contextlib.suppress(AlreadyExistsError):
        while core.node.state.stream(CURSORS_STREAM) is None:
            attempts.make()
            progress.note(f"the stream {CURSORS_STREAM}")
            await _look_again(core)


# -- the end of a session -------------------------------------------------------------------------


def has_company(core: Core) -> bool:
    """Return whether other brokers could take over this broker's partitions or vote without it."""
    if core.registration is None or core.node.cluster is None:
        return False
    others = [one for one in core.node.state.brokers.values() if one.broker != core.node.broker]
    return any(not one.removed for one in others) or len(core.consensus.voters) > 1


async def hand_over(core: Core, timeout_ns: int) -> bool:
    """Controlled shutdown.

    Move this broker's leaderships, and wait until the new leaders know of it.

    Gives up if no metadata leader is known for `leader_wait_ns`, for example because all brokers
    stop at once, or if nothing can be sent to other brokers for `SILENT_NS`.

    Args:
        core: The broker.
        timeout_ns: Bound of the whole hand-over.

    Returns:
        Whether all leaderships were transferred.
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
        await _look_again(core)
    await _transfer(core)
    return session.may_stop


async def _transfer(core: Core) -> None:
    """Transfer the leadership of the metadata group to another live voter, with a short bound."""
    began = core.clock.now()
    while core.consensus.is_leader and core.clock.now() - began < TRANSFER_NS:
        target = _successor(core)
        if target is None:
            return
        with contextlib.suppress(LiftbridgeError):
            core.consensus.transfer(target)
        await _look_again(core)


def _successor(core: Core) -> BrokerId | None:
    """Return the voter with the longest log among other brokers that are alive and not stopping."""
    brokers = core.node.state.brokers
    living = [
        (core.consensus.match(peer) or 0, BrokerId(peer.broker))
        for peer in core.consensus.voters
        if peer != core.me and (known := brokers.get(BrokerId(peer.broker))) and known.can_lead
    ]
    return max(living)[1] if living else None

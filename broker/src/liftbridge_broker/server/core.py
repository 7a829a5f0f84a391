"""The core of a broker (`node.assembly`) on this machine: its options and random values."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from random import SystemRandom

from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.assembly.core import Core, CoreOptions
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.files import Files
from liftbridge_broker.ports.master_keys import NO_MASTER_KEYS, MasterKeys
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.ports.timer import Timer
from liftbridge_broker.server.wiring import (
    control_options,
    node_options,
    raft_options,
    replication_limits,
    role_of,
    store_options,
)
from liftbridge_broker.storage.cleaning.compaction import SubmitCompaction
from liftbridge_broker.storage.directory import Identity
from liftbridge_broker.wire.peer.bodies import ORIGIN_SIZE
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING, Keyring


def make_core(
    options: BrokerOptions,
    files: Files,
    clock: Clock,
    timer: Timer,
    observer: Observer,
    *,
    on_failed: Callable[[LiftbridgeError], None],
    on_change: Callable[[], None],
    runner: SubmitCompaction | None = None,
    keys: Keyring = OPEN_KEYRING,
    masters: MasterKeys = NO_MASTER_KEYS,
) -> Core:
    """Create the core of one start; for the arguments see `Core`."""
    return Core(
        core_options(options, masters),
        files,
        clock,
        timer,
        observer,
        SystemRandom(),
        lambda: secrets.token_bytes(ORIGIN_SIZE),
        on_failed,
        lambda _change: on_change(),
        runner,
        keys,
    )


def core_options(options: BrokerOptions, masters: MasterKeys = NO_MASTER_KEYS) -> CoreOptions:
    """Options of one start."""
    clustering = options.clustering
    broker = BrokerId(clustering.server_id or secrets.token_hex(11))
    return CoreOptions(
        fresh=Identity(secrets.token_hex(16), broker),
        configured=clustering.server_id,
        incarnation_id=_incarnation_id(clustering.start_id),
        role=role_of(clustering.bootstrap),
        peers=clustering.bootstrap.peers,
        node=replace(node_options(options, broker), masters=masters),
        store=store_options(options),
        raft=raft_options(clustering),
        control=control_options(clustering),
        replication=replication_limits(clustering.replication),
        snapshots_kept=clustering.snapshot_retain,
        snapshot_entries=clustering.snapshot_threshold,
        scrub_interval_ns=options.data.scrub_interval_ns,
        scrub_first=secrets.randbelow(1 << 32),
    )


def _incarnation_id(given: str) -> str:
    """Give this start an id of its own: two starts of one pod differ."""
    return f"{given}.{secrets.token_hex(8)}" if given else secrets.token_hex(16)


async def scrub(core: Core) -> None:
    """Verify stored data, piece by piece, until cancelled; no-op when scrubbing is off."""
    while core.options.scrub_interval_ns > 0:
        pause_ns = core.scrubbing.step()
        await asyncio.sleep(pause_ns / SECOND_NS)

"""One broker on its ports: data recovered, node made, registered, closed again.

The process puts it on a disk, NATS and the machine's clocks; tests of users put it on files and
NATS in memory and on a clock that they turn. What a broker does is the same in both.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata as packages
from random import SystemRandom
from typing import Final

from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.controller.commands import (
    FEATURE_LEVEL,
    Command,
    CreateStream,
    RegisterBroker,
    UnfenceBroker,
)
from liftbridge_broker.controller.records import BrokerEpochAnswer
from liftbridge_broker.errors import AlreadyExistsError, FilesError, LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, StreamName
from liftbridge_broker.model.streams import MILLISECOND_NS, StreamOverrides
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.node.consensus import RaftConsensus
from liftbridge_broker.node.metadata import MetadataDriver
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.peer_link import NoPeers, PeerLink
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.files import Files, Token
from liftbridge_broker.ports.messaging import Messaging
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.ports.timer import Timer
from liftbridge_broker.raft.types import Configuration, Peer
from liftbridge_broker.server.wiring import METADATA_DIRECTORY, node_options, store_options
from liftbridge_broker.storage.compaction import CompactionRunner
from liftbridge_broker.storage.directory import Identity
from liftbridge_broker.storage.raft_log import RaftLog
from liftbridge_broker.storage.store import LogStore, open_store
from liftbridge_broker.wire.peer_bodies import ORIGIN_SIZE

METADATA_TOKEN: Final = Token(1)


class _Tokens:
    """Tokens of file calls, each given once."""

    def __init__(self) -> None:
        self._last = METADATA_TOKEN

    def __call__(self) -> Token:
        self._last = Token(self._last + 1)
        return self._last


@dataclass(slots=True, eq=False)
class Core:
    """Store, metadata and node of one start; the owner pumps events into `node`.

    Attributes:
        options: What the broker was told; settings are reloaded by the owner.
        on_failed: Told when the data directory cannot be written any more: the broker must end.
        runner: Compacts logs elsewhere; `None` has it done here, in steps.
        store: The logs, after `open`.
        node: The broker without I/O, after `open`.
        is_registered: Whether it has begun its session.
    """

    options: BrokerOptions
    files: Files
    clock: Clock
    timer: Timer
    observer: Observer
    on_failed: Callable[[LiftbridgeError], None]
    runner: CompactionRunner | None = None
    store: LogStore = field(init=False)
    node: Node = field(init=False)
    is_registered: bool = False
    _metadata: RaftConsensus = field(init=False)
    _incarnation_id: str = field(init=False)

    def open(self, messaging: Callable[[BrokerId], Messaging]) -> None:
        """Recover the data directory and open every partition in it; nothing is heard yet.

        Args:
            messaging: Makes the link to NATS, which carries the broker's id; called once.

        Raises:
            LiftbridgeError: The directory cannot be used.
        """
        options, now = self.options, self.clock.now()
        tokens = _Tokens()
        broker = BrokerId(options.clustering.server_id or secrets.token_hex(11))
        self.store = open_store(
            self.files,
            Identity(secrets.token_hex(16), broker),
            store_options(options),
            observer=self.observer,
            new_token=tokens,
            now=now,
            wall_ns=self.clock.wall_ns(),
            runner=self.runner,
        )
        self.store.on_failed = lambda reason: self.on_failed(FilesError(reason))
        driver = self._open_metadata()
        identity = self.store.identity
        self._compare_id(identity.broker_id)
        self.node = Node(
            node_options(options, identity.broker_id),
            self.files,
            self.store,
            driver,
            messaging(identity.broker_id),
            self.observer,
            self.timer,
            METADATA_TOKEN,
            tokens,
        )
        self.node.open_partitions(self.clock.now())
        self.store.begin(self.clock.now())
        self.observer.transition(
            "metadata_recovered",
            {
                "applied_index": driver.state.applied_index,
                "streams": len(driver.state.streams),
                "duration_ms": (self.clock.now() - now) // MILLISECOND_NS,
            },
        )

    def _compare_id(self, stored: BrokerId) -> None:
        """Warn when a data directory is another broker's: the stored id wins (spec 4.1)."""
        configured = self.options.clustering.server_id
        if configured not in ("", stored):
            path = self.options.data.directory
            fields = {"configured": configured, "stored": stored, "path": path}
            self.observer.transition("server_id_ignored", fields)

    def _open_metadata(self) -> MetadataDriver:
        clustering = self.options.clustering
        identity = self.store.identity
        me = Peer(identity.broker_id, identity.data_dir_id)
        log = RaftLog.open(
            self.files,
            directory=METADATA_DIRECTORY,
            bootstrap=Configuration((me,)),
            index_min=self.store.proven_index,
            snapshots_kept=clustering.snapshot_retain,
        )
        self._incarnation_id = secrets.token_hex(16)
        self._metadata, recovered = RaftConsensus.open(
            log,
            me,
            PeerLink(NoPeers(), me.broker, self._incarnation_id),
            origin=secrets.token_bytes(ORIGIN_SIZE),
            sync_token=METADATA_TOKEN,
            rng=SystemRandom(),
            now=self.clock.now(),
        )
        for finding in recovered.findings:
            self.observer.transition("metadata_repaired", {"finding": finding})
        return MetadataDriver(
            self._metadata,
            recovered,
            on_change=lambda _index, records: self.node.on_change(records),
            on_failed=self.on_failed,
            on_snapshot=self._on_snapshot,
            snapshot_entries=clustering.snapshot_threshold,
        )

    def _on_snapshot(self, index: MetadataIndex, size_bytes: int) -> None:
        """The metadata asked for a snapshot; a full disk puts it off."""
        if self._metadata.snapshot_index == index:
            self.observer.transition(
                "metadata_snapshot_taken", {"index": index, "bytes": size_bytes}
            )

    async def register(self) -> None:
        """Begin a broker session, hear NATS, create what the broker itself needs.

        Raises:
            LiftbridgeError: The metadata refused.
        """
        listen, identity = self.options.listen, self.store.identity
        registered = await self._propose(
            RegisterBroker(
                broker=identity.broker_id,
                incarnation_id=self._incarnation_id,
                data_dir_id=identity.data_dir_id,
                host=listen.advertised_host,
                port=listen.advertised_port,
                previous_broker_epoch=self.store.clean_broker_epoch or 0,
                clean_partitions=self.node.verified_partitions(),
                version=packages.version("liftbridge-broker"),
                feature_level=FEATURE_LEVEL,
            )
        )
        assert isinstance(registered, BrokerEpochAnswer)
        # The answer came by way of the log: this broker has applied its registration.
        await self._propose(
            UnfenceBroker(
                broker=identity.broker_id,
                broker_epoch=registered.broker_epoch,
                applied_index=self.node.state.applied_index,
            )
        )
        self.is_registered = True
        self.node.listen()
        cursors = self.options.cursors
        if cursors.partitions:
            command = CreateStream(
                name=StreamName(CURSORS_STREAM),
                subject=f"{self.options.clustering.namespace}.cursors",
                partitions=cursors.partitions,
                replication_factor=cursors.replication_factor,
                overrides=StreamOverrides(
                    compact_enabled=True,
                    auto_pause_ms=cursors.auto_pause_ns // MILLISECOND_NS,
                    auto_pause_disable_if_subscribers=True,
                ),
                creation_timestamp=self.clock.wall_ns(),
                is_internal=True,
            )
            with contextlib.suppress(AlreadyExistsError):
                await self._propose(command.with_defaults(self.node.options.defaults))

    async def _propose(self, command: Command) -> object:
        """Propose and wait for the answer; the metadata bounds the wait."""
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.node.propose(command, self.clock.now(), answer.set_result)
        outcome = await answer
        if isinstance(outcome, LiftbridgeError):
            raise outcome
        return outcome

    @property
    def epoch(self) -> int | None:
        """Broker epoch for the clean marker; `None` when there must be none.

        A broker that was stopped before it registered leaves the directory as it found it: clean
        only if the stop before was.
        """
        if self.is_registered:
            return self.node.state.brokers[self.node.broker].broker_epoch
        return self.store.clean_broker_epoch

    def close(self, epoch: int | None) -> None:
        """Sync everything and mark the directory as clean; the files are the owner's to close.

        Args:
            epoch: See `epoch`; `None` after a stop out of order, which leaves no mark.

        Raises:
            LiftbridgeError: The disk failed.
        """
        if epoch is None:
            self.store.abandon()
        else:
            self.store.close(epoch)
        self._metadata.close()

"""Context of the services of `liftbridge.ext.v1.Admin`, with or without a cluster."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.message import Message

from liftbridge_broker.access.api_tokens import ApiToken
from liftbridge_broker.api.context import refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.controller.commands import Command
from liftbridge_broker.controller.state import BrokerState, ClusterState, StreamState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
    UnavailableError,
)
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.node import Node
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.metadata import MetadataConsensus
from liftbridge_proto.ext.v1 import admin_pb2

LIST_MAX = 1_000
"""Maximum number of partitions in a request."""


class Certificate(NamedTuple):
    """A certificate file in use: the setting that names it, and the SHA-256 of its bytes."""

    setting: str
    fingerprint: str


class Setting(NamedTuple):
    """A setting in force, as the configuration describes it.

    Attributes:
        key: Dotted name.
        text: Value; secrets are masked.
        source: Source of the value; empty for the default.
        is_reloadable: Whether a new value needs no restart.
        has_effect: Whether the value has any effect.
    """

    key: str
    text: str
    source: str
    is_reloadable: bool
    has_effect: bool


class Reloaded(NamedTuple):
    """Changed settings: those in force now, and those that need a restart."""

    applied: Sequence[str]
    restart_needed: Sequence[str]


def _nothing() -> tuple[()]:
    return ()


def _is_not() -> bool:
    return False


def _do_nothing() -> None: ...


def _unchanged() -> Reloaded:
    return Reloaded((), ())


class NatsFacts(NamedTuple):
    """Address of the NATS server in use, empty for none, and of all servers of its cluster."""

    server: str
    cluster: Sequence[str]


def _no_server() -> NatsFacts:
    return NatsFacts("", ())


def _make_none(_done: Callable[[ApiToken, str], None]) -> None:
    raise UnavailableError("this broker cannot make API tokens")


def _is_up() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """Facts that only the process knows.

    Attributes:
        version: Version of the software.
        start_id: Identifies this start.
        voters_max: Brokers that become voters automatically; further ones must be promoted.
        configuration_hash: Hash of the configuration it was started with.
        restart_needed: Settings that changed since the start and need a restart.
        settings: All settings in force.
        reload: Reads the configuration again; if it is invalid, raises `LiftbridgeError` and
            changes nothing.
        is_retired: Whether the data directory is marked as retired.
        retire: Marks the directory as retired, durably; raises `FilesError` if the disk fails.
        certificates: Certificates in use.
        are_peers_connected: Whether the links to other brokers are up.
        nats: State of the NATS servers.
        peer_keys: Ids of the keys with which brokers authenticate one another; `open` for none.
        make_token: Makes an API token and passes it on with its hash; raises `UnavailableError` if
            many are being made or verified.
    """

    version: str
    start_id: str
    voters_max: int
    configuration_hash: str = ""
    restart_needed: Callable[[], Sequence[str]] = _nothing
    settings: Callable[[], Sequence[Setting]] = _nothing
    reload: Callable[[], Reloaded] = _unchanged
    is_retired: Callable[[], bool] = _is_not
    retire: Callable[[], None] = _do_nothing
    certificates: Callable[[], Sequence[Certificate]] = _nothing
    are_peers_connected: Callable[[], bool] = _is_up
    nats: Callable[[], NatsFacts] = _no_server
    peer_keys: Callable[[], Sequence[str]] = _nothing
    make_token: Callable[[Callable[[ApiToken, str], None]], None] = _make_none


@dataclass(slots=True, eq=False)
class AdminContext:
    """State of the broker for the services of the operator port.

    Attributes:
        me: This broker with its data directory.
        clock: Both clocks.
        facts: Facts that only the process knows.
        found: Founds a cluster with these members and this id; `None` once there is one. Raises a
            `LiftbridgeError` if that is not allowed; returns false if the same cluster was already
            founded.
        running: The node and its member of the metadata group, once there is a cluster.
    """

    me: Peer
    clock: Clock
    facts: ProcessFacts
    found: Callable[[Sequence[Peer], str], bool] | None = None
    running: tuple[Node, MetadataConsensus] | None = field(default=None)

    @property
    def node(self) -> Node:
        """The node; raises `UnavailableError` before there is a cluster."""
        return self._running()[0]

    @property
    def consensus(self) -> MetadataConsensus:
        """The metadata group; raises `UnavailableError` before there is a cluster."""
        return self._running()[1]

    @property
    def state(self) -> ClusterState:
        """Applied metadata; raises `UnavailableError` before there is a cluster."""
        return self._running()[0].state

    def _running(self) -> tuple[Node, MetadataConsensus]:
        if self.running is None:
            raise UnavailableError(
                f"broker {self.me.broker} has no cluster yet: it is looking for one or waiting "
                "for Bootstrap"
            )
        return self.running

    @property
    def own(self) -> BrokerState:
        """The registration of this process.

        Raises:
            UnavailableError: It has not been applied on this broker.
        """
        known = self.state.brokers.get(BrokerId(self.me.broker))
        if known is None or known.incarnation_id != self.facts.start_id:
            raise UnavailableError(f"broker {self.me.broker} is not registered yet")
        return known

    def check_leader(self) -> None:
        """Refuse an operation that needs the leader of the metadata group.

        Raises:
            FailedPreconditionError: Another broker leads.
            UnavailableError: No leader is known.
        """
        if self.consensus.is_leader:
            return
        leader, me = self.consensus.leader, self.me.broker
        if leader is None:
            raise UnavailableError(f"broker {me} knows no leader of the metadata group")
        raise FailedPreconditionError(
            f"broker {me} does not lead the metadata group, broker {leader.broker} does "
            f"(term {self.consensus.term})"
        )

    def propose(self, call: Call, command: Command, response: Callable[[object], Message]) -> None:
        """Propose a command; answer the call with the result of `response` on its outcome."""

        def answered(outcome: object) -> None:
            if isinstance(outcome, LiftbridgeError):
                refuse(call, outcome)
            else:
                call.reply(response(outcome).SerializeToString())

        self.node.propose(command, self.clock.now(), answered)

    def confirm(self, call: Call, answer: Callable[[], Iterator[None]]) -> None:
        """Answer a call by steps, with metadata that include every change acknowledged so far."""

        def confirmed(error: LiftbridgeError | None) -> None:
            if error is not None:
                refuse(call, error)
            else:
                call.go_on(answer())

        self.node.context.metadata.read(confirmed)
        self.node.context.wake_soon()

    def change_group(self, change: Callable[[], None]) -> None:
        """Request a change of the metadata group.

        Raises:
            LiftbridgeError: This broker does not lead it, or the change is not allowed now.
        """
        self.check_leader()
        node = self.node
        change()
        node.context.metadata.catch_up()
        node.context.wake_soon()

    # -- names ----------------------------------------------------------------------------------

    def check_stream(self, name: str) -> None:
        """Refuse the name of a stream that does not exist.

        Raises:
            NotFoundError: The stream does not exist.
        """
        if self.state.stream(name) is None:
            raise NotFoundError(f"no such stream: {name}")

    def find(self, ref: admin_pb2.PartitionRef) -> tuple[StreamState, PartitionState]:
        """Find a partition by stream and number.

        Raises:
            NotFoundError: The partition does not exist.
        """
        stream = self.state.stream(ref.stream)
        if stream is None:
            raise NotFoundError(f"no such stream: {ref.stream}")
        partition = stream.partition(ref.partition)
        if partition is None:
            raise NotFoundError(f"no such partition: {ref.partition} of stream {ref.stream}")
        return stream, partition

    def broker(self, name: str) -> BrokerState:
        """Find a broker that was not removed.

        Raises:
            InvalidRequestError: The name is empty.
            NotFoundError: The broker does not exist.
        """
        if not name:
            raise InvalidRequestError("broker: is required")
        known = self.state.brokers.get(BrokerId(name))
        if known is None or known.removed:
            raise NotFoundError(f"no such broker: {name}")
        return known


def peer_of(member: admin_pb2.Member) -> Peer:
    """Convert a member to a peer of the metadata group.

    Raises:
        InvalidRequestError: A part of its identity is missing.
    """
    if not member.broker or not member.data_dir_id:
        raise InvalidRequestError("member: broker and data_dir_id are required")
    return Peer(BrokerId(member.broker), member.data_dir_id)


def unexpected(outcome: object) -> InternalError:
    """Create the error for an unexpected outcome of a command."""
    return InternalError(f"unexpected answer: {type(outcome).__name__}")

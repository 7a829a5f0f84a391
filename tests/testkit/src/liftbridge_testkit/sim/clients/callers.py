"""Callers: clients with a name, which do what rules may allow or forbid.

They call the services of the API themselves, which check rights before all else: subscriptions,
bulk reads and publishing calls that go on for a while, and calls with one answer. Each decision is
checked when it falls (`invariants.access`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, NamedTuple

from google.protobuf.message import Message

from liftbridge_broker.access.rules import Operation, ResourceKind
from liftbridge_broker.api.batches import FetchBatchesCall
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.cursors import CursorService
from liftbridge_broker.api.groups.members import GroupMemberService
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.turns import Turns
from liftbridge_broker.api.metadata import MetadataService
from liftbridge_broker.api.publish_async import PublishAsyncCall
from liftbridge_broker.api.subscribe import SubscribeCall
from liftbridge_broker.errors import LiftbridgeError, PermissionDeniedError
from liftbridge_broker.model.ids import Instant, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.partition.runs import POLICY_ALL
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2, groups_pb2
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Serving
from liftbridge_testkit.sim.clients.client_end import PREFIX_SIZE, ClientEnd
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.clients.named import API, DATA, GROUPS, Named
from liftbridge_testkit.sim.history import History, Outcome, Write
from liftbridge_testkit.sim.invariants.access import Act, Running
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import World

GUARDED: Final = "guarded"
"""Stream that callers use."""

CURSOR: Final = "place"
GROUP: Final = "incremental"
READ: Final = (Act(Operation.READ, ResourceKind.STREAM, GUARDED),)
PUBLISH: Final = (Act(Operation.PUBLISH, ResourceKind.STREAM, GUARDED),)
REVOKED: Final = "revocation during a call"
"""Fault: the rules forbid what a running call does."""


class Single(NamedTuple):
    """A call with one answer.

    Attributes:
        method: Path of the method.
        serve: Serves it.
        request: The request.
        acts: What it does.
    """

    method: str
    serve: Callable[[Context, Call, bytes], Iterator[None] | None]
    request: Message
    acts: tuple[Act, ...]


def _cursor(operation: Operation) -> tuple[Act, ...]:
    return (Act(operation, ResourceKind.CURSOR, f"{GUARDED}/{CURSOR}"),)


SINGLE: Final = (
    Single(
        API + "SetCursor",
        lambda context, call, raw: CursorService(context).set(call, raw),
        api_pb2.SetCursorRequest(stream=GUARDED, cursorId=CURSOR, offset=1),
        _cursor(Operation.SET),
    ),
    Single(
        API + "FetchCursor",
        lambda context, call, raw: CursorService(context).fetch(call, raw),
        api_pb2.FetchCursorRequest(stream=GUARDED, cursorId=CURSOR),
        _cursor(Operation.READ),
    ),
    Single(
        API + "FetchPartitionMetadata",
        lambda context, call, raw: MetadataService(context, host="").fetch_partition(call, raw),
        api_pb2.FetchPartitionMetadataRequest(stream=GUARDED),
        (Act(Operation.DESCRIBE, ResourceKind.STREAM, GUARDED),),
    ),
    Single(
        GROUPS + "DescribeGroup",
        lambda context, call, raw: GroupMemberService(context).describe(call, raw),
        groups_pb2.DescribeGroupRequest(group_id=GROUP),
        (Act(Operation.DESCRIBE, ResourceKind.GROUP, GROUP),),
    ),
)


class Streaming(NamedTuple):
    """A call that goes on.

    Attributes:
        method: Path of the method.
        open: Begins to serve it.
        request: Its only request; `None` for a call that sends many.
    """

    method: str
    open: Callable[[Context, Call, Turns], object]
    request: Message | None


STREAMING: Final[Mapping[str, Streaming]] = {
    "subscription": Streaming(
        API + "Subscribe",
        SubscribeCall,
        api_pb2.SubscribeRequest(stream=GUARDED, startPosition=api_pb2.EARLIEST),
    ),
    "bulk read": Streaming(
        DATA + "FetchBatches",
        FetchBatchesCall,
        data_pb2.FetchBatchesRequest(stream=GUARDED, follow=True),
    ),
    "publishing call": Streaming(
        API + "PublishAsync",
        lambda context, call, _turns: PublishAsyncCall(context, call),
        None,
    ),
}


@dataclass(slots=True, eq=False)
class Open:
    """A running call as its client knows it.

    Attributes:
        kind: Name in `STREAMING`.
        machine: Where it runs.
        incarnation: Process that serves it.
        call: The call, used only in turns of that process.
        partition: Partition of `GUARDED` when the call began.
        waiting: Messages without an outcome, by correlation id.
        is_begun: Whether it sent anything.
        is_denied: Whether the rules ended it.
        was_allowed: Whether a message was taken; it may then see a revocation.
    """

    kind: str
    machine: Machine
    incarnation: int
    partition: PartitionId
    call: Call | None = None
    waiting: dict[str, Write] = field(default_factory=dict)
    is_begun: bool = False
    is_denied: bool = False
    was_allowed: bool = False


@dataclass(slots=True)
class Caller:
    """One caller from `start` until `stop`.

    Attributes:
        named: Whom it acts for.
        think_ns: Maximum time between two calls or messages.
    """

    world: World
    calls: Calls
    directory: Directory
    history: History
    named: Named
    think_ns: int = 300 * MILLISECOND_NS
    is_stopped: bool = False
    _random: Random = field(init=False)
    _publisher: int = field(init=False)
    _open: dict[str, Open] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = Random(f"caller {self.world.seed} {self.named.who.name}")
        self._publisher = self.history.new_publisher()

    @property
    def client(self) -> str:
        """Name of the client in cuts of links."""
        return f"caller-{self.named.who.name}"

    def start(self) -> None:
        """Begin to call."""
        self._later()

    def stop(self) -> None:
        """Begin nothing more."""
        self.is_stopped = True

    def _later(self) -> None:
        if not self.is_stopped:
            self.world.scheduler.after(self._random.randrange(1, self.think_ns), self._go)

    def _go(self) -> None:
        if self.is_stopped:
            return
        choice = self._random.choice((*STREAMING, "publishing call", ""))
        if not choice:
            self._ask(self._random.choice(SINGLE))
            return
        one = self._open.get(choice)
        if one is None:
            self._begin(choice)
        elif choice == "publishing call" and self._random.randrange(8):
            self._publish(one)
        elif self._random.randrange(4) == 0:
            self._cancel(one)
        else:
            self._later()

    # -- calls with one answer ----------------------------------------------------------------

    def _ask(self, single: Single) -> None:
        state = self.directory.state()
        group = None if state is None else state.groups.get(GROUP)
        machine = self.directory.any_machine()
        if single.method.startswith(GROUPS) and group is not None:
            machine = self.world.machines.get(group.coordinator, machine)

        def serve(serving: Serving, _now: Instant, _wall_ns: int, answer: Answer) -> None:
            self.named.ask(
                serving,
                machine,
                single.method,
                partial(single.serve, self.named.context(serving)),
                single.request,
                single.acts,
                lambda _answer, code: answer(code),
            )

        self.calls.call(self.client, machine, serve, lambda _outcome: self._later())

    # -- calls that go on ---------------------------------------------------------------------

    def _begin(self, kind: str) -> None:
        place = self.directory.find(GUARDED, 0)
        if place is None or place.leader is None:
            self._later()
            return
        machine = place.leader
        one = Open(kind, machine, machine.incarnation, place.partition)

        def serve(serving: Serving, _now: Instant, _wall_ns: int, answer: Answer) -> None:
            one.incarnation = machine.incarnation
            self._open[kind] = one
            machine.ended[one] = lambda: self._lost(one)
            self._serve(one, serving)
            answer(None)

        self.calls.call(self.client, machine, serve, lambda _outcome: self._later())

    def _serve(self, one: Open, serving: Serving) -> None:
        """Begin the call at the broker, in a turn of it."""
        streaming = STREAMING[one.kind]
        is_publishing = streaming.request is None
        end = ClientEnd(
            partial(self._answered if is_publishing else self._received, one),
            lambda _code, _text, error_code: self._finished(one, error_code),
        )
        call = one.call = self.named.call(serving, end, streaming.method)
        streaming.open(self.named.context(serving), call, Turns(lambda: 0))
        if streaming.request is None:
            return
        try:
            call.on_messages([streaming.request.SerializeToString()])
        except LiftbridgeError as error:
            call.refuse(error)
        if not one.is_denied:
            self.named.decided(one.machine, READ, is_denied=False)

    def _received(self, one: Open, frames: bytes) -> None:
        """Take what a call sends that reads; the handshake too tells that the stream exists."""
        assert one.call is not None
        self.named.decided(one.machine, READ, is_denied=False)
        if not one.is_begun:
            one.is_begun = True
            self.named.rules.begins(one.machine, Running(one.call, self.named.who, READ))
        elif one.kind == "subscription":
            for record in self.history.frames.records(frames):
                self.history.seen(one.partition, "", record)

    def _finished(self, one: Open, error_code: str) -> None:
        if error_code == PermissionDeniedError.code:
            one.is_denied = True
            self.named.decided(one.machine, READ, is_denied=True)
            if one.is_begun:
                self._count_revoked(one)
        self._closed(one)

    def _count_revoked(self, one: Open) -> None:
        self.world.coverage.count("fault", REVOKED)
        self.world.coverage.count("access", f"{one.kind} revoked")
        self.world.trace.note(self.world.now, self.client, one.kind, "revoked")

    def _closed(self, one: Open) -> None:
        """Forget a call that ended; what it published without an answer stays unknown."""
        one.machine.ended.pop(one, None)
        if one.call is not None:
            self.named.rules.ends(one.machine, one.call)
        self._lost(one)

    def _lost(self, one: Open) -> None:
        if self._open.get(one.kind) is one:
            del self._open[one.kind]
        waiting, one.waiting = one.waiting, {}
        for write in waiting.values():
            self.history.unknown(write)

    def _cancel(self, one: Open) -> None:
        """Leave a call: the broker learns of it in a turn of its own."""

        def cancel() -> None:
            if one.call is not None and one.call.is_open:
                one.call.cancel()
                self._closed(one)

        one.machine.turn(one.incarnation, cancel)
        self._later()

    # -- publishing ---------------------------------------------------------------------------

    def _publish(self, one: Open) -> None:
        """Send a message in a call that publishes."""
        write = self.history.invoke(
            self._publisher,
            one.partition,
            self.world.now,
            policy=POLICY_ALL,
            size=self._random.randrange(24, 100),
        )
        name = str(write.identity.sequence)
        one.waiting[name] = write
        request = api_pb2.PublishRequest(
            stream=GUARDED, value=write.value, ackPolicy=api_pb2.ALL, correlationId=name
        )

        def serve(_serving: Serving, _now: Instant, _wall_ns: int, answer: Answer) -> None:
            answer(None)
            call = one.call
            if call is None or not call.is_open or one.machine.incarnation != one.incarnation:
                return
            call.on_messages([request.SerializeToString()])
            if write.outcome is not Outcome.REFUSED:
                self.named.decided(one.machine, PUBLISH, is_denied=False)

        self.calls.call(self.client, one.machine, serve, lambda _outcome: self._later())

    def _answered(self, one: Open, frames: bytes) -> None:
        """Take answers to messages, in a turn of the broker."""
        at = 0
        while at < len(frames):
            end = at + PREFIX_SIZE + int.from_bytes(frames[at + 1 : at + PREFIX_SIZE])
            self._settle(one, api_pb2.PublishResponse.FromString(frames[at + PREFIX_SIZE : end]))
            at = end

    def _settle(self, one: Open, response: api_pb2.PublishResponse) -> None:
        write = one.waiting.pop(response.correlationId, None)
        if write is None:
            return
        now, ack = self.world.now, response.ack
        if not response.HasField("asyncError"):
            one.was_allowed = True
            self.history.acked(
                write, now, offset=ack.offset, leader_epoch=ack.leaderEpoch, is_committed=True
            )
        elif response.asyncError.code == api_pb2.PublishAsyncError.PERMISSION_DENIED:
            self.named.decided(one.machine, PUBLISH, is_denied=True)
            self.history.refused(write, now)
            if one.was_allowed:
                one.was_allowed = False
                self._count_revoked(one)
        else:
            self.history.unknown(write)

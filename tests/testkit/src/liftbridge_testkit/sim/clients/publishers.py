"""Publishers over gRPC: runs of messages with one ack policy, one or several in flight.

A plain publisher never sends a message twice. An idempotent publisher repeats a run with an unknown
outcome, with the same sequence numbers, until it knows the outcome.
"""

from dataclasses import dataclass
from typing import NamedTuple

from liftbridge_broker.controller.commands import InitPublisher
from liftbridge_broker.controller.state import PublisherState
from liftbridge_broker.errors import (
    ChangeNotMadeError,
    FencedPublisherError,
    IncorrectOffsetError,
    InternalError,
    LiftbridgeError,
    NotFoundError,
    OutcomeUnknownError,
    OutOfOrderError,
)
from liftbridge_broker.model.ids import Instant, PartitionId, PartitionNumber, StreamName
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.partition.runs import (
    POLICY_ALL,
    POLICY_NONE,
    PendingAck,
    PublishRun,
    Stored,
)
from liftbridge_broker.node.publishing.publisher_sequences import PublisherSequences, Sequences
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Lost, Serving
from liftbridge_testkit.sim.clients.directory import Directory, Place
from liftbridge_testkit.sim.history import History, Write
from liftbridge_testkit.sim.invariants.copies import check_latest_told
from liftbridge_testkit.sim.invariants.intake import publish
from liftbridge_testkit.sim.network import PPM
from liftbridge_testkit.sim.trace import Detail
from liftbridge_testkit.sim.world import World

RETRY_NS = 50 * MILLISECOND_NS
STORM_NS = 2 * MILLISECOND_NS
"""Maximum pause of a publisher under storm."""
_UNKNOWN = (OutcomeUnknownError, InternalError)
"""Refusals after which a record may still be stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherPlan:
    """Behaviour of one publisher.

    Attributes:
        stream: Stream it writes to.
        number: Partition of it.
        policy: Ack policy.
        think_ns: Longest pause between runs.
        run_max: Most messages of a run.
        size_max: Longest value.
        keys: Keys it chooses from; empty for none.
        deletes_ppm: Messages that delete their key, in millionths.
        window: Runs under way at a time; 1 for a synchronous one.
        is_idempotent: Whether its messages have sequence numbers; then `window` is 1.
        expects_offsets: Whether it uses optimistic concurrency; then runs have one message.
    """

    stream: str
    number: int = 0
    policy: int = POLICY_ALL
    think_ns: int = 20 * MILLISECOND_NS
    run_max: int = 4
    size_max: int = 200
    keys: tuple[bytes, ...] = ()
    deletes_ppm: int = 0
    window: int = 1
    is_idempotent: bool = False
    expects_offsets: bool = False


class Acked(NamedTuple):
    """Answer to a run: its offset, and whether it is committed for good."""

    stored: Stored
    is_committed: bool


@dataclass(slots=True)
class Sink:
    """Receives the ack of a run."""

    answer: Answer

    def acked(self, stored: Stored) -> None:
        """Implement `AckSink.acked`."""
        self.answer(stored)

    def refused(self, error: LiftbridgeError) -> None:
        """Implement `AckSink.refused`."""
        self.answer(error)


class Publisher:
    """One publisher from `start` until `stop`.

    Attributes:
        in_flight: Runs under way.
        is_stopped: Whether it starts no more runs.
        acked_count: Messages acked so far.
    """

    def __init__(
        self,
        world: World,
        calls: Calls,
        directory: Directory,
        history: History,
        plan: PublisherPlan,
    ) -> None:
        self.plan = plan
        self.in_flight = 0
        self.is_stopped = False
        self.acked_count = 0
        self.number = history.new_publisher()
        self.name = f"pub-{self.number}"
        self._world = world
        self._calls = calls
        self._directory = directory
        self._history = history
        self._random = world.new_random()
        self._stamp: PublisherState | None = None
        self._sequence = 0
        self._home: PartitionId | None = None
        self._expected = 0

    def start(self) -> None:
        """Begin to publish."""
        self._later()

    def stop(self) -> None:
        """Start no more runs.

        An idempotent publisher still repeats those with an unknown outcome.
        """
        self.is_stopped = True

    def _later(self, least_ns: int = 0) -> None:
        think_ns = STORM_NS if self._world.is_stormy else self.plan.think_ns
        delay = least_ns + self._random.randrange(think_ns + 1)
        self._world.scheduler.after(delay, self._go)

    def _go(self) -> None:
        if self.is_stopped or self.in_flight >= self.plan.window:
            return
        place = self._directory.find(self.plan.stream, self.plan.number)
        if place is None or place.leader is None:
            self._later(RETRY_NS)
            return
        if self.plan.is_idempotent and (self._stamp is None or self._home != place.partition):
            self._init(place)
            return
        self._publish(place)
        if self.in_flight < self.plan.window:
            self._later()

    # -- idempotence --------------------------------------------------------------------------

    def _init(self, place: Place) -> None:
        """Request an id and epoch; the answer includes what is stored of this publisher."""
        assert place.leader is not None
        self.in_flight += 1
        self._home = place.partition
        command = InitPublisher(stream=StreamName(self.plan.stream), publisher=self.name)

        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            node = serving.node

            def answered(outcome: object) -> None:
                if not isinstance(outcome, PublisherState):
                    answer(outcome)
                    return

                def found(told: Sequences | LiftbridgeError) -> None:
                    if isinstance(told, LiftbridgeError):
                        answer(told)
                    else:
                        answer((outcome, told[PartitionNumber(self.plan.number)]))

                # As in the API: the proposer may no longer lead, and only the leader knows.
                cluster = node.cluster
                asking = (
                    PublisherSequences(node.context, node.partitions, None)
                    if cluster is None
                    else cluster.sequences
                )
                asking.find(command.stream, outcome, found, node.context.now)

            node.propose(command, now, answered)

        self._calls.call(self.name, place.leader, serve, self._initialised)

    def _initialised(self, outcome: object) -> None:
        self.in_flight -= 1
        if isinstance(outcome, tuple) and not isinstance(outcome, Lost):
            self._stamp, self._sequence = outcome
            self._later()
        else:
            self._stamp = None
            self._later(RETRY_NS)

    # -- publishing ---------------------------------------------------------------------------

    def _publish(self, place: Place) -> None:
        plan, random = self.plan, self._random
        count = 1 if plan.expects_offsets else random.randrange(1, plan.run_max + 1)
        expected = -1
        if plan.expects_offsets:
            expected = random.choice((self._expected, self._expected, -1))
        writes = [
            self._history.invoke(
                self.number,
                place.partition,
                self._world.now,
                policy=plan.policy,
                size=random.randrange(24, plan.size_max),
                key=random.choice(plan.keys) if plan.keys else b"",
                expected_offset=expected,
                is_idempotent=plan.is_idempotent,
                is_tombstone=self._deletes(),
            )
            for _ in range(count)
        ]
        self.in_flight += 1
        self._send(place, writes, attempt=1)

    def _deletes(self) -> bool:
        """Return whether a message is a tombstone; draws no random number without deletions."""
        ppm = self.plan.deletes_ppm
        return ppm > 0 and self._random.randrange(PPM) < ppm

    def _send(self, place: Place, writes: list[Write], attempt: int) -> None:
        assert place.leader is not None
        stamp = None
        if self.plan.is_idempotent:
            assert self._stamp is not None
            stamp = PublisherStamp(*self._stamp, self._sequence)
        policy = self.plan.policy

        def serve(serving: Serving, now: Instant, wall_ns: int, answer: Answer) -> None:
            node = serving.node
            partition = node.partitions.get(place.partition)
            if partition is None:
                raise _gone(place)

            def stored(outcome: object) -> None:
                if isinstance(outcome, Stored):
                    # By the metadata of the broker that stored it: the client's may be outdated.
                    state = node.state.partition(place.partition)
                    is_single = state is not None and len(state.replicas) == 1
                    answer(Acked(outcome, policy == POLICY_ALL or is_single))
                else:
                    if isinstance(outcome, IncorrectOffsetError):
                        check_latest_told(node, partition)
                    answer(outcome)

            run = PublishRun(
                [write.value for write in writes],
                partition.subject,
                "grpc",
                () if policy == POLICY_NONE else (PendingAck(policy, Sink(stored)),),
                [write.key for write in writes] if self.plan.keys else None,
                [write.headers for write in writes] if self.plan.deletes_ppm else None,
                policy=policy,
                expected_offsets=[write.expected_offset for write in writes],
                publisher=stamp,
            )
            publish(node, partition, run, now, wall_ns)
            if policy == POLICY_NONE:
                answer(None)

        def done(outcome: object) -> None:
            self._done(place, writes, attempt, outcome)

        self._calls.call(self.name, place.leader, serve, done)

    def _note(self, what: str, writes: list[Write], *details: Detail) -> None:
        """Add a line about a run to the trace."""
        first = writes[0].identity.sequence
        self._world.trace.note(self._world.now, self.name, what, f"{first}+{len(writes)}", *details)

    def _done(self, place: Place, writes: list[Write], attempt: int, outcome: object) -> None:
        if isinstance(outcome, Acked):
            self._note_acked(writes, outcome)
        elif self.plan.is_idempotent and self._repeats(place, writes, attempt, outcome):
            return
        else:
            if isinstance(outcome, OutcomeUnknownError):
                self._world.coverage.rare("outcome unknown at a change of leader")
            is_definite = attempt == 1 and is_refused(outcome)
            self._note("refused" if is_definite else "unknown", writes, _text(outcome))
            self._give_up(writes, is_definite=is_definite)
            if outcome is not None and not self._world.is_stormy:
                self.in_flight -= 1
                self._later(RETRY_NS)
                return
        self.in_flight -= 1
        self._later()

    def _note_acked(self, writes: list[Write], acked: Acked) -> None:
        stored = acked.stored
        self._note("acked", writes, self.plan.stream, "at", int(stored.base_offset))
        for offset, write in enumerate(writes, stored.base_offset):
            self._history.acked(
                write,
                self._world.now,
                offset=offset,
                leader_epoch=stored.leader_epoch,
                is_committed=acked.is_committed,
            )
        self.acked_count += len(writes)
        self._sequence += len(writes)
        self._expected = stored.base_offset + len(writes)
        if stored.is_duplicate:
            self._world.coverage.rare("duplicate answered with its first offset")

    def _give_up(self, writes: list[Write], *, is_definite: bool) -> None:
        for write in writes:
            if is_definite:
                self._history.refused(write, self._world.now)
            else:
                self._history.unknown(write)
        if self.plan.expects_offsets:
            self._expected += self._random.choice((0, 1))

    def _repeats(self, place: Place, writes: list[Write], attempt: int, outcome: object) -> bool:
        """Return whether to resend an idempotent run: its outcome is unknown."""
        if attempt == 1 and is_refused(outcome):
            return False
        if isinstance(outcome, FencedPublisherError | OutOfOrderError | NotFoundError):
            # The broker's state of it is lost, or the stream is: the outcome stays unknown.
            self._stamp = None
            return False
        if attempt > 1 and self.is_stopped and attempt > 20:
            return False
        self._note("repeats", writes, _text(outcome))
        self._world.coverage.count("client", "repeated run")
        pause_ns = STORM_NS if self._world.is_stormy else RETRY_NS
        self._world.scheduler.after(pause_ns, self._again, place, writes, attempt + 1)
        return True

    def _again(self, place: Place, writes: list[Write], attempt: int) -> None:
        now_at = self._directory.find(self.plan.stream, self.plan.number)
        if now_at is not None and now_at.partition != place.partition:
            self._stamp = None
            self._give_up(writes, is_definite=False)
            self.in_flight -= 1
            self._later()
        elif now_at is None or now_at.leader is None:
            self._world.scheduler.after(RETRY_NS, self._again, place, writes, attempt)
        else:
            self._send(now_at, writes, attempt)


def is_refused(outcome: object) -> bool:
    """Return whether an outcome says that nothing is stored."""
    if isinstance(outcome, Lost):
        return outcome.is_refused
    if isinstance(outcome, ChangeNotMadeError):
        return True  # of the resume that the run waited for
    return isinstance(outcome, LiftbridgeError) and not isinstance(outcome, _UNKNOWN)


def _text(outcome: object) -> str:
    """Return the reason for a missing ack of a run, for the trace."""
    if isinstance(outcome, Lost):
        return outcome.reason
    return outcome.text if isinstance(outcome, LiftbridgeError) else "no ack asked for"


def _gone(place: Place) -> NotFoundError:
    return NotFoundError(f"no such partition: {place.partition}")

"""Context that all services of the API share."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from liftbridge_broker.access.quotas import Direction
from liftbridge_broker.api.access.control import AccessControl
from liftbridge_broker.api.brake import Brake
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.grpc.turns import Chore, Turns, Waker
from liftbridge_broker.api.quota_gate import QuotaGate
from liftbridge_broker.controller.callers.quotas import QUOTA_LEVEL
from liftbridge_broker.errors import LiftbridgeError, LimitError
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import Instant, Offset
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.runs import POLICY_ALL, POLICY_LEADER
from liftbridge_broker.node.reading.answers import Done, Question, ask, check_still
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.wire.subjects import ReservedSubjects, reserved_subjects


@dataclass(slots=True, eq=False)
class Context:
    """The node, the clocks, the limits for requests, and the counters.

    The limits may change while calls run; they apply to later requests.

    Attributes:
        node: The broker.
        clock: Both clocks.
        record_bytes_max: Maximum size of a record, and of a request that becomes one record.
        streams_max: Maximum number of streams of the cluster.
        partitions_max: Maximum number of partitions of a stream.
        subscriptions_max: Maximum number of open subscriptions and bulk reads on this broker.
        subscription_count: Current number of open subscriptions and bulk reads.
        access: Refuses what a caller may not do.
        turns: Scheduler of the clients' work; `None` if no other client would have to wait.
        leader_ack_times: Nanoseconds from the receipt of a run to its acks, policy LEADER.
        all_ack_times: The same for policy ALL.
        refused_counts: Messages refused before they reached a partition, by code of the error.
        reserved: Subjects that clients cannot name.
        quotas: Charges messages and subscriptions to principals and streams.
        brake: Holds back calls that publish more than NATS accepts, or than their quota allows.
    """

    node: Node
    clock: Clock
    record_bytes_max: int
    streams_max: int
    partitions_max: int
    subscriptions_max: int = 10_000
    subscription_count: int = 0
    access: AccessControl = field(default_factory=AccessControl)
    turns: Turns | None = None
    leader_ack_times: Histogram = field(default_factory=Histogram)
    all_ack_times: Histogram = field(default_factory=Histogram)
    refused_counts: dict[str, int] = field(default_factory=dict)
    reserved: ReservedSubjects = field(init=False)
    quotas: QuotaGate = field(init=False)
    brake: Brake = field(init=False)

    def __post_init__(self) -> None:
        """Load the reserved subjects of the cluster; create what holds calls back."""
        self.reserved = reserved_subjects(self.node.context.options.namespace)
        self.quotas = QuotaGate(lambda: self.node.state.quotas, self.clock.now)
        self.brake = Brake(self.node, self.clock.now, self.do_later)

    def take_subscription(self, call: Call, weight: int = 1) -> None:
        """Count a subscription that is about to open; `release_subscription` must follow its end.

        Args:
            call: The call that opens it.
            weight: Number of subscriptions that it counts as.

        Raises:
            LimitError: The maximum, or the quota of the caller, is reached.
        """
        if self.subscription_count + weight > self.subscriptions_max:
            raise LimitError(
                f"{self.subscription_count} subscriptions are open and {weight} more are needed, "
                f"limit {self.subscriptions_max} (subscriptions.max)"
            )
        self.quotas.take_subscription(call.principal.name, weight)
        self.subscription_count += weight

    def hold_back(self, call: Call, stream: str, delay_ns: int) -> None:
        """Read a publishing call no further for a time by its quota, and while NATS is behind."""
        if delay_ns:
            owed = partial(self.quotas.owed, call.principal.name, stream, Direction.PUBLISH)
            self.brake.apply(call, delay_ns, owed)
        else:
            self.brake.apply(call)

    def creator(self, call: Call) -> str:
        """Return whom a stream that a call creates belongs to; empty below feature level 4."""
        return call.principal.name if self.node.state.feature_level >= QUOTA_LEVEL else ""

    def release_subscription(self, call: Call, weight: int = 1) -> None:
        """Count a subscription that was closed."""
        self.quotas.release_subscription(call.principal.name, weight)
        self.subscription_count -= weight

    def ask(
        self,
        call: Call,
        partition: Partition,
        question: Question,
        done: Done,
        *,
        as_replica: bool = False,
    ) -> None:
        """Confirm that this broker may answer a call about offsets; see `answers.ask`.

        The metadata group answers thousands of questions at once. The rest of each answer is done
        in the turns of the client; `done` then gets an error if the answer is no longer allowed.
        """
        turns, is_asking = self.turns, True

        def confirmed(error: LiftbridgeError | None) -> None:
            if turns is None or turns.is_free or is_asking:
                done(error)
            elif error is not None:
                Waker(turns, call, partial(done, error)).wake()
            else:
                seen = partition.log.high_watermark
                late = partial(_error_by_now, partition, seen, as_replica=as_replica)
                Waker(turns, call, lambda: done(late())).wake()

        now, answers = self.clock.now(), self.node.client_reads.answers
        ask(answers, partition, question, confirmed, now, as_replica=as_replica)
        is_asking = False

    def in_turn(self, call: Call, act: Callable[[], None]) -> Callable[[], None]:
        """Wrap a short action so that a call runs it once, in the turns of its client."""
        turns = self.turns
        if turns is None:
            return act

        def timed() -> None:
            began = turns.now()
            act()
            turns.spend(turns.now() - began)

        return Waker(turns, call, timed).wake

    def do_later(self, steps: Iterator[None]) -> None:
        """Run steps that no call waits for."""
        if self.turns is None:
            deque(steps, maxlen=0)
        else:
            Chore(self.turns, steps)

    def note_acked(self, policy: int, received: Instant, count: int) -> None:
        """Record that `count` messages of one run get their acks now."""
        if policy == POLICY_LEADER:
            self.leader_ack_times.observe(self.clock.now() - received, count)
        elif policy == POLICY_ALL:
            self.all_ack_times.observe(self.clock.now() - received, count)

    def count_refused(self, error: LiftbridgeError, count: int = 1) -> None:
        """Record messages that were refused before they reached a partition."""
        self.refused_counts[error.code] = self.refused_counts.get(error.code, 0) + count


def refuse(call: Call, error: LiftbridgeError) -> None:
    """End a call with the status of a refusal."""
    call.refuse(error)


def _error_by_now(
    partition: Partition, seen: Offset, *, as_replica: bool
) -> LiftbridgeError | None:
    """Return the error that now forbids a previously allowed answer, `None` if still allowed."""
    try:
        check_still(partition, seen, as_replica=as_replica)
    except LiftbridgeError as error:
        return error
    return None

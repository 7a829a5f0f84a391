"""Publishes over NATS that wait for acks: `PublishToSubject`, and forwarded messages.

The broker that appends them is not known beforehand. They carry this broker's inbox and a token as
correlation id; the first ack with the token answers the caller.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from liftbridge_broker.errors import LiftbridgeError, LimitError, OutcomeUnknownError
from liftbridge_broker.model.ids import Instant, LeaderEpoch, Offset
from liftbridge_broker.node.options import NodeOptions
from liftbridge_broker.node.partition.intake import error_of_ack
from liftbridge_broker.node.partition.runs import PublishRun, Stored
from liftbridge_broker.node.publishing.remote_partition import Target
from liftbridge_broker.ports.messaging import Messaging
from liftbridge_broker.replication.publishers import STAMP_HEADERS
from liftbridge_broker.wire.acks import AckEncoder
from liftbridge_broker.wire.envelope import HEADER_SIZE, decode_ack, encode_publish
from liftbridge_broker.wire.nats import publish_head
from liftbridge_broker.wire.peer.keys import OPEN_KEYRING, Keyring
from liftbridge_broker.wire.signed_message import MessageSigner, Purpose, signer_of
from liftbridge_proto import api_pb2

WAITING_COUNT_MAX: Final = 65_536
"""Acks awaited at a time; a caller that gives up frees its slot."""

TOKEN_BYTES: Final = 16
"""Length of a token."""

ACK_WAIT_NS: Final = 60_000_000_000
"""Time after which a wait for an ack ends; NATS may have lost it."""


def nothing() -> None:
    """No-op cancel."""


def any_ack(_ack: api_pb2.Ack) -> bool:
    """Accept the ack of any stream."""
    return True


def no_ack() -> LiftbridgeError:
    """Return the error for the publisher of a message without an ack."""
    return OutcomeUnknownError(f"outcome unknown: no ack within {ACK_WAIT_NS // 10**9} s")


def settle_unacked(run: PublishRun) -> None:
    """Answer a run of policy NONE after sending it; its offsets stay unknown."""
    for ack in run.pending_acks:
        ack.sink.acked(Stored(Offset(0), 0, 0, LeaderEpoch(0), is_duplicate=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectPublish:
    """A message for a subject; `ack_inbox` is the caller's own and stays in the envelope."""

    subject: str
    value: bytes
    key: bytes = b""
    headers: Mapping[str, bytes] = field(default_factory=dict)
    stream: str = ""
    partition: int = 0
    policy: int = 0
    correlation_id: str = ""
    ack_inbox: str = ""
    expected_offset: int = 0


def group_message(partition: Target, run: PublishRun) -> SubjectPublish:
    """Return the single message of a run, addressed to the partition's leader."""
    assert len(run.values) == 1
    return SubjectPublish(
        subject=partition.subject,
        value=run.values[0],
        key=run.keys[0] if run.keys is not None else b"",
        headers=(run.headers[0] or {}) if run.headers is not None else {},
        stream=partition.stream,
        partition=partition.number,
        policy=run.policy,
        expected_offset=run.expected_offsets[0] if run.expected_offsets is not None else 0,
    )


def forward_ack(run: PublishRun, ack: api_pb2.Ack) -> None:
    """Pass the ack of the broker that stored a run to its waiting callers."""
    if ack.ackError:
        run.refuse(error_of_ack(ack))
        return
    stored = Stored(
        Offset(ack.offset),
        ack.receptionTimestamp,
        ack.commitTimestamp,
        LeaderEpoch(ack.leaderEpoch),
        is_duplicate=False,
        acks=AckEncoder(ack.stream, ack.partitionSubject),
    )
    for pending in run.pending_acks:
        pending.sink.acked(stored)


AckCallback = Callable[[api_pb2.Ack], None]


class Waiter(NamedTuple):
    """Callbacks of a wait for an ack.

    Attributes:
        acked: Gets the first ack that `takes` accepts.
        expired: Called instead when none came within `ACK_WAIT_NS`.
        takes: Whether an ack is accepted; other streams on the subject ack as well.
    """

    acked: AckCallback
    expired: Callable[[], None] = nothing
    takes: Callable[[api_pb2.Ack], bool] = any_ack


class _Waiting(NamedTuple):
    """One caller, and the subject of its message; `deadline` rises from each to the next."""

    waiter: Waiter
    subject: str
    deadline: Instant


class AckInbox:
    """Acks this broker waits for on its own inbox.

    Any client may publish there. So each wait has an unguessable token of 128 bits, and accepts
    only an ack of its own message; clients that see the token in transit lack the keys to sign an
    ack.

    Args:
        inbox: Subject of the inbox, subscribed to by the owner.
        secret: Random bytes of this process, from which tokens are derived.
        keyring: Returns the keys by which brokers authenticate each other.
    """

    def __init__(
        self, inbox: str, secret: bytes, keyring: Callable[[], Keyring] = lambda: OPEN_KEYRING
    ) -> None:
        self.inbox = inbox
        self.keyring = keyring
        self._secret = secret
        self._next = 0
        self._waiting: dict[str, _Waiting] = {}

    def wait(self, waiter: Waiter, subject: str, now: Instant) -> str:
        """Register a caller; the token goes into the envelope as correlation id.

        Args:
            waiter: Callbacks of the wait.
            subject: Subject of the message.
            now: Time now.

        Raises:
            LimitError: Too many acks are pending.
        """
        if len(self._waiting) >= WAITING_COUNT_MAX:
            raise LimitError(f"more than {WAITING_COUNT_MAX} acks are pending")
        self._next += 1
        number = self._next.to_bytes(8, "big")
        token = blake2b(number, key=self._secret, digest_size=TOKEN_BYTES).hexdigest()
        self._waiting[token] = _Waiting(waiter, subject, Instant(now + ACK_WAIT_NS))
        return token

    def forget(self, token: str) -> None:
        """Cancel the wait of a caller that gave up."""
        self._waiting.pop(token, None)

    def next_deadline(self) -> Instant | None:
        """Deadline of the oldest wait, `None` without waits."""
        return next((waiting.deadline for waiting in self._waiting.values()), None)

    def expire(self, now: Instant) -> None:
        """End the waits whose time is over."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            self._waiting.pop(next(iter(self._waiting))).waiter.expired()

    def on_message(self, payload: bytes) -> None:
        """Pass an ack to its waiting caller; drop anything else."""
        try:
            ack = decode_ack(payload)
        except DecodeError:
            return
        if ack is None:
            return
        signer = signer_of(self.keyring())
        if not signer.is_believed(payload[HEADER_SIZE:], Purpose.ACK):  # guard Ack.given
            return
        waiting = self._waiting.get(ack.correlationId)
        if waiting is None or ack.ackInbox != self.inbox:
            return
        is_meant = ack.msgSubject == waiting.subject  # guard Ack.subject
        if is_meant and waiting.waiter.takes(ack):
            del self._waiting[ack.correlationId]
            waiting.waiter.acked(ack)


def subject_frames(
    publish: SubjectPublish,
    *,
    inbox: str,
    correlation_id: str,
    signer: MessageSigner | None = None,
) -> list[bytes]:
    """Return the NATS frames of a message with an inbox and correlation id, signed by `signer`."""
    message = api_pb2.Message(
        offset=publish.expected_offset,
        key=publish.key,
        value=publish.value,
        stream=publish.stream,
        partition=publish.partition,
        subject=publish.subject,
        headers=publish.headers,
        ackInbox=inbox,
        correlationId=correlation_id,
        ackPolicy=publish.policy,  # type: ignore[arg-type] # an open enum: any number is one
    )
    payload = encode_publish(message)
    if signer is not None:
        payload = signer.signed(payload, Purpose.PUBLISH)
    return [publish_head(publish.subject.encode(), len(payload)), payload, b"\r\n"]


class SubjectPublisher:
    """Publishes messages to subjects and waits for their acks.

    Attributes:
        inbox: Pending acks; the owner subscribes to its subject.
    """

    def __init__(self, messaging: Messaging, options: NodeOptions) -> None:
        self._messaging = messaging
        self.inbox = AckInbox(options.inbox, options.ack_secret, options.keyring)

    def publish(
        self, publish: SubjectPublish, now: Instant, waiter: Waiter | None
    ) -> Callable[[], None]:
        """Publish an envelope to a subject, and wait for an ack.

        Args:
            publish: The message; its subject and inbox are checked.
            now: Time now.
            waiter: Gets the ack; with `None` no ack is awaited: the caller's inbox gets them all.

        Returns:
            Callback that cancels the wait.

        Raises:
            UnavailableError: The link to NATS is down.
            LimitError: Too many acks are pending.
        """
        signer = signer_of(self.inbox.keyring())
        if waiter is None:
            is_stamped = not STAMP_HEADERS.isdisjoint(publish.headers)
            frames = subject_frames(
                publish,
                inbox=publish.ack_inbox,
                correlation_id=publish.correlation_id,
                signer=signer if is_stamped else None,
            )
            self._messaging.publish_echo(frames)
            return nothing
        token = self.inbox.wait(waiter, publish.subject, now)
        frames = subject_frames(
            publish, inbox=self.inbox.inbox, correlation_id=token, signer=signer
        )
        try:
            self._messaging.publish_echo(frames)
        except LiftbridgeError:
            self.inbox.forget(token)
            raise
        return lambda: self.inbox.forget(token)

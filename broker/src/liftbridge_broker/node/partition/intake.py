"""Turns NATS messages into runs: decodes envelopes, stores other payloads unchanged.

The common case, a run of plain messages on one subject, costs one `startswith` a message. Acks go
over NATS to the inbox that an envelope names (layout: `wire/envelope.py`) and, on streams with
`ack_reply`, to the reply subject of any other message.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Final

from liftbridge_broker.errors import (
    IncorrectOffsetError,
    InternalError,
    InvalidRequestError,
    KeyUnavailableError,
    LiftbridgeError,
    OutcomeUnknownError,
    TooLargeError,
)
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.model.streams import StreamOptions
from liftbridge_broker.node.partition.ack_inboxes import AckInboxes
from liftbridge_broker.node.partition.replies import ReplyAcks
from liftbridge_broker.node.partition.runs import (
    POLICY_ALL,
    POLICY_NONE,
    PendingAck,
    PublishRun,
    Stored,
)
from liftbridge_broker.ports.messaging import Arrival
from liftbridge_broker.replication.publishers import (
    STAMP_HEADERS,
    PublisherStamp,
    parse_headers,
)
from liftbridge_broker.wire.acks import AckEncoder, AckError, inbox_frame
from liftbridge_broker.wire.envelope import MAGIC, decode_publish, has_envelope
from liftbridge_broker.wire.listed import mapping, with_lists
from liftbridge_broker.wire.nats import appended_header_line
from liftbridge_broker.wire.publish_acks import PublishAckEncoder
from liftbridge_proto import api_pb2

MESSAGE_HEADERS_MAX: Final = 1_000
"""Most headers of a message: each takes every broker that stores it about 4 us, at any size."""

UNKNOWN_PREFIX: Final = "outcome unknown: "
"""Prefix of the reason for an unknown outcome, whichever broker reports it."""

REASON_LENGTH_MAX: Final = 500
"""Characters kept of another broker's reason."""


_MESSAGE: Final = with_lists(api_pb2.Message)


class InboxAcks:
    """Acks of one run that go to NATS inboxes.

    Attributes:
        entries: For each pending ack: index in the run, inbox, UTF-8 correlation id, policy.
    """

    __slots__ = ("_encoder", "_inboxes", "_publish", "_subject", "_times", "entries")

    def __init__(
        self,
        encoder: AckEncoder,
        subject: str,
        publish: Callable[[list[bytes]], None],
        times: Mapping[int, Histogram],
        inboxes: AckInboxes | None = None,
    ) -> None:
        """Start without entries.

        Args:
            encoder: Builds the acks.
            subject: Subject of the messages.
            publish: Sends frames.
            times: Gets nanoseconds from append to ack, by policy.
            inboxes: Signs acks to other brokers; `None` when every inbox is a client's.
        """
        self._encoder = encoder
        self._inboxes = inboxes
        self._subject = subject.encode()
        self._publish = publish
        self._times = times
        self.entries: list[tuple[int, str, bytes, int]] = []

    def acked(self, stored: Stored) -> None:
        """Publish one ack for each entry; adjacent entries with one inbox are encoded together."""
        frames: list[bytes] = []
        encoder = stored.acks or self._encoder
        entries = self.entries
        start = 0
        while start < len(entries):
            first, inbox, _, policy = entries[start]
            end = start + 1
            while end < len(entries) and entries[end][:2] == (first + end - start, inbox):
                end += 1
            if self._inboxes is not None and self._inboxes.is_signed(inbox):
                frames += self._signed_acks(encoder, stored, entries[start:end])
                start = end
                continue
            frames += encoder.inbox_acks(
                stored.base_offset + first,
                [entry[2] for entry in entries[start:end]],
                policy=policy,
                reception_ts=stored.timestamp,
                commit_ts=stored.commit_ns,
                msg_subject=self._subject,
                ack_inbox=inbox.encode(),
                leader_epoch=stored.leader_epoch,
            )
            start = end
        self._publish(frames)
        if entries and not stored.is_duplicate:
            times = self._times.get(entries[0][3])
            if times is not None:
                times.observe(max(0, stored.commit_ns - stored.timestamp), len(entries))

    def _signed_acks(
        self, encoder: AckEncoder, stored: Stored, entries: Sequence[tuple[int, str, bytes, int]]
    ) -> list[bytes]:
        """Return acks to another broker, each with its signature."""
        return [
            self._frame(
                inbox,
                encoder.ack(
                    offset=stored.base_offset + index,
                    correlation_id=correlation_id,
                    policy=policy,
                    reception_ts=stored.timestamp,
                    commit_ts=stored.commit_ns,
                    msg_subject=self._subject,
                    ack_inbox=inbox.encode(),
                    leader_epoch=stored.leader_epoch,
                ),
            )
            for index, inbox, correlation_id, policy in entries
        ]

    def _frame(self, inbox: str, ack: bytes) -> bytes:
        if self._inboxes is not None and self._inboxes.is_signed(inbox):
            ack = self._inboxes.signed(ack)
        return inbox_frame(inbox.encode(), ack)

    def refused(self, error: LiftbridgeError) -> None:
        """Publish one error ack for each entry."""
        code = ack_error_of(error)
        reason = error.text.encode()
        frames: list[bytes] = []
        for _, inbox, correlation_id, policy in self.entries:
            ack = self._encoder.ack(
                offset=0,
                correlation_id=correlation_id,
                policy=policy,
                reception_ts=0,
                commit_ts=0,
                msg_subject=self._subject,
                ack_inbox=inbox.encode(),
                error=code,
                refusal=reason,
            )
            frames.append(self._frame(inbox, ack))
        self._publish(frames)


def ack_error_of(error: LiftbridgeError) -> AckError:
    """Return the `proto.Ack.Error` code for a refusal; the original has no others."""
    if isinstance(error, IncorrectOffsetError):
        return AckError.INCORRECT_OFFSET
    if isinstance(error, TooLargeError):
        return AckError.TOO_LARGE
    if isinstance(error, KeyUnavailableError):
        return AckError.ENCRYPTION
    return AckError.UNKNOWN


def error_of_ack(ack: api_pb2.Ack) -> LiftbridgeError:
    """Return the refusal that another broker's error ack carries, with its reason if it has one.

    Acks of the original have no reason and get the texts of the original. An unknown code is never
    a definite refusal: the ack may come from a leader that does not know yet that it was replaced,
    while its successor stored the message.
    """
    reason = ack.refusal[:REASON_LENGTH_MAX]
    match ack.ackError:
        case AckError.INCORRECT_OFFSET:
            return IncorrectOffsetError(reason or "incorrect expected offset")
        case AckError.TOO_LARGE:
            return TooLargeError(reason or "message exceeds max replication size")
        case AckError.ENCRYPTION:
            return InternalError(reason or "encryption failed on partition")
        case _:
            reason = reason.removeprefix(UNKNOWN_PREFIX) or "unknown error"
            return OutcomeUnknownError(f"{UNKNOWN_PREFIX}{reason}")


class Intake:
    """Turns the messages of one partition's NATS subscription into runs.

    Args:
        encoder: Builds the partition's acks.
        publish: Sends NATS frames.
        partition_id: Messages that name it in `Liftbridge-Appended` are stored already: dropped.
        record_bytes_max: Larger payloads are refused with `TOO_LARGE`, as are messages with more
            than `MESSAGE_HEADERS_MAX` headers.
        options: Settings of the stream.
        inboxes: Rules for the subjects of acks, and subjects that clients may not use.
        ack_times: Gets nanoseconds from the append of a run to its acks, by ack policy.
        replies: Builds acks of plain messages.

    Attributes:
        options: As given; changes with the settings of the stream.
        is_below_min_isr: Whether messages that wait for all replicas are refused.
        reserved_count: Messages dropped because their subject is reserved.
    """

    def __init__(
        self,
        encoder: AckEncoder,
        publish: Callable[[list[bytes]], None],
        *,
        partition_id: PartitionId,
        record_bytes_max: int,
        options: StreamOptions,
        inboxes: AckInboxes,
        ack_times: Mapping[int, Histogram],
        replies: PublishAckEncoder,
    ) -> None:
        self._encoder = encoder
        self._publish = publish
        self._appended = appended_header_line(partition_id)
        self._record_bytes_max = record_bytes_max
        self.is_below_min_isr = False
        self._inboxes = inboxes
        self._ack_times = ack_times
        self._replies = replies
        self.reserved_count = 0
        self.set_options(options)

    def set_options(self, options: StreamOptions) -> None:
        """Apply the settings of the stream."""
        self.options = options
        if options.ack_reply:
            self._inboxes.prepare_replies()

    def runs_of(self, arrivals: list[Arrival], payloads: list[bytes]) -> list[PublishRun]:
        """Return runs in order of arrival; refuse and skip messages that are too large."""
        first = arrivals[0]
        is_uniform = arrivals.count(first) == len(arrivals) and not first.headers
        if (
            is_uniform
            and not self._is_reserved(first.subject)
            and not self.options.optimistic_concurrency
            and not has_envelope(payloads)
            and max(map(len, payloads)) <= self._record_bytes_max
        ):
            # All of them ask for the same ack, so that all are stored or all are refused.
            acks = self.reply_acks(self.reply_of(first), range(len(payloads)))
            return [PublishRun(payloads, first.subject, "nats", acks, reply=first.reply)]
        runs: list[PublishRun] = []
        start = 0
        for end in self._run_ends(arrivals):
            self._open(arrivals[start], payloads[start:end], runs)
            start = end
        return runs

    def _run_ends(self, arrivals: list[Arrival]) -> list[int]:
        """Return exclusive ends of adjacent messages with equal metadata and no special case.

        Below the min ISR every message is a run of its own: those of envelopes may ask for
        different acks, and one that waits for all replicas is refused.
        """
        if self.options.optimistic_concurrency or self.is_below_min_isr:
            return list(range(1, len(arrivals) + 1))
        ends: list[int] = []
        for index in range(1, len(arrivals)):
            here, before = arrivals[index], arrivals[index - 1]
            if here.headers or (here is not before and here != before):
                ends.append(index)
        ends.append(len(arrivals))
        return ends

    def _open(self, arrival: Arrival, payloads: list[bytes], runs: list[PublishRun]) -> None:
        """Decode one group of equal arrivals into `runs`."""
        if self._is_reserved(arrival.subject):
            self.reserved_count += len(payloads)
            return
        if arrival.headers and self._appended in arrival.headers:
            return
        may_stamp = arrival.headers and self._inboxes.is_proven(b"")  # guard Stamp.block
        stamp = _stamp_of_block(arrival.headers) if may_stamp else None
        draft = _Draft(self, arrival, stamp)
        for payload in payloads:
            message = decode_publish(payload, _MESSAGE) if payload.startswith(MAGIC) else None
            if len(payload) > self._record_bytes_max:
                error = TooLargeError("message exceeds max replication size")
                self._refuse(arrival, payload, message, error)
                continue
            if message is not None and message.headers:
                try:
                    check_headers(message.headers)
                except TooLargeError as error:
                    self._refuse(arrival, payload, message, error)
                    continue
                is_proven = self._inboxes.is_proven(payload)  # guard Stamp.asked
                own = _stamp_of(mapping(message.headers)) if is_proven else None
                if own is not None:
                    draft.finish(runs)
                    draft = _Draft(self, arrival, own)
                    draft.add(payload, message)
                    draft.finish(runs)
                    draft = _Draft(self, arrival, stamp)
                    continue
            draft.add(payload, message)
        draft.finish(runs)

    def _is_reserved(self, subject: str) -> bool:
        return self._inboxes.reserved.is_reserved(subject)

    def reply_of(self, arrival: Arrival) -> str:
        """Return the reply subject that gets acks, empty for none."""
        if not arrival.reply or not self.options.ack_reply:
            return ""
        return arrival.reply if self._inboxes.allows_reply(arrival.reply) else ""

    def reply_acks(self, reply: str, indices: Sequence[int]) -> tuple[PendingAck, ...]:
        """Return the pending acks of plain messages of a run; `reply` comes from `reply_of`."""
        if not reply or not indices:
            return ()
        acks = ReplyAcks(self._replies, self._publish, self._ack_times, reply, indices)
        return (PendingAck(POLICY_ALL, acks),)

    def inbox_of(self, message: api_pb2.Message, payload: bytes, reply: str) -> str:
        """Return the subject that gets the ack of an envelope, empty for none.

        Args:
            message: The envelope's message.
            payload: The whole envelope.
            reply: Gets the ack if the message names no inbox; comes from `reply_of`.
        """
        inbox = message.ackInbox
        if not inbox:
            return reply
        return inbox if self._inboxes.allows(inbox, payload) else ""

    def _refuse(
        self,
        arrival: Arrival,
        payload: bytes,
        message: api_pb2.Message | None,
        error: TooLargeError,
    ) -> None:
        """Send an error ack for a skipped message that has an inbox or a reply subject."""
        reply = self.reply_of(arrival)
        if message is None:
            for ack in self.reply_acks(reply, (0,)):
                ack.sink.refused(error)
            return
        inbox = self.inbox_of(message, payload, reply)
        if inbox:
            acks = self.acks_for(arrival.subject)
            acks.entries.append((0, inbox, message.correlationId.encode(), message.ackPolicy))
            acks.refused(error)

    def acks_for(self, subject: str) -> InboxAcks:
        """Return a new sink for acks of messages on `subject`."""
        return InboxAcks(self._encoder, subject, self._publish, self._ack_times, self._inboxes)

    def copies_of(self, run: PublishRun) -> Iterator[PublishRun]:
        """Yield copies of a neighbouring partition's run, as runs for this partition.

        Acks go to the publisher's inbox, if any; a run never holds an inbox that a broker made.
        """
        count = len(run.values)
        size = 1 if self.options.optimistic_concurrency else count
        return (self._copy(run, index, index + size) for index in range(0, count, size))

    def _copy(self, run: PublishRun, start: int, end: int) -> PublishRun:
        pending_acks: tuple[PendingAck, ...] = ()
        if run.ack_inbox and run.correlation_ids is not None:
            acks = self.acks_for(run.subject)
            acks.entries += [
                (index, run.ack_inbox, correlation_id, run.policy)
                for index, correlation_id in enumerate(run.correlation_ids[start:end])
            ]
            pending_acks = (pending_ack_of(run.policy, acks),)
        expected = run.expected_offsets
        return PublishRun(
            run.values[start:end],
            run.subject,
            "nats",
            pending_acks,
            run.keys[start:end] if run.keys is not None else None,
            run.headers[start:end] if run.headers is not None else None,
            reply=run.reply,
            expected_offsets=expected[start:end] if expected is not None else None,
        )


class _Draft:
    """A run under construction."""

    __slots__ = (
        "_arrival",
        "_expected",
        "_headers",
        "_intake",
        "_keys",
        "_plain",
        "_reply",
        "_sinks",
        "_stamp",
        "_values",
    )

    def __init__(self, intake: Intake, arrival: Arrival, stamp: PublisherStamp | None) -> None:
        self._intake = intake
        self._arrival = arrival
        self._stamp = stamp
        self._values: list[bytes] = []
        self._keys: list[bytes] = []
        self._headers: list[Mapping[str, bytes] | None] = []
        self._expected: list[int] = []
        self._sinks: dict[int, InboxAcks] = {}
        self._reply = intake.reply_of(arrival)
        self._plain: list[int] = []

    def add(self, payload: bytes, message: api_pb2.Message | None) -> None:
        """Add one message; `None` means that the whole payload is the value."""
        if message is None:
            self._plain.append(len(self._values))
            self._values.append(payload)
            self._keys.append(b"")
            self._headers.append(None)
            self._expected.append(0)
            return
        index = len(self._values)
        self._values.append(message.value)
        self._keys.append(message.key)
        self._headers.append(mapping(message.headers) if message.headers else None)
        self._expected.append(message.offset)
        inbox = self._intake.inbox_of(message, payload, self._reply)
        if inbox:
            policy = message.ackPolicy
            sink = self._sinks.get(policy)
            if sink is None:
                sink = self._sinks[policy] = self._intake.acks_for(self._arrival.subject)
            sink.entries.append((index, inbox, message.correlationId.encode(), policy))

    def finish(self, runs: list[PublishRun]) -> None:
        """Append the run, if anything was collected."""
        if not self._values:
            return
        acks = [pending_ack_of(*entry) for entry in self._sinks.items()]
        acks += self._intake.reply_acks(self._reply, self._plain)
        runs.append(
            PublishRun(
                self._values,
                self._arrival.subject,
                "nats",
                pending_acks=tuple(acks),
                keys=self._keys if any(self._keys) else None,
                headers=self._headers if any(self._headers) else None,
                reply=self._arrival.reply,
                expected_offsets=self._expected,
                publisher=self._stamp,
            )
        )


class _OnlyErrors:
    """Sink for policy NONE with an inbox: sends nothing on success, an error ack on refusal."""

    __slots__ = ("_sink",)

    def __init__(self, sink: InboxAcks) -> None:
        self._sink = sink

    def acked(self, stored: Stored) -> None:
        """Send nothing."""

    def refused(self, error: LiftbridgeError) -> None:
        """Pass the refusal on."""
        self._sink.refused(error)


def pending_ack_of(policy: int, sink: InboxAcks) -> PendingAck:
    """Return a pending ack that goes to inboxes; under policy NONE it sends only refusals."""
    return PendingAck(policy, sink if policy != POLICY_NONE else _OnlyErrors(sink))


def check_headers(headers: Sized) -> None:
    """Refuse a message with too many headers.

    Raises:
        TooLargeError: There are more than `MESSAGE_HEADERS_MAX`.
    """
    if len(headers) > MESSAGE_HEADERS_MAX:
        raise TooLargeError(
            f"message has {len(headers)} headers, at most {MESSAGE_HEADERS_MAX}: "
            "put the rest into its value"
        )


def stamp_of(headers: Mapping[str, bytes]) -> PublisherStamp | None:
    """Return the stamp of an idempotent publisher in the headers of a client's message.

    Raises:
        InvalidRequestError: The stamp is incomplete or malformed.
    """
    return parse_headers(headers) if not STAMP_HEADERS.isdisjoint(headers) else None


def _stamp_of(headers: Mapping[str, bytes]) -> PublisherStamp | None:
    """Return the stamp of an idempotent publisher in message headers, `None` if malformed."""
    try:
        stamp = parse_headers(headers)
    except InvalidRequestError:
        return None
    return stamp


def _stamp_of_block(block: bytes) -> PublisherStamp | None:
    """Return the stamp of an idempotent publisher in a NATS header block, `None` if malformed."""
    if b"liftbridge-" not in block.lower():
        return None  # skip parsing a long block without a stamp
    fields: dict[str, bytes] = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name.lower().startswith(b"liftbridge-"):
            fields[name.decode("latin-1")] = value.strip()
    return _stamp_of(fields) if fields else None

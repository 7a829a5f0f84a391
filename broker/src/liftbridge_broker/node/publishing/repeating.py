"""Decides which messages may be sent again to a new leader, and adjusts their acks.

The former leader may have stored the message, and the next one may hold that record. Only the stamp
of an idempotent publisher shows that, and only in the stream where the publisher is registered.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from liftbridge_broker.controller.state import ClusterState, StreamState
from liftbridge_broker.errors import LiftbridgeError, OutcomeUnknownError
from liftbridge_broker.model.ids import PublisherId
from liftbridge_broker.model.subjects import has_wildcard, matches
from liftbridge_broker.node.partition.intake import UNKNOWN_PREFIX
from liftbridge_broker.node.partition.runs import AckSink, PendingAck, PublishRun, Stored
from liftbridge_broker.node.publishing.remote_partition import Target

SENDS_MAX: Final = 4
"""Maximum sends of one message, in case leaders change faster than they store."""

Recognised = Callable[[Target], frozenset[PublisherId]]


def recognised_by(state: ClusterState) -> Recognised:
    """Return a function that gives the publishers whose repeats only a given partition recognises.

    It costs a pass over every stream; the result serves all partitions of one metadata change.
    """
    plain: dict[str, list[StreamState]] = {}
    wild: list[StreamState] = []
    for stream in state.streams.values():
        is_wild = has_wildcard(stream.subject)
        (wild if is_wild else plain.setdefault(stream.subject, [])).append(stream)

    def recognised(partition: Target) -> frozenset[PublisherId]:
        own = state.stream(partition.stream)
        if own is None:
            return frozenset()
        subject = partition.subject
        near = (*wild, *plain.get(subject, ()), *plain.get(subject.rpartition(".")[0], ()))
        is_shared = any(_hears(one, subject) for one in near if one is not own or one in wild)
        if is_shared:  # guard Forward.alone
            return frozenset()
        return frozenset(publisher.publisher_id for publisher in own.publishers.values())

    return recognised


def _hears(stream: StreamState, subject: str) -> bool:
    """Return whether a partition of a stream stores the messages of a subject."""
    if matches(stream.subject, subject):
        return True
    head, _, number = subject.rpartition(".")
    is_partition = any(number == str(partition.number) for partition in stream.partitions[1:])
    return is_partition and matches(stream.subject, head)


class _RepeatAcks:
    """Acks of a run that was sent before: a refusal of the repeat proves nothing."""

    __slots__ = ("_sink",)

    def __init__(self, sink: AckSink) -> None:
        self._sink = sink

    def acked(self, stored: Stored) -> None:
        """Pass the ack on."""
        self._sink.acked(stored)

    def refused(self, error: LiftbridgeError) -> None:
        """Report an unknown outcome, as the first attempt may have been stored."""
        if not isinstance(error, OutcomeUnknownError):  # guard Forward.repeated
            error = OutcomeUnknownError(f"{UNKNOWN_PREFIX}{error.text}")
        self._sink.refused(error)


def repeated(run: PublishRun) -> PublishRun:
    """Return a run to send again, whose acks report a refusal as an unknown outcome."""
    return replace(
        run,
        pending_acks=tuple(
            PendingAck(policy, _RepeatAcks(sink)) for policy, sink in run.pending_acks
        ),
    )

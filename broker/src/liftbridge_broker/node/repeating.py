"""Which messages may be sent to another leader once more, and what is told of those that were.

The former leader may have stored the message, and the next one may hold that record. Only the stamp
of an idempotent publisher tells it, and only in the stream where the publisher is registered.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from liftbridge_broker.controller.state import ClusterState, StreamState
from liftbridge_broker.errors import LiftbridgeError, OutcomeUnknownError
from liftbridge_broker.model.ids import PublisherId
from liftbridge_broker.model.subjects import has_wildcard, matches
from liftbridge_broker.node.intake import UNKNOWN_PREFIX
from liftbridge_broker.node.runs import AckSink, PendingAck, PublishRun, Stored
from liftbridge_broker.node.subjects import Target

SENDS_MAX: Final = 4
"""How often one message is sent: leaders that change faster than they store get it no more."""

Recognised = Callable[[Target], frozenset[PublisherId]]


def recognised_by(state: ClusterState) -> Recognised:
    """Publishers of which a partition recognises what it stored before, and is the only one to get.

    It costs a look at every stream; what it gives is for all partitions of one change of the
    metadata.
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
        return frozenset(one.publisher_id for one in own.publishers.values())

    return recognised


def _hears(stream: StreamState, subject: str) -> bool:
    """Whether a partition of a stream stores what is published on a subject."""
    if matches(stream.subject, subject):
        return True
    head, _, number = subject.rpartition(".")
    is_partition = any(number == str(one.number) for one in stream.partitions[1:])
    return is_partition and matches(stream.subject, head)


class _RepeatAcks:
    """Acks of a run that was sent before: that this time it was refused proves nothing."""

    __slots__ = ("_sink",)

    def __init__(self, sink: AckSink) -> None:
        self._sink = sink

    def acked(self, stored: Stored) -> None:
        """Pass it on."""
        self._sink.acked(stored)

    def refused(self, error: LiftbridgeError) -> None:
        """Say that nobody knows; the first time it may have been stored."""
        if not isinstance(error, OutcomeUnknownError):  # guard Forward.repeated
            error = OutcomeUnknownError(f"{UNKNOWN_PREFIX}{error.text}")
        self._sink.refused(error)


def repeated(run: PublishRun) -> PublishRun:
    """A run that is sent once more."""
    return replace(
        run,
        pending_acks=tuple(
            PendingAck(policy, _RepeatAcks(sink)) for policy, sink in run.pending_acks
        ),
    )

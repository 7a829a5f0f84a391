"""Acks of plain messages, which go to the NATS reply subject that the publisher named.

Only streams with `ack_reply` send them. As with JetStream, an ack means that the message is on
every in-sync replica, as under policy ALL. Below the min ISR the message is refused.
"""

from collections.abc import Callable, Mapping, Sequence

from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.histogram import Histogram
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.node.partition.runs import POLICY_ALL, Stored
from liftbridge_broker.wire.publish_acks import PublishAckEncoder


class ReplyAcks:
    """Acks of the plain messages of one run, all with one reply subject.

    Args:
        encoder: Builds the acks.
        publish: Sends frames.
        times: Gets nanoseconds from append to ack, by policy.
        reply: The reply subject, to which acks are allowed.
        indices: Positions of the messages in the run.
    """

    __slots__ = ("_encoder", "_indices", "_publish", "_reply", "_times")

    def __init__(
        self,
        encoder: PublishAckEncoder,
        publish: Callable[[list[bytes]], None],
        times: Mapping[int, Histogram],
        reply: str,
        indices: Sequence[int],
    ) -> None:
        self._encoder = encoder
        self._publish = publish
        self._times = times
        self._reply = reply.encode()
        self._indices = indices

    def acked(self, stored: Stored) -> None:
        """Publish one ack for each message."""
        base, is_duplicate = stored.base_offset, stored.is_duplicate
        self._publish(
            [
                self._encoder.stored(self._reply, Offset(base + index), is_duplicate=is_duplicate)
                for index in self._indices
            ]
        )
        times = self._times.get(POLICY_ALL)
        if times is not None and not is_duplicate:
            times.observe(max(0, stored.commit_ns - stored.timestamp), len(self._indices))

    def refused(self, error: LiftbridgeError) -> None:
        """Publish one error for each message."""
        self._publish([self._encoder.refused(self._reply, error)] * len(self._indices))

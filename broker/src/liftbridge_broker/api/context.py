"""What every service of the API works with."""

from dataclasses import dataclass

from liftbridge_broker.api.call import Call
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.node.node import Node
from liftbridge_broker.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class Context:
    """The node, the clocks, and the limits that requests are held against.

    Attributes:
        node: The broker.
        clock: Both clocks.
        record_bytes_max: Largest request that is taken as one record, and largest record.
        streams_max: Streams of the cluster.
        partitions_max: Partitions of one stream.
    """

    node: Node
    clock: Clock
    record_bytes_max: int
    streams_max: int
    partitions_max: int


def refuse(call: Call, error: LiftbridgeError) -> None:
    """End a call with the status and text of a refusal."""
    call.finish(error.status, error.text)

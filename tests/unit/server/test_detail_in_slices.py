"""`/metrics/detailed` of a stream with many partitions: none is read before its slice."""

from types import SimpleNamespace
from typing import Any

from liftbridge_broker.adapters.observe.metrics import SLICE, in_slices
from liftbridge_broker.node.partition.readers import Readers
from liftbridge_broker.server.metrics import BrokerMetrics

PARTITIONS = 3 * SLICE


class Led:
    """A partition that notes each look at its log."""

    stream = "orders"
    leader_epoch = is_paused = is_readonly = 0
    offline_reason = ""
    readers = Readers()

    def __init__(self, number: int, looks: list[int]) -> None:
        self.number = number
        self._looks = looks

    @property
    def log(self) -> Any:
        self._looks.append(self.number)
        names = (
            *("log_start_offset", "log_end_offset", "high_watermark", "recovery_point"),
            *("size_bytes", "segment_count", "largest_timestamp"),
        )
        return SimpleNamespace(**dict.fromkeys(names, 0))


async def test_partitions_of_a_stream_are_read_a_slice_a_turn() -> None:
    looks: list[int] = []
    stream = SimpleNamespace(partition=lambda _number: None)
    node: Any = SimpleNamespace(
        state=SimpleNamespace(stream=lambda _name: stream),
        partitions={number: Led(number, looks) for number in range(PARTITIONS)},
    )
    clock: Any = SimpleNamespace(wall_ns=lambda: 0)
    nothing: Any = None
    metrics = BrokerMetrics(
        node=node,
        clock=clock,
        **dict.fromkeys(
            ("grpc", "context", "nats", "transport", "core", "files", "is_ready", "access"), nothing
        ),
        tls=None,
        identities=nothing,
        version="",
        started_ns=0,
    )
    rows = metrics.partition_samples("orders")
    assert rows is not None
    assert looks == []
    assert [number for number, _ in await in_slices(rows)] == list(range(PARTITIONS))
    assert set(looks) == set(range(PARTITIONS))

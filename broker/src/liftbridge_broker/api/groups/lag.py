"""`GroupLag`: how far a group is behind in partitions that this broker leads.

Shows offsets and times, and nothing of the messages.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.streams import check_named, decode
from liftbridge_broker.errors import LiftbridgeError, UnavailableError
from liftbridge_broker.groups.lag import Limit
from liftbridge_broker.model.groups import check_id
from liftbridge_broker.model.ids import Offset, stream_of
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.answers import Question, check_still
from liftbridge_broker.node.scheduling.steps import in_steps
from liftbridge_broker.node.upkeep.group_lags import Measured, Positions
from liftbridge_broker.storage.cleaning.retention import CursorUnknown
from liftbridge_proto.ext.v1 import groups_pb2

PARTITIONS_MAX: Final = 1_000
"""Partitions in a request."""

_LIMITS: Final = {
    Limit.AGE: groups_pb2.RETENTION_LIMIT_AGE,
    Limit.MESSAGES: groups_pb2.RETENTION_LIMIT_MESSAGES,
    Limit.BYTES: groups_pb2.RETENTION_LIMIT_BYTES,
}


class GroupLagService:
    """Measures the lag of groups for people."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def lag(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `GroupLag`."""
        request = decode(call, groups_pb2.GroupLagRequest, raw)
        if request is None:
            return
        check_id("groupId", request.group_id)
        check_named("partitions", len(request.partitions), PARTITIONS_MAX)
        yield
        asked: list[Partition] = []

        def add(number: int) -> None:
            asked.append(self._context.node.find_led(request.stream, number))

        yield from in_steps(dict.fromkeys(request.partitions), add)
        yield from _Lag(self._context, call, request.group_id, asked).ask()


class _Lag:
    """An answer, sent once the positions in all its partitions are known."""

    def __init__(self, context: Context, call: Call, group_id: str, asked: list[Partition]) -> None:
        self._context = context
        self._call = call
        self._group_id = group_id
        self._asked = asked
        self._open_count = len(asked)
        self._confirmed: dict[Partition, Offset] = {}

    def ask(self) -> Iterator[None]:
        """Confirm that this broker leads every partition; one confirmation serves all."""
        if not self._asked:
            self._call.reply(groups_pb2.GroupLagResponse().SerializeToString())
        yield from in_steps(self._asked, self._ask)

    def _ask(self, partition: Partition) -> None:
        answered = partial(self._answered, partition)
        self._context.ask(self._call, partition, Question.END, answered)

    def _answered(self, partition: Partition, error: LiftbridgeError | None) -> None:
        self._open_count -= 1
        if error is None:
            self._confirmed[partition] = partition.log.high_watermark
        else:
            refuse(self._call, error)
        if self._open_count or not self._call.is_open:
            return
        pairs = [(self._group_id, one.partition_id) for one in self._asked]
        clock = self._context.clock
        look_up = self._context.node.look_up_positions
        try:
            look_up(pairs, self._found, clock.now(), clock.wall_ns())
        except UnavailableError as refusal:
            refuse(self._call, refusal)

    def _found(self, positions: Positions) -> None:
        if self._call.is_open:
            self._call.go_on(self._fill(positions))

    def _fill(self, positions: Positions) -> Iterator[None]:
        """Measure each partition; in steps, because reading a log may take a while."""
        response = groups_pb2.GroupLagResponse()
        for partition in self._asked:
            pair = self._group_id, partition.partition_id
            found = positions[pair]
            if found is CursorUnknown.UNANSWERED:
                raise UnavailableError(
                    f"the position in {partition.stream}/{partition.number} is not known: the "
                    "leader of its partition of __cursors does not answer"
                )
            check_still(partition, self._confirmed[partition], as_replica=False)
            self._add(partition, self._context.node.lags.measure(pair, partition, found), response)
            yield
        self._call.reply(response.SerializeToString())

    def _add(
        self, partition: Partition, measured: Measured, response: groups_pb2.GroupLagResponse
    ) -> None:
        seen, forecast = measured.seen, measured.forecast
        lag = response.partitions.add(
            partition=partition.number,
            position=measured.position,
            log_start=seen.log_start,
            high_watermark=seen.high_watermark,
            lag_messages=seen.lag,
            lag_ms=seen.lag_ns // MILLISECOND_NS,
            lost_messages=seen.lost,
            stream_id=stream_of(partition.partition_id),
            unclean_epoch=self._context.node.state.unclean_epoch(partition.partition_id),
        )
        if forecast is not None:
            lag.overtaken_ms = forecast.left_ns // MILLISECOND_NS
            lag.overtaken_by = _LIMITS[forecast.limit]

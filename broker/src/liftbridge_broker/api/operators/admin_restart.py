"""`liftbridge.ext.v1.Admin`: checks before and after the restart of a broker."""

from collections.abc import Iterable, Iterator

from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.operators.admin_context import AdminContext
from liftbridge_broker.api.streams import decode
from liftbridge_broker.errors import FailedPreconditionError, InvalidRequestError
from liftbridge_broker.model.ids import BrokerId, Offset, PartitionId
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.scheduling.steps import STEP, all_partitions
from liftbridge_broker.node.upkeep.restart_check import (
    ACCEPTABLE,
    Blocker,
    BlockerKind,
    record_of,
    restart_blockers,
    verify_restart,
)
from liftbridge_broker.wire.restart import RestartRecord, decode_restart, encode_restart
from liftbridge_proto.ext.v1 import admin_pb2

VALID_MS_DEFAULT = 60_000
VALID_MS_MIN = 1_000
VALID_MS_MAX = 600_000


class RestartService:
    """Both checks; each reads metadata that a quorum has just confirmed."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def check(self, call: Call, raw: bytes) -> None:
        """Serve `CheckRestart`."""
        request = decode(call, admin_pb2.CheckRestartRequest, raw)
        if request is None:
            return
        context = self._context
        valid_ms = request.valid_ms or VALID_MS_DEFAULT
        if not VALID_MS_MIN <= valid_ms <= VALID_MS_MAX:
            raise InvalidRequestError(
                f"valid_ms {valid_ms}: must be {VALID_MS_MIN} to {VALID_MS_MAX}"
            )
        if request.gate not in admin_pb2.RestartGate.values():
            raise InvalidRequestError(f"gate: unknown value {request.gate}")
        if request.broker != context.me.broker:
            raise InvalidRequestError(
                f"broker {request.broker!r}: this is broker {context.me.broker}, ask the named "
                "broker"
            )
        context.confirm(call, lambda: self._check(call, request, valid_ms))

    def _check(
        self, call: Call, request: admin_pb2.CheckRestartRequest, valid_ms: int
    ) -> Iterator[None]:
        context = self._context
        state, own = context.state, context.own
        blockers = yield from restart_blockers(
            state,
            own.broker,
            context.consensus,
            needs_full_isr=request.gate != admin_pb2.RESTART_GATE_MIN_ISR,
        )
        blockers += self._own_blockers()
        expires = context.clock.wall_ns() + valid_ms * MILLISECOND_NS
        record = yield from record_of(state, own, self._high_watermark, expires)
        led = 0
        for number, (_, partition) in enumerate(all_partitions(state), 1):
            led += partition.leader == own.broker
            if number % STEP == 0:
                yield
        allowed = ACCEPTABLE if request.allow_unavailable else frozenset[BlockerKind]()
        response = admin_pb2.CheckRestartResponse(
            blockers=_messages(blocker for blocker in blockers if blocker.kind not in allowed),
            accepted=_messages(blocker for blocker in blockers if blocker.kind in allowed),
            partitions=len(record.replicas),
            leaders=led,
        )
        if not response.blockers:
            response.token = encode_restart(record)
            response.expires = expires
        call.reply(response.SerializeToString())

    def _own_blockers(self) -> list[Blocker]:
        context = self._context
        me, node = BrokerId(context.me.broker), context.node
        blockers: list[Blocker] = []
        if not (node.context.messaging.is_connected and context.facts.are_peers_connected()):
            blockers.append(Blocker(BlockerKind.NATS, f"broker {me} has no link to NATS", (me,)))
        if node.context.store.disk.is_full:
            text = f"the disk of broker {me} is full"
            blockers.append(Blocker(BlockerKind.DISK_FULL, text, (me,)))
        return blockers

    def _high_watermark(self, partition_id: PartitionId) -> Offset | None:
        partition = self._context.node.partitions.get(partition_id)
        return None if partition is None else partition.log.high_watermark

    def verify(self, call: Call, raw: bytes) -> None:
        """Serve `VerifyRestart`."""
        request = decode(call, admin_pb2.VerifyRestartRequest, raw)
        if request is None:
            return
        record = decode_restart(request.token)
        context = self._context
        if record.broker != context.me.broker:
            raise InvalidRequestError(
                f"token of broker {record.broker}: this is broker {context.me.broker}, ask the "
                "named broker"
            )
        context.confirm(call, lambda: self._verify(call, record))

    def _verify(self, call: Call, record: RestartRecord) -> Iterator[None]:
        context = self._context
        if record.cluster_id != context.state.cluster_id:
            raise FailedPreconditionError(
                f"token of cluster {record.cluster_id!r}: this is cluster "
                f"{context.state.cluster_id!r}"
            )
        ends = {
            partition_id: partition.log.log_end_offset
            for partition_id, partition in context.node.partitions.items()
            if not partition.offline_reason
        }
        wall_ns = context.clock.wall_ns()
        blockers = yield from verify_restart(context.state, context.own, record, ends, wall_ns)
        response = admin_pb2.VerifyRestartResponse(
            is_complete=not blockers.blockers,
            blockers=_messages(blockers.blockers),
            partitions=blockers.compared,
            excluded=blockers.excluded,
        )
        call.reply(response.SerializeToString())


def _messages(blockers: Iterable[Blocker]) -> list[admin_pb2.RestartBlocker]:
    messages: list[admin_pb2.RestartBlocker] = []
    for blocker in blockers:
        message = admin_pb2.RestartBlocker(
            kind=admin_pb2.RestartBlocker.Kind.Name(blocker.kind),
            brokers=blocker.brokers,
            text=blocker.text,
        )
        if blocker.stream:
            message.partition.stream = blocker.stream
            message.partition.partition = blocker.partition
        messages.append(message)
    return messages

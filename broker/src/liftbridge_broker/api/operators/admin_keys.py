"""`liftbridge.ext.v1.Admin`, methods for the master keys of encrypted streams."""

from collections import Counter
from collections.abc import Iterator

from google.protobuf.message import Message

from liftbridge_broker.api.context import refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.operators.admin_context import AdminContext
from liftbridge_broker.api.streams import decode
from liftbridge_broker.controller.commands import SetMasterKey
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.node.encryption.rewrapping import Rewrapped, former
from liftbridge_broker.node.scheduling.steps import STEP
from liftbridge_proto.ext.v1 import admin_pb2


class KeyService:
    """Shows, chooses and applies master keys; no key is in a request or an answer."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def status(self, call: Call, raw: bytes) -> None:
        """Serve `KeysStatus`."""
        if decode(call, admin_pb2.KeysStatusRequest, raw) is not None:
            self._context.confirm(call, lambda: self._status(call))

    def _status(self, call: Call) -> Iterator[None]:
        context = self._context
        state = context.state
        streams: Counter[str] = Counter()
        brokers: dict[str, list[str]] = {}
        for number, stream_id in enumerate(list(state.encrypted)):
            stream = state.streams.get(stream_id)
            if stream is not None and stream.data_key is not None:
                streams[stream.data_key.master_key] += 1
            if number % STEP == STEP - 1:
                yield
        for broker in state.brokers.values():
            for key in broker.master_keys:
                brokers.setdefault(key.key_id, []).append(broker.broker)
        response = admin_pb2.KeysStatusResponse(
            master_key=state.master_key,
            keys=[
                admin_pb2.MasterKeyStatus(
                    key_id=key_id, streams=streams[key_id], brokers=brokers.get(key_id, ())
                )
                for key_id in sorted({*streams, *brokers})
            ],
            locked_streams=context.node.context.data_keys.locked_count,
        )
        call.reply(response.SerializeToString())

    def rotate(self, call: Call, raw: bytes) -> None:
        """Serve `RotateKeys`."""
        request = decode(call, admin_pb2.RotateKeysRequest, raw)
        if request is None:
            return
        context = self._context

        def done(_outcome: object) -> Message:
            return admin_pb2.RotateKeysResponse(left=len(former(context.state)))

        context.propose(call, SetMasterKey(master_key=request.master_key), done)

    def rewrap(self, call: Call, raw: bytes) -> None:
        """Serve `RewrapKeys`."""
        if decode(call, admin_pb2.RewrapKeysRequest, raw) is None:
            return

        def done(outcome: Rewrapped | LiftbridgeError) -> None:
            if isinstance(outcome, LiftbridgeError):
                refuse(call, outcome)
                return
            response = admin_pb2.RewrapKeysResponse(
                rewrapped=outcome.count, left=outcome.left_count
            )
            call.reply(response.SerializeToString())

        self._context.node.rewrapping.begin(done)

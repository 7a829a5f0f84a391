"""Admin of the brokers of one cluster over gRPC: one channel a broker, deadlines, mutual TLS.

The metadata come from three kinds of calls to one broker. It answers the first after a majority has
confirmed its state, and the last only as leader. So the broker was the leader at the time of the
request, and no answer is older than the request.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from liftbridge_operator.cluster.brokers import answers
from liftbridge_operator.cluster.brokers.channels import open_channel
from liftbridge_operator.cluster.brokers.port import (
    CONSENT_MS,
    Consent,
    ProcessReport,
    Refusal,
    Verified,
)
from liftbridge_operator.cluster.planning.actions import Move
from liftbridge_operator.cluster.planning.observation import Member, Metadata
from liftbridge_proto.ext.v1 import admin_pb2

_Response = TypeVar("_Response", bound=ProtoMessage)

ADMIN: Final = "/liftbridge.ext.v1.Admin/"
TELL_SECONDS: Final = 2.0
"""Time-out of identity and status calls; a slower broker counts as unreachable in this pass."""
CALL_SECONDS: Final = 5.0
CALLS_MAX: Final = 32
"""Maximum number of concurrent calls to all brokers of a cluster."""
PAGES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """PEM files: trusted CA, client certificate and its key."""

    authority: bytes
    certificate: bytes
    key: bytes


class GrpcAdmin:
    """Implements `BrokerAdmin` for one cluster; its creator closes it."""

    def __init__(self, address_of: Callable[[str], str], tls: TlsMaterial | None) -> None:
        """Start without connections.

        Args:
            address_of: Host and port of the Admin service of a broker.
            tls: `None` for plaintext, which brokers offer on loopback only.
        """
        self._address_of = address_of
        self._credentials = (
            None
            if tls is None
            else grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
        )
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._room = asyncio.Semaphore(CALLS_MAX)

    async def close(self) -> None:
        """Close all channels; calls under way end."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close(None) for channel in channels.values()))

    async def forget(self, brokers: Sequence[str]) -> None:
        """Close the channels of all but these brokers."""
        gone = [name for name in self._channels if name not in brokers]
        await asyncio.gather(*(self._channels.pop(name).close(None) for name in gone))

    def _channel(self, broker: str) -> grpc.aio.Channel:
        channel = self._channels.get(broker)
        if channel is None:
            channel = open_channel(self._address_of(broker), self._credentials)
            self._channels[broker] = channel
        return channel

    async def _ask(
        self,
        broker: str,
        request: ProtoMessage,
        response: type[_Response],
        seconds: float = CALL_SECONDS,
    ) -> _Response | Refusal:
        """Make one call; the method is the name of the request."""
        method = type(request).__name__.removesuffix("Request")
        async with self._room:
            call: Any = self._channel(broker).unary_unary(
                ADMIN + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )
            try:
                answer: _Response = await call(request, timeout=seconds)
            except grpc.aio.AioRpcError as error:
                return Refusal(error.code().name, f"{broker}, {method}: {error.details() or ''}")
            except DecodeError as error:
                return Refusal("INTERNAL", f"{broker}, {method}: {error}")
            return answer

    async def _do(
        self, broker: str, request: ProtoMessage, response: type[ProtoMessage]
    ) -> Refusal | None:
        answer = await self._ask(broker, request, response)
        return answer if isinstance(answer, Refusal) else None

    # -- reads --------------------------------------------------------------------------------

    async def process_report(self, broker: str) -> ProcessReport | Refusal:
        """See `BrokerAdmin`."""
        identity = await self._ask(
            broker, admin_pb2.IdentityRequest(), admin_pb2.IdentityResponse, TELL_SECONDS
        )
        if isinstance(identity, Refusal):
            return identity
        if identity.broker != broker:
            return Refusal(
                "FAILED_PRECONDITION", f"{broker}: broker {identity.broker} answers for it"
            )
        if not identity.has_metadata:
            return answers.process_report(identity, None)
        status = await self._ask(
            broker, admin_pb2.BrokerStatusRequest(), admin_pb2.BrokerStatusResponse, TELL_SECONDS
        )
        return status if isinstance(status, Refusal) else answers.process_report(identity, status)

    async def metadata(self, broker: str) -> Metadata | Refusal:
        """See `BrokerAdmin`."""
        brokers = await self._ask(
            broker,
            admin_pb2.ListBrokersRequest(is_confirmed=True),
            admin_pb2.ListBrokersResponse,
        )
        if isinstance(brokers, Refusal):
            return brokers
        pages = await self._partitions(broker)
        if isinstance(pages, Refusal):
            return pages
        group = await self._ask(
            broker,
            admin_pb2.ClusterStatusRequest(needs_leader=True),
            admin_pb2.ClusterStatusResponse,
        )
        if isinstance(group, Refusal):
            return group
        if group.metadata_leader != broker:
            return Refusal("FAILED_PRECONDITION", f"{broker} does not lead the metadata group")
        return answers.metadata(group, brokers, pages)

    async def _partitions(self, broker: str) -> list[admin_pb2.PartitionStatus] | Refusal:
        partitions: list[admin_pb2.PartitionStatus] = []
        token = 0
        for _ in range(PAGES_MAX):
            page = await self._ask(
                broker,
                admin_pb2.ListPartitionsRequest(page_token=token),
                admin_pb2.ListPartitionsResponse,
            )
            if isinstance(page, Refusal):
                return page
            partitions += page.partitions
            token = page.next_page_token
            if not token:
                return partitions
        return Refusal("OUT_OF_RANGE", f"{broker}: more than {PAGES_MAX} pages of partitions")

    async def check_restart(
        self, broker: str, start_id: str, *, accepts_unavailable: bool, needs_full_isr: bool
    ) -> Consent | Refusal:
        """See `BrokerAdmin`."""
        identity = await self._ask(
            broker, admin_pb2.IdentityRequest(), admin_pb2.IdentityResponse, TELL_SECONDS
        )
        if isinstance(identity, Refusal):
            return identity
        if answers.process_of(identity.start_id) != start_id:
            text = f"{broker}: process {identity.start_id} answers, not one of {start_id}"
            return Refusal("FAILED_PRECONDITION", text)
        gate = (
            admin_pb2.RESTART_GATE_UNSPECIFIED if needs_full_isr else admin_pb2.RESTART_GATE_MIN_ISR
        )
        request = admin_pb2.CheckRestartRequest(
            broker=broker,
            gate=gate,
            allow_unavailable=accepts_unavailable,
            valid_ms=CONSENT_MS,
        )
        answer = await self._ask(broker, request, admin_pb2.CheckRestartResponse)
        return answer if isinstance(answer, Refusal) else answers.consent(answer)

    async def verify_restart(self, broker: str, token: bytes) -> Verified | Refusal:
        """See `BrokerAdmin`."""
        request = admin_pb2.VerifyRestartRequest(token=token)
        answer = await self._ask(broker, request, admin_pb2.VerifyRestartResponse)
        return answer if isinstance(answer, Refusal) else answers.verified(answer)

    # -- changes ------------------------------------------------------------------------------

    async def bootstrap(
        self, broker: str, cluster_id: str, founders: Sequence[Member]
    ) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.BootstrapRequest(
            cluster_id=cluster_id, members=[_member(founder) for founder in founders]
        )
        return await self._do(broker, request, admin_pb2.BootstrapResponse)

    async def retire(self, member: Member) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.RetireRequest(data_dir_id=member.data_dir_id)
        return await self._do(member.broker, request, admin_pb2.RetireResponse)

    async def transfer_leaders(self, leader: str, broker: str, *, to: str) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.TransferLeadershipRequest(to=to)
        setattr(request, "from", broker)
        return await self._do(leader, request, admin_pb2.TransferLeadershipResponse)

    async def transfer_metadata(self, leader: str, to: str) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.TransferMetadataLeadershipRequest(to=to)
        return await self._do(leader, request, admin_pb2.TransferMetadataLeadershipResponse)

    async def elect_preferred(
        self, leader: str, partitions: Sequence[tuple[str, int]]
    ) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.ElectPreferredRequest(
            partitions=[_ref(*partition) for partition in partitions]
        )
        return await self._do(leader, request, admin_pb2.ElectPreferredResponse)

    async def cordon(self, leader: str, broker: str, *, is_draining: bool) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.CordonBrokerRequest(broker=broker, is_draining=is_draining)
        return await self._do(leader, request, admin_pb2.CordonBrokerResponse)

    async def uncordon(self, leader: str, broker: str) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.UncordonBrokerRequest(broker=broker)
        return await self._do(leader, request, admin_pb2.UncordonBrokerResponse)

    async def add_learner(self, leader: str, member: Member) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.AddLearnerRequest(member=_member(member))
        return await self._do(leader, request, admin_pb2.AddLearnerResponse)

    async def promote_learner(self, leader: str, member: Member) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.PromoteLearnerRequest(member=_member(member))
        return await self._do(leader, request, admin_pb2.PromoteLearnerResponse)

    async def remove_member(self, leader: str, member: Member) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.RemoveMemberRequest(member=_member(member))
        return await self._do(leader, request, admin_pb2.RemoveMemberResponse)

    async def remove_broker(self, leader: str, broker: str, broker_epoch: int) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.RemoveBrokerRequest(broker=broker, broker_epoch=broker_epoch)
        return await self._do(leader, request, admin_pb2.RemoveBrokerResponse)

    async def reassign(self, leader: str, move: Move) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.StartReassignmentRequest(
            partition=_ref(move.stream, move.number),
            target=move.target,
            partition_epoch=move.partition_epoch,
        )
        return await self._do(leader, request, admin_pb2.StartReassignmentResponse)

    async def set_catch_up_rate(self, leader: str, bytes_per_second: int) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.SetCatchUpRateRequest(bytes_per_second=bytes_per_second)
        return await self._do(leader, request, admin_pb2.SetCatchUpRateResponse)

    async def set_feature_level(self, leader: str, level: int) -> Refusal | None:
        """See `BrokerAdmin`."""
        request = admin_pb2.SetFeatureLevelRequest(feature_level=level)
        return await self._do(leader, request, admin_pb2.SetFeatureLevelResponse)


def _member(member: Member) -> admin_pb2.Member:
    return admin_pb2.Member(broker=member.broker, data_dir_id=member.data_dir_id)


def _ref(stream: str, number: int) -> admin_pb2.PartitionRef:
    return admin_pb2.PartitionRef(stream=stream, partition=number)

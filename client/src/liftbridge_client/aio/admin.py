"""The admin client: it calls the Admin service of whichever broker can answer."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from google.protobuf.message import Message as ProtoMessage

from liftbridge_client import admin_model as model
from liftbridge_client.aio.listening import Hub
from liftbridge_client.core.addresses import ADMIN_PORT, parse_addresses
from liftbridge_client.core.deadlines import one_deadline, seconds_left
from liftbridge_client.errors import (
    CallTimeoutError,
    ClosedError,
    Doubt,
    FailedPreconditionError,
    LiftbridgeError,
    NotFoundError,
    RetriableError,
)
from liftbridge_client.model import TlsFiles
from liftbridge_client.transport import Method, Transport
from liftbridge_proto.ext.v1 import admin_pb2

_Response = TypeVar("_Response", bound=ProtoMessage)

_ELSEWHERE: Final = "does not lead the metadata group"
"""Words of a broker that was asked in the place of the leader; they decide only whether to wait
for a leader that nobody finds."""

_WAIT_FIRST_SECONDS: Final = 0.05
_WAIT_MAX_SECONDS: Final = 1.0

_deadline = one_deadline(attrgetter("_call_seconds"))


def connect_admin(
    servers: str,
    *,
    tls: TlsFiles | None = None,
    timeout: timedelta = timedelta(seconds=5),
    retry_time: timedelta = timedelta(seconds=10),
) -> "AdminClient":
    """Create an admin client, to enter with `async with`.

    Args:
        servers: Admin addresses `host:port`, separated by commas; preferably of all brokers.
        tls: TLS of the connections; `None` for plaintext.
        timeout: Limit for one attempt of a call.
        retry_time: Limit for a whole call, as for `connect`.

    Raises:
        UsageError: An address is malformed.
    """
    return AdminClient(
        parse_addresses(servers, ADMIN_PORT), tls=tls, timeout=timeout, retry_time=retry_time
    )


class AdminClient:
    """Administration of a cluster; created by `connect_admin`.

    Calls that any broker can answer go to the first address that answers. Calls that only one
    broker can answer, such as the leader of the metadata group or a named broker, go to that
    broker, which must be among the addresses.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: TlsFiles | None,
        timeout: timedelta,
        retry_time: timedelta,
    ) -> None:
        self._addresses = tuple(addresses)
        self._tls = tls
        self._timeout = timeout.total_seconds()
        self._retry = retry_time.total_seconds()
        self._call_seconds = self._retry or self._timeout
        self._transport: Transport | None = None

    async def __aenter__(self) -> Self:
        """Read the TLS files; connections are opened when needed.

        Raises:
            UsageError: A file cannot be read.
        """
        transport = Transport(self._tls, Hub())
        transport.open()
        self._transport = transport
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    # -- looking --------------------------------------------------------------------------------

    @_deadline
    async def identities(self) -> dict[str, model.Identity]:
        """Identify the broker behind each address; addresses that do not answer are left out."""
        answers = await asyncio.gather(
            *(self._identity(address) for address in self._addresses), return_exceptions=True
        )
        found: dict[str, model.Identity] = {}
        for address, answer in zip(self._addresses, answers, strict=True):
            if isinstance(answer, model.Identity):
                found[address] = answer
            elif not isinstance(answer, LiftbridgeError):
                raise answer
        return found

    async def cluster(self, *, from_leader: bool = True) -> model.ClusterStatus:
        """Describe the metadata group; only its leader knows the progress of the members."""
        request = admin_pb2.ClusterStatusRequest(needs_leader=from_leader)
        return model.cluster_of(
            await self._call("ClusterStatus", request, admin_pb2.ClusterStatusResponse)
        )

    async def brokers(self, *, from_leader: bool = True) -> Sequence[model.BrokerDescription]:
        """List brokers by name; only the metadata leader knows the applied index of each."""
        response = await self._call(
            "ListBrokers",
            admin_pb2.ListBrokersRequest(is_confirmed=True),
            admin_pb2.ListBrokersResponse,
            find=self._leader if from_leader else None,
        )
        return tuple(model.broker_of(one) for one in response.brokers)

    async def broker_status(self, broker: str) -> model.BrokerStatus:
        """Fetch what a broker reports about itself."""
        response = await self._call(
            "BrokerStatus",
            admin_pb2.BrokerStatusRequest(),
            admin_pb2.BrokerStatusResponse,
            find=partial(self._address_of, broker),
        )
        return model.status_of(response)

    async def settings(self, broker: str) -> Sequence[model.Setting]:
        """List the settings in effect on a broker, with secrets masked."""
        response = await self._call(
            "ListSettings",
            admin_pb2.ListSettingsRequest(),
            admin_pb2.ListSettingsResponse,
            find=partial(self._address_of, broker),
        )
        return model.settings_of(response)

    async def reload(self, broker: str) -> model.Reloaded:
        """Reload the configuration of a broker, as SIGHUP does.

        Raises:
            InvalidRequestError: The configuration is invalid; nothing changed.
        """
        response = await self._call(
            "ReloadSettings",
            admin_pb2.ReloadSettingsRequest(),
            admin_pb2.ReloadSettingsResponse,
            find=partial(self._address_of, broker),
        )
        return model.Reloaded(tuple(response.applied), tuple(response.restart_needed))

    async def partitions(
        self,
        *streams: str,
        broker: str = "",
        only_degraded: bool = False,
        seen_by: str = "",
    ) -> AsyncGenerator[model.PartitionStatus, None]:
        """List partitions in order of creation.

        Args:
            streams: Names of streams; all by default.
            broker: Only partitions with a replica on this broker.
            only_degraded: Only partitions without a leader or with replicas out of sync.
            seen_by: Broker to ask, which also reports its own log end offsets; empty for any.
        """
        request = admin_pb2.ListPartitionsRequest(
            streams=streams, broker=broker, only_degraded=only_degraded
        )
        find = partial(self._address_of, seen_by) if seen_by else None
        async for one in self._partitions(request, find):
            yield one

    async def _partitions(
        self,
        request: admin_pb2.ListPartitionsRequest,
        find: Callable[[], Awaitable[str]] | None,
    ) -> AsyncGenerator[model.PartitionStatus, None]:
        while True:
            response = await self._call(
                "ListPartitions", request, admin_pb2.ListPartitionsResponse, find=find
            )
            for one in response.partitions:
                yield model.partition_of(one)
            request.page_token = response.next_page_token
            if not request.page_token:
                return

    async def reassignments(self) -> Sequence[model.Reassignment]:
        """List reassignments in progress."""
        request = admin_pb2.ListReassignmentsRequest()
        response = await self._call(
            "ListReassignments", request, admin_pb2.ListReassignmentsResponse
        )
        return model.reassignments_of(response.reassignments)

    # -- restarts -------------------------------------------------------------------------------

    async def check_restart(
        self,
        broker: str,
        *,
        needs_full_isr: bool = True,
        allow_unavailable: bool = False,
        valid: timedelta = timedelta(minutes=1),
    ) -> model.RestartCheck:
        """Check whether a broker may be restarted now.

        Args:
            broker: Id of the broker.
            needs_full_isr: Whether all other replicas must be in sync, or only the minimum.
            allow_unavailable: Accept partitions with one replica, and a group without majority.
            valid: How long the token is valid, 1 s to 10 min.
        """
        gate = admin_pb2.RESTART_GATE_UNSPECIFIED
        request = admin_pb2.CheckRestartRequest(
            broker=broker,
            gate=gate if needs_full_isr else admin_pb2.RESTART_GATE_MIN_ISR,
            allow_unavailable=allow_unavailable,
            valid_ms=valid // timedelta(milliseconds=1),
        )
        response = await self._call(
            "CheckRestart",
            request,
            admin_pb2.CheckRestartResponse,
            find=partial(self._address_of, broker),
        )
        return model.check_of(response)

    async def verify_restart(self, broker: str, token: bytes) -> model.RestartVerification:
        """Check whether a restarted broker has everything back that its token recorded."""
        response = await self._call(
            "VerifyRestart",
            admin_pb2.VerifyRestartRequest(token=token),
            admin_pb2.VerifyRestartResponse,
            find=partial(self._address_of, broker),
        )
        return model.verification_of(response)

    # -- brokers --------------------------------------------------------------------------------

    async def cordon(self, broker: str, *, drain: bool = False) -> int:
        """Cordon a broker, with `drain` also move its replicas away; returns how many it has."""
        request = admin_pb2.CordonBrokerRequest(broker=broker, is_draining=drain)
        response = await self._call("CordonBroker", request, admin_pb2.CordonBrokerResponse)
        return response.replicas

    async def uncordon(self, broker: str) -> None:
        """End the cordon and the drain of a broker."""
        request = admin_pb2.UncordonBrokerRequest(broker=broker)
        await self._call("UncordonBroker", request, admin_pb2.UncordonBrokerResponse)

    async def remove_broker(self, broker: str, *, broker_epoch: int = 0) -> None:
        """Remove a stopped broker without replicas, in the given session or its current one."""
        request = admin_pb2.RemoveBrokerRequest(broker=broker, broker_epoch=broker_epoch)
        try:
            await self._call("RemoveBroker", request, admin_pb2.RemoveBrokerResponse)
        except NotFoundError as error:
            if not error.may_be_done:  # otherwise an attempt of this call removed it
                raise

    async def retire(self, broker: str, data_dir_id: str) -> None:
        """Bar a broker's data directory from voting ever again, before it stops permanently.

        Raises:
            FailedPreconditionError: It holds replicas or votes, or has another directory.
        """
        await self._call(
            "Retire",
            admin_pb2.RetireRequest(data_dir_id=data_dir_id),
            admin_pb2.RetireResponse,
            find=partial(self._address_of, broker),
        )

    async def set_feature_level(self, level: int) -> None:
        """Raise the feature level of the cluster, permanently."""
        request = admin_pb2.SetFeatureLevelRequest(feature_level=level)
        await self._call("SetFeatureLevel", request, admin_pb2.SetFeatureLevelResponse)

    async def set_catch_up_rate(self, bytes_per_second: int) -> None:
        """Limit what each leader sends to replicas added by reassignments; 0 for no limit."""
        request = admin_pb2.SetCatchUpRateRequest(bytes_per_second=bytes_per_second)
        await self._call("SetCatchUpRate", request, admin_pb2.SetCatchUpRateResponse)

    async def set_stream_owner(
        self, stream: str, owner: str, *, stream_id: int, expected: str = ""
    ) -> None:
        """Set the owner of a stream, if its id is `stream_id` and its owner is `expected`.

        Raises:
            FailedPreconditionError: The stream has another owner, or was recreated.
        """
        request = admin_pb2.SetStreamOwnerRequest(
            stream=stream, stream_id=stream_id, expected=expected, owner=owner
        )
        await self._call("SetStreamOwner", request, admin_pb2.SetStreamOwnerResponse)

    # -- partitions -----------------------------------------------------------------------------

    async def transfer_leadership(
        self, *partitions: model.PartitionName, from_broker: str = "", to: str = ""
    ) -> Sequence[model.PartitionOutcome]:
        """Transfer leadership of the listed partitions, or of up to 1,000 that a broker leads."""
        request = admin_pb2.TransferLeadershipRequest(
            partitions=_refs(partitions), to=to, **{"from": from_broker}
        )
        response = await self._call(
            "TransferLeadership", request, admin_pb2.TransferLeadershipResponse
        )
        return model.outcomes_of(response.outcomes)

    async def elect_preferred(
        self, *partitions: model.PartitionName
    ) -> Sequence[model.PartitionOutcome]:
        """Elect the first replica of partitions; by default of up to 1,000 that can change."""
        request = admin_pb2.ElectPreferredRequest(partitions=_refs(partitions))
        response = await self._call("ElectPreferred", request, admin_pb2.ElectPreferredResponse)
        return model.outcomes_of(response.outcomes)

    async def elect_unclean(
        self, partition: model.PartitionName, broker: str, *, partition_epoch: int
    ) -> model.Election:
        """Elect a replica that may lack acknowledged records, if the partition epoch matches."""
        request = admin_pb2.ElectUncleanRequest(
            partition=_ref(partition), broker=broker, partition_epoch=partition_epoch
        )
        try:
            response = await self._call("ElectUnclean", request, admin_pb2.ElectUncleanResponse)
        except FailedPreconditionError as error:
            found = await self._left_by(error, partition)
            is_own = found is not None and found.unclean_epoch > partition_epoch
            if found is None or not is_own or found.leader != broker:
                raise
            return model.Election(found.leader, found.leader_epoch, found.partition_epoch)
        return model.Election(response.leader, response.leader_epoch, response.partition_epoch)

    async def start_reassignment(
        self, partition: model.PartitionName, target: Sequence[str], *, partition_epoch: int = 0
    ) -> int:
        """Move a partition to these brokers, preferred leader first; returns its new epoch."""
        request = admin_pb2.StartReassignmentRequest(
            partition=_ref(partition), target=target, partition_epoch=partition_epoch
        )
        try:
            response = await self._call(
                "StartReassignment", request, admin_pb2.StartReassignmentResponse
            )
        except FailedPreconditionError as error:
            found = await self._left_by(error, partition)
            if found is None:
                raise
            if list(found.target or [one.broker for one in found.replicas]) != list(target):
                raise
            return found.partition_epoch
        return response.partition_epoch

    @_deadline
    async def cancel_reassignment(
        self, partition: model.PartitionName, *, partition_epoch: int = 0, is_unclean: bool = False
    ) -> int:
        """Cancel the reassignment of a partition; returns its new epoch."""
        request = admin_pb2.CancelReassignmentRequest(
            partition=_ref(partition), partition_epoch=partition_epoch, is_unclean=is_unclean
        )
        # Afterwards nothing tells a reassignment that was given up from one that was complete.
        before = await self._status_of(partition)
        try:
            response = await self._call(
                "CancelReassignment", request, admin_pb2.CancelReassignmentResponse
            )
        except FailedPreconditionError as error:
            found = await self._left_by(error, partition)
            if before is None or found is None or not before.target or found.target:
                raise
            if [one.broker for one in found.replicas] == list(before.target):
                raise
            return found.partition_epoch
        return response.partition_epoch

    # -- the metadata group ---------------------------------------------------------------------

    @_deadline
    async def bootstrap(self, cluster_id: str, members: Sequence[model.Member]) -> None:
        """Form a cluster: instruct all listed brokers, which must all be among the addresses."""
        request = admin_pb2.BootstrapRequest(
            cluster_id=cluster_id, members=[_member(one) for one in members]
        )
        for member in members:
            find = partial(self._address_of, member.broker)
            await self._call("Bootstrap", request, admin_pb2.BootstrapResponse, find=find)

    async def transfer_metadata_leadership(self, to: str = "") -> str:
        """Transfer leadership of the metadata group; returns the voter that was asked to lead."""
        request = admin_pb2.TransferMetadataLeadershipRequest(to=to)
        response = await self._call(
            "TransferMetadataLeadership", request, admin_pb2.TransferMetadataLeadershipResponse
        )
        return response.to

    async def add_learner(self, member: model.Member) -> None:
        """Add a learner (a member without a vote) to the metadata group."""
        request = admin_pb2.AddLearnerRequest(member=_member(member))
        await self._call("AddLearner", request, admin_pb2.AddLearnerResponse)

    async def promote_learner(self, member: model.Member) -> None:
        """Promote a learner that has caught up to voter."""
        request = admin_pb2.PromoteLearnerRequest(member=_member(member))
        await self._call("PromoteLearner", request, admin_pb2.PromoteLearnerResponse)

    async def remove_member(self, member: model.Member) -> None:
        """Remove a member from the metadata group."""
        request = admin_pb2.RemoveMemberRequest(member=_member(member))
        await self._call("RemoveMember", request, admin_pb2.RemoveMemberResponse)

    # -- calls ----------------------------------------------------------------------------------

    async def _left_by(
        self, error: LiftbridgeError, partition: model.PartitionName
    ) -> model.PartitionStatus | None:
        """A partition as an attempt of a call may have left it that another one was refused for."""
        return await self._status_of(partition) if error.may_be_done else None

    async def _status_of(self, partition: model.PartitionName) -> model.PartitionStatus | None:
        request = admin_pb2.ListPartitionsRequest(streams=[partition.stream])
        async for one in self._partitions(request, self._leader):
            if one.partition == partition.partition:
                return one
        return None

    async def _identity(self, address: str) -> model.Identity:
        response = await self._once(
            address, "Identity", admin_pb2.IdentityRequest(), admin_pb2.IdentityResponse
        )
        return model.identity_of(response)

    async def _once(
        self, address: str, name: str, request: ProtoMessage, response: type[_Response]
    ) -> _Response:
        if self._transport is None:
            raise ClosedError(
                "the client is not open: use it inside `async with connect_admin(...)`"
            )
        method: Method[Any, _Response] = Method(
            f"/liftbridge.ext.v1.Admin/{name}", type(request), response
        )
        limit = min(self._timeout, seconds_left())
        if limit <= 0:
            raise CallTimeoutError(f"timed out before asking {address}")
        return await self._transport.unary(address, method, request, limit)

    @_deadline
    async def _call(
        self,
        name: str,
        request: ProtoMessage,
        response: type[_Response],
        *,
        find: Callable[[], Awaitable[str]] | None = None,
    ) -> _Response:
        """Call the broker that `find` tells the address of, or any, again while that may help."""
        doubt = Doubt()

        async def ask(address: str) -> _Response:
            try:
                return await self._once(address, name, request, response)
            except LiftbridgeError as error:
                doubt.weigh(error)
                raise

        wait = _WAIT_FIRST_SECONDS
        while True:
            try:
                return await (self._anywhere(ask) if find is None else ask(await find()))
            except LiftbridgeError as error:
                doubt.weigh(error)
                is_last = not self._retry or wait >= seconds_left()
                if is_last or not isinstance(error, RetriableError):
                    raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, _WAIT_MAX_SECONDS)

    async def _anywhere(self, ask: Callable[[str], Awaitable[_Response]]) -> _Response:
        """Each address once, until one answers; the metadata leader where another one refuses."""
        last: RetriableError | None = None
        for address in self._addresses:
            try:
                return await ask(address)
            except RetriableError as error:
                last = error
            except FailedPreconditionError as error:
                try:
                    leader = await self._leader()
                except RetriableError:
                    if _ELSEWHERE in error.server_text:
                        raise
                    raise error from None
                if leader == address:
                    raise
                return await ask(leader)
        assert last is not None
        raise last

    async def _leader(self) -> str:
        """Address of the metadata leader, by what most brokers say.

        Raises:
            RetriableError: Nobody knows it, or it is not among the addresses.
        """
        found = await self.identities()
        named = [one.metadata_leader for one in found.values() if one.metadata_leader]
        if not named:
            raise RetriableError("no broker that knows the leader of the metadata group answered")
        leader = max(sorted(set(named)), key=named.count)
        for address, one in found.items():
            if one.broker == leader:
                return address
        raise RetriableError(
            f"broker {leader} leads the metadata group, but is behind none of the addresses"
        )

    async def _address_of(self, broker: str) -> str:
        """Address of a broker.

        Raises:
            NotFoundError: All addresses answer, and it is behind none.
            RetriableError: It may be behind one that does not answer.
        """
        found = await self.identities()
        for address, one in found.items():
            if one.broker == broker:
                return address
        known = ", ".join(sorted(one.broker for one in found.values())) or "nobody"
        text = f"broker {broker!r} is behind none of the addresses, {known} is"
        if len(found) == len(self._addresses):
            raise NotFoundError(text)
        raise RetriableError(text)


def _ref(partition: model.PartitionName) -> admin_pb2.PartitionRef:
    return admin_pb2.PartitionRef(stream=partition.stream, partition=partition.partition)


def _refs(partitions: Sequence[model.PartitionName]) -> list[admin_pb2.PartitionRef]:
    return [_ref(one) for one in partitions]


def _member(member: model.Member) -> admin_pb2.Member:
    return admin_pb2.Member(broker=member.broker, data_dir_id=member.data_dir_id)

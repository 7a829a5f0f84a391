"""The admin client: it calls the Admin service of whichever broker can answer."""

from collections.abc import AsyncGenerator, Awaitable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Self, TypeVar

from liftbridge_client import admin_model as model
from liftbridge_client.aio.admin.access import AccessControl
from liftbridge_client.aio.admin.api_tokens import ApiTokens
from liftbridge_client.aio.admin.calls import AdminCalls, ref_of
from liftbridge_client.aio.admin.master_keys import MasterKeys
from liftbridge_client.aio.admin.quotas import Quotas
from liftbridge_client.aio.admin.transfers import transfer
from liftbridge_client.core.addresses import ADMIN_PORT, parse_addresses
from liftbridge_client.core.arguments import checked, checked_calls
from liftbridge_client.core.deadlines import one_deadline, try_seconds
from liftbridge_client.errors import (
    FailedPreconditionError,
    LiftbridgeError,
    NotFoundError,
)
from liftbridge_client.model import TlsFiles
from liftbridge_proto.ext.v1 import admin_pb2

_Seen = TypeVar("_Seen")


_deadline = one_deadline(attrgetter("_calls.call_seconds"))


@checked
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


@checked_calls
class AdminClient:
    """Administration of a cluster; created by `connect_admin`.

    Calls that any broker can answer go to the first address that answers. Some calls only one
    broker can answer, such as the metadata leader or a named broker. They go to that broker, which
    must be among the addresses.

    Attributes:
        access: The access rules of the cluster.
        tokens: The API tokens of the cluster.
        quotas: The quotas of the cluster.
        keys: The master keys of encrypted streams.
    """

    access: AccessControl
    tokens: ApiTokens
    quotas: Quotas
    keys: MasterKeys

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: TlsFiles | None,
        timeout: timedelta,
        retry_time: timedelta,
    ) -> None:
        self._calls = AdminCalls(
            addresses,
            tls=tls,
            timeout=try_seconds(timeout),
            retry=retry_time.total_seconds(),
        )
        self.access = AccessControl(self._calls)
        self.tokens = ApiTokens(self._calls)
        self.quotas = Quotas(self._calls)
        self.keys = MasterKeys(self._calls)

    async def __aenter__(self) -> Self:
        """Read the TLS files; connections are opened when needed.

        Raises:
            UsageError: The client is already open, or a file cannot be read.
        """
        self._calls.open()
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
        await self._calls.aclose()

    # -- looking --------------------------------------------------------------------------------

    @_deadline
    async def identities(self) -> dict[str, model.Identity]:
        """Identify the broker behind each address; addresses that do not answer are left out."""
        return await self._calls.identities()

    async def cluster(self, *, from_leader: bool = True) -> model.ClusterStatus:
        """Describe the metadata group.

        Only the metadata leader knows the progress of the members.
        """
        request = admin_pb2.ClusterStatusRequest(needs_leader=from_leader)
        return model.cluster_of(
            await self._calls.call("ClusterStatus", request, admin_pb2.ClusterStatusResponse)
        )

    async def brokers(self, *, from_leader: bool = True) -> Sequence[model.BrokerDescription]:
        """List brokers by name; only the metadata leader knows the applied index of each."""
        response = await self._calls.call(
            "ListBrokers",
            admin_pb2.ListBrokersRequest(is_confirmed=True),
            admin_pb2.ListBrokersResponse,
            find=self._calls.leader if from_leader else None,
        )
        return tuple(model.broker_of(broker) for broker in response.brokers)

    async def broker_status(self, broker: str) -> model.BrokerStatus:
        """Fetch the status of a broker: connections, disk, configuration."""
        response = await self._calls.call(
            "BrokerStatus",
            admin_pb2.BrokerStatusRequest(),
            admin_pb2.BrokerStatusResponse,
            find=partial(self._calls.address_of, broker),
        )
        return model.status_of(response)

    async def settings(self, broker: str) -> Sequence[model.Setting]:
        """List the settings in effect on a broker, with secrets masked."""
        response = await self._calls.call(
            "ListSettings",
            admin_pb2.ListSettingsRequest(),
            admin_pb2.ListSettingsResponse,
            find=partial(self._calls.address_of, broker),
        )
        return model.settings_of(response)

    async def reload(self, broker: str) -> model.Reloaded:
        """Reload the configuration of a broker, as SIGHUP does.

        Raises:
            InvalidRequestError: The configuration is invalid; nothing changed.
        """
        response = await self._calls.call(
            "ReloadSettings",
            admin_pb2.ReloadSettingsRequest(),
            admin_pb2.ReloadSettingsResponse,
            find=partial(self._calls.address_of, broker),
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
            broker: If given, list only partitions with a replica on this broker.
            only_degraded: Whether to list only partitions without a leader or with replicas out of
                sync.
            seen_by: Broker that answers and reports its own log end offsets; empty for any.
        """
        request = admin_pb2.ListPartitionsRequest(
            streams=streams, broker=broker, only_degraded=only_degraded
        )
        find = partial(self._calls.address_of, seen_by) if seen_by else None
        async for one in self._calls.partitions(request, find):
            yield one

    async def reassignments(self) -> Sequence[model.Reassignment]:
        """List reassignments in progress."""
        request = admin_pb2.ListReassignmentsRequest()
        response = await self._calls.call(
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
            needs_full_isr: Whether all other replicas must be in sync; otherwise min ISR suffices.
            allow_unavailable: Whether to accept that partitions with one replica become
                unavailable, and that the metadata group loses its quorum.
            valid: Validity of the token, 1 s to 10 min.
        """
        gate = admin_pb2.RESTART_GATE_UNSPECIFIED
        request = admin_pb2.CheckRestartRequest(
            broker=broker,
            gate=gate if needs_full_isr else admin_pb2.RESTART_GATE_MIN_ISR,
            allow_unavailable=allow_unavailable,
            valid_ms=valid // timedelta(milliseconds=1),
        )
        response = await self._calls.call(
            "CheckRestart",
            request,
            admin_pb2.CheckRestartResponse,
            find=partial(self._calls.address_of, broker),
        )
        return model.check_of(response)

    async def verify_restart(self, broker: str, token: bytes) -> model.RestartVerification:
        """Check whether a restarted broker has recovered everything that its token recorded."""
        response = await self._calls.call(
            "VerifyRestart",
            admin_pb2.VerifyRestartRequest(token=token),
            admin_pb2.VerifyRestartResponse,
            find=partial(self._calls.address_of, broker),
        )
        return model.verification_of(response)

    # -- brokers --------------------------------------------------------------------------------

    async def cordon(self, broker: str, *, drain: bool = False) -> int:
        """Cordon a broker and, with `drain`, move its replicas away.

        Return its number of replicas.
        """
        request = admin_pb2.CordonBrokerRequest(broker=broker, is_draining=drain)
        response = await self._calls.call("CordonBroker", request, admin_pb2.CordonBrokerResponse)
        return response.replicas

    async def uncordon(self, broker: str) -> None:
        """End the cordon and the drain of a broker."""
        request = admin_pb2.UncordonBrokerRequest(broker=broker)
        await self._calls.call("UncordonBroker", request, admin_pb2.UncordonBrokerResponse)

    @_deadline
    async def remove_broker(self, broker: str, *, broker_epoch: int = 0) -> None:
        """Remove a stopped broker without replicas; `broker_epoch` 0 means its current session."""
        request = admin_pb2.RemoveBrokerRequest(broker=broker, broker_epoch=broker_epoch)
        try:
            await self._calls.call("RemoveBroker", request, admin_pb2.RemoveBrokerResponse)
        except NotFoundError as error:
            if not error.may_be_done:  # otherwise an attempt of this call removed it
                raise
        except FailedPreconditionError as error:
            if not error.may_be_done:
                raise
            if any(one.broker == broker for one in await _seen(self.brokers())):
                raise

    async def retire(self, broker: str, data_dir_id: str) -> None:
        """Permanently bar a broker's data directory from voting, before the broker is stopped.

        Raises:
            FailedPreconditionError: The broker holds replicas, is a voter, or has another data
                directory.
        """
        await self._calls.call(
            "Retire",
            admin_pb2.RetireRequest(data_dir_id=data_dir_id),
            admin_pb2.RetireResponse,
            find=partial(self._calls.address_of, broker),
        )

    async def set_feature_level(self, level: int) -> None:
        """Raise the feature level of the cluster, permanently."""
        request = admin_pb2.SetFeatureLevelRequest(feature_level=level)
        await self._calls.call("SetFeatureLevel", request, admin_pb2.SetFeatureLevelResponse)

    async def set_catch_up_rate(self, bytes_per_second: int) -> None:
        """Limit what each leader sends to replicas added by reassignments; 0 for no limit."""
        request = admin_pb2.SetCatchUpRateRequest(bytes_per_second=bytes_per_second)
        await self._calls.call("SetCatchUpRate", request, admin_pb2.SetCatchUpRateResponse)

    # -- keys of encrypted streams --------------------------------------------------------------

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
        await self._calls.call("SetStreamOwner", request, admin_pb2.SetStreamOwnerResponse)

    # -- partitions -----------------------------------------------------------------------------

    @_deadline
    async def transfer_leadership(
        self, *partitions: model.PartitionName, from_broker: str = "", to: str = ""
    ) -> Sequence[model.PartitionOutcome]:
        """Transfer leadership of the listed partitions, or of up to 1,000 that a broker leads.

        Args:
            partitions: Partitions, all led by the same broker.
            from_broker: Broker whose partitions are transferred if `partitions` is empty.
            to: New leader; by default, for each partition, the first in-sync replica that can lead.
        """
        return await transfer(self._calls, partitions, source=from_broker, to=to)

    async def elect_preferred(
        self, *partitions: model.PartitionName
    ) -> Sequence[model.PartitionOutcome]:
        """Elect the first replica of partitions.

        By default of up to 1,000 partitions where that changes the leader.
        """
        request = admin_pb2.ElectPreferredRequest(
            partitions=[ref_of(partition) for partition in partitions]
        )
        response = await self._calls.call(
            "ElectPreferred", request, admin_pb2.ElectPreferredResponse
        )
        return model.outcomes_of(response.outcomes)

    @_deadline
    async def elect_unclean(
        self, partition: model.PartitionName, broker: str, *, partition_epoch: int
    ) -> model.Election:
        """Elect a replica that may lack acknowledged records, if the partition epoch matches."""
        request = admin_pb2.ElectUncleanRequest(
            partition=ref_of(partition), broker=broker, partition_epoch=partition_epoch
        )
        try:
            response = await self._calls.call(
                "ElectUnclean", request, admin_pb2.ElectUncleanResponse
            )
        except FailedPreconditionError as error:
            earlier = await _left_by(error, self._status_of(partition))
            is_own = earlier is not None and earlier.unclean_epoch > partition_epoch
            if earlier is None or not is_own or earlier.leader != broker:
                raise
            return model.Election(earlier.leader, earlier.leader_epoch, earlier.partition_epoch)
        return model.Election(response.leader, response.leader_epoch, response.partition_epoch)

    @_deadline
    async def start_reassignment(
        self, partition: model.PartitionName, target: Sequence[str], *, partition_epoch: int = 0
    ) -> int:
        """Start to move a partition to brokers, preferred leader first; return its new epoch."""
        request = admin_pb2.StartReassignmentRequest(
            partition=ref_of(partition), target=target, partition_epoch=partition_epoch
        )
        try:
            response = await self._calls.call(
                "StartReassignment", request, admin_pb2.StartReassignmentResponse
            )
        except FailedPreconditionError as error:
            earlier = await _left_by(error, self._status_of(partition))
            if earlier is None:
                raise
            if list(earlier.target or [replica.broker for replica in earlier.replicas]) != list(
                target
            ):
                raise
            return earlier.partition_epoch
        return response.partition_epoch

    @_deadline
    async def cancel_reassignment(
        self, partition: model.PartitionName, *, partition_epoch: int = 0, is_unclean: bool = False
    ) -> int:
        """Cancel the reassignment of a partition; return its new partition epoch."""
        request = admin_pb2.CancelReassignmentRequest(
            partition=ref_of(partition), partition_epoch=partition_epoch, is_unclean=is_unclean
        )
        # Once it is over, a cancelled reassignment cannot be distinguished from a completed one.
        before = await self._status_of(partition)
        try:
            response = await self._calls.call(
                "CancelReassignment", request, admin_pb2.CancelReassignmentResponse
            )
        except FailedPreconditionError as error:
            earlier = await _left_by(error, self._status_of(partition))
            if before is None or earlier is None or not before.target or earlier.target:
                raise
            if [replica.broker for replica in earlier.replicas] == list(before.target):
                raise
            return earlier.partition_epoch
        return response.partition_epoch

    # -- the metadata group ---------------------------------------------------------------------

    @_deadline
    async def bootstrap(self, cluster_id: str, members: Sequence[model.Member]) -> None:
        """Form a cluster of the listed brokers, which must all be among the addresses."""
        request = admin_pb2.BootstrapRequest(
            cluster_id=cluster_id, members=[_member(one) for one in members]
        )
        for member in members:
            find = partial(self._calls.address_of, member.broker)
            try:
                await self._calls.call("Bootstrap", request, admin_pb2.BootstrapResponse, find=find)
            except LiftbridgeError as error:
                error.may_be_done = error.may_be_done or member is not members[0]
                raise

    @_deadline
    async def transfer_metadata_leadership(self, to: str = "") -> str:
        """Transfer leadership of the metadata group; return the voter that was asked to lead."""
        # A repeated attempt, which reaches the new leader, must not choose another voter.
        to = to or _successor(await self.brokers())
        request = admin_pb2.TransferMetadataLeadershipRequest(to=to)
        response = await self._calls.call(
            "TransferMetadataLeadership", request, admin_pb2.TransferMetadataLeadershipResponse
        )
        return response.to

    async def add_learner(self, member: model.Member) -> None:
        """Add a learner (a member without a vote) to the metadata group."""
        request = admin_pb2.AddLearnerRequest(member=_member(member))
        await self._calls.call("AddLearner", request, admin_pb2.AddLearnerResponse)

    async def promote_learner(self, member: model.Member) -> None:
        """Promote a learner that has caught up to voter."""
        request = admin_pb2.PromoteLearnerRequest(member=_member(member))
        await self._calls.call("PromoteLearner", request, admin_pb2.PromoteLearnerResponse)

    async def remove_member(self, member: model.Member) -> None:
        """Remove a member from the metadata group."""
        request = admin_pb2.RemoveMemberRequest(member=_member(member))
        await self._calls.call("RemoveMember", request, admin_pb2.RemoveMemberResponse)

    # -- after an attempt -----------------------------------------------------------------------

    async def _status_of(self, partition: model.PartitionName) -> model.PartitionStatus | None:
        request = admin_pb2.ListPartitionsRequest(streams=[partition.stream])
        async for one in self._calls.partitions(request, self._calls.leader):
            if one.partition == partition.partition:
                return one
        return None


def _successor(brokers: Sequence[model.BrokerDescription]) -> str:
    """Choose the next metadata leader: the live voter with the highest applied index.

    Raises:
        FailedPreconditionError: There is no live voter.
    """
    voters = [one for one in brokers if one.role == "voter"]
    able = [voter for voter in voters if not (voter.is_fenced or voter.is_stopping)]
    if not able:
        raise FailedPreconditionError("the metadata group has no other live voter")
    return max(able, key=lambda one: (one.applied_index or 0, one.broker)).broker


async def _left_by(
    error: LiftbridgeError, look: Coroutine[object, object, model.PartitionStatus | None]
) -> model.PartitionStatus | None:
    """Fetch a partition if an earlier attempt of the refused call may have taken effect."""
    if error.may_be_done:
        return await _seen(look)
    look.close()
    return None


async def _seen(look: Awaitable[_Seen]) -> _Seen:
    """Fetch the state after a change that may have taken effect; mark errors accordingly."""
    try:
        return await look
    except LiftbridgeError as error:
        error.may_be_done = True
        raise


def _member(member: model.Member) -> admin_pb2.Member:
    return admin_pb2.Member(broker=member.broker, data_dir_id=member.data_dir_id)

"""`liftbridge.ext.v1.Admin`, changing methods: brokers, leaderships, replicas, the group."""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from google.protobuf.message import Message

from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.operators.admin_context import (
    LIST_MAX,
    AdminContext,
    peer_of,
    unexpected,
)
from liftbridge_broker.api.streams import check_named, decode
from liftbridge_broker.controller.balance import is_given_away
from liftbridge_broker.controller.brokers import BROKERS_MAX
from liftbridge_broker.controller.commands import (
    CancelReassignment,
    CordonBroker,
    ElectPreferred,
    Leadership,
    MarkStream,
    RecoverUnclean,
    RemoveBroker,
    Resign,
    SetCatchUpRate,
    SetFeatureLevel,
    StartReassignment,
)
from liftbridge_broker.controller.records import Outcomes, PartitionAnswer
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    NotFoundError,
)
from liftbridge_broker.model.ids import BrokerId, PartitionId, StreamName, number_of, stream_of
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.metadata.group import furthest_voter, is_alive
from liftbridge_broker.node.scheduling.steps import STEP, all_partitions
from liftbridge_proto.ext.v1 import admin_pb2


class AdminChanges:
    """All changing methods; each change is validated where it is applied."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    # -- brokers --------------------------------------------------------------------------------

    def cordon(self, call: Call, raw: bytes) -> None:
        """Serve `CordonBroker`."""
        request = decode(call, admin_pb2.CordonBrokerRequest, raw)
        if request is None:
            return
        broker = BrokerId(request.broker)
        context = self._context
        context.broker(broker)

        def done(_outcome: object) -> Message:
            held = context.state.replica_counts[broker]
            return admin_pb2.CordonBrokerResponse(replicas=held)

        command = CordonBroker(broker=broker, cordoned=True, draining=request.is_draining)
        context.propose(call, command, done)

    def uncordon(self, call: Call, raw: bytes) -> None:
        """Serve `UncordonBroker`."""
        request = decode(call, admin_pb2.UncordonBrokerRequest, raw)
        if request is None:
            return
        broker = self._context.broker(request.broker).broker
        command = CordonBroker(broker=broker, cordoned=False)
        self._context.propose(call, command, lambda _outcome: admin_pb2.UncordonBrokerResponse())

    def remove_broker(self, call: Call, raw: bytes) -> None:
        """Serve `RemoveBroker`."""
        request = decode(call, admin_pb2.RemoveBrokerRequest, raw)
        if request is None:
            return
        known = self._context.broker(request.broker)
        command = RemoveBroker(
            broker=known.broker, broker_epoch=request.broker_epoch or known.broker_epoch
        )
        self._context.propose(call, command, lambda _outcome: admin_pb2.RemoveBrokerResponse())

    def set_feature_level(self, call: Call, raw: bytes) -> None:
        """Serve `SetFeatureLevel`."""
        request = decode(call, admin_pb2.SetFeatureLevelRequest, raw)
        if request is None:
            return
        command = SetFeatureLevel(feature_level=request.feature_level)
        self._context.propose(call, command, lambda _outcome: admin_pb2.SetFeatureLevelResponse())

    def set_catch_up_rate(self, call: Call, raw: bytes) -> None:
        """Serve `SetCatchUpRate`."""
        request = decode(call, admin_pb2.SetCatchUpRateRequest, raw)
        if request is None:
            return
        command = SetCatchUpRate(bytes_per_second=request.bytes_per_second)
        self._context.propose(call, command, lambda _outcome: admin_pb2.SetCatchUpRateResponse())

    def set_stream_owner(self, call: Call, raw: bytes) -> None:
        """Serve `SetStreamOwner`."""
        request = decode(call, admin_pb2.SetStreamOwnerRequest, raw)
        if request is None:
            return
        command = MarkStream(
            name=StreamName(request.stream),
            stream_id=request.stream_id,
            expected=request.expected,
            owner=request.owner,
        )
        self._context.propose(call, command, lambda _outcome: admin_pb2.SetStreamOwnerResponse())

    def reload(self, call: Call, raw: bytes) -> None:
        """Serve `ReloadSettings`."""
        if decode(call, admin_pb2.ReloadSettingsRequest, raw) is None:
            return
        changed = self._context.facts.reload()
        response = admin_pb2.ReloadSettingsResponse(
            applied=changed.applied, restart_needed=changed.restart_needed
        )
        call.reply(response.SerializeToString())

    def retire(self, call: Call, raw: bytes) -> None:
        """Serve `Retire`."""
        request = decode(call, admin_pb2.RetireRequest, raw)
        if request is None:
            return
        context = self._context
        if request.data_dir_id != context.me.data_dir_id:
            raise FailedPreconditionError(
                f"broker {context.me.broker} has directory {context.me.data_dir_id}, "
                f"not {request.data_dir_id}"
            )
        context.confirm(call, partial(self._retire, call))

    def _retire(self, call: Call) -> Iterator[None]:
        context = self._context
        me = context.me
        held = context.state.replica_counts[BrokerId(me.broker)]
        if held:
            raise FailedPreconditionError(f"broker {me.broker} still has {held} replicas")
        if me in context.consensus.voters:
            raise FailedPreconditionError(f"broker {me.broker} still votes in the metadata group")
        context.facts.retire()
        call.reply(admin_pb2.RetireResponse().SerializeToString())
        yield from ()

    # -- leaderships ----------------------------------------------------------------------------

    def transfer(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `TransferLeadership`."""
        request = decode(call, admin_pb2.TransferLeadershipRequest, raw)
        if request is None:
            return
        context = self._context
        partitions = yield from self._to_transfer(request)
        leaders = {partition.leader for partition in partitions if partition.leader is not None}
        if len(leaders) != 1 or any(partition.leader is None for partition in partitions):
            if not partitions:
                call.reply(admin_pb2.TransferLeadershipResponse().SerializeToString())
                return
            raise FailedPreconditionError(
                "partitions: must all be led by one broker, but are led by "
                + ", ".join(sorted({partition.leader or "none" for partition in partitions}))
            )
        leader = leaders.pop()
        if request.to:
            context.broker(request.to)
        command = Resign(
            broker=leader,
            broker_epoch=context.broker(leader).broker_epoch,
            partitions=tuple(
                Leadership(partition.partition_id, partition.leader_epoch)
                for partition in partitions
            ),
            successor=BrokerId(request.to),
            reason="operator",
        )
        names = _names(context.state, [partition.partition_id for partition in partitions])
        context.propose(
            call,
            command,
            lambda outcome: admin_pb2.TransferLeadershipResponse(
                outcomes=_outcomes(outcome, names)
            ),
        )

    def _to_transfer(
        self, request: admin_pb2.TransferLeadershipRequest
    ) -> Generator[None, None, Sequence[PartitionState]]:
        context = self._context
        if request.partitions:
            if getattr(request, "from"):
                raise InvalidRequestError("from: cannot be given together with partitions")
            return self._listed(request.partitions)
        source = context.broker(getattr(request, "from")).broker
        # Only leaderships that another broker can take: others would block the rest of the list.
        can_lead = {broker.broker for broker in context.state.brokers.values() if broker.can_lead}
        able = can_lead - {source} if not request.to else can_lead & {BrokerId(request.to)}
        return (
            yield from self._first(lambda one: one.leader == source and bool(able & {*one.isr}))
        )

    def _first(
        self, is_meant: Callable[[PartitionState], bool]
    ) -> Generator[None, None, Sequence[PartitionState]]:
        """Return the first `LIST_MAX` partitions for which `is_meant` holds."""
        matching: list[PartitionState] = []
        for number, (_, partition) in enumerate(all_partitions(self._context.state), 1):
            if is_meant(partition):
                matching.append(partition)
                if len(matching) == LIST_MAX:
                    break
            if number % STEP == 0:
                yield
        return matching

    def _listed(self, refs: Sequence[admin_pb2.PartitionRef]) -> Sequence[PartitionState]:
        if len(refs) > LIST_MAX:
            raise InvalidRequestError(f"partitions: {len(refs)} listed, at most {LIST_MAX}")
        partitions = [self._context.find(ref)[1] for ref in refs]
        if len({partition.partition_id for partition in partitions}) != len(partitions):
            raise InvalidRequestError("partitions: a partition is listed twice")
        return partitions

    def elect_preferred(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `ElectPreferred`."""
        request = decode(call, admin_pb2.ElectPreferredRequest, raw)
        if request is None:
            return
        context = self._context
        if request.partitions:
            meant = self._listed(request.partitions)
        else:
            meant = yield from self._first(partial(is_given_away, context.state))
        command = ElectPreferred(partitions=tuple(one.partition_id for one in meant))
        if not meant:
            call.reply(admin_pb2.ElectPreferredResponse().SerializeToString())
            return
        names = _names(context.state, command.partitions)
        context.propose(
            call,
            command,
            lambda outcome: admin_pb2.ElectPreferredResponse(outcomes=_outcomes(outcome, names)),
        )

    def elect_unclean(self, call: Call, raw: bytes) -> None:
        """Serve `ElectUnclean`."""
        request = decode(call, admin_pb2.ElectUncleanRequest, raw)
        if request is None:
            return
        if not request.partition_epoch:
            raise InvalidRequestError("partition_epoch: is required because records may be lost")
        context = self._context
        _, partition = context.find(request.partition)
        command = RecoverUnclean(
            partition_id=partition.partition_id,
            chosen=context.broker(request.broker).broker,
            partition_epoch=request.partition_epoch,
        )

        def done(outcome: object) -> Message:
            if not isinstance(outcome, PartitionAnswer):
                raise unexpected(outcome)
            return admin_pb2.ElectUncleanResponse(
                leader=outcome.leader or "",
                leader_epoch=outcome.leader_epoch,
                partition_epoch=outcome.partition_epoch,
            )

        context.propose(call, command, done)

    # -- replicas -------------------------------------------------------------------------------

    def start_reassignment(self, call: Call, raw: bytes) -> None:
        """Serve `StartReassignment`."""
        request = decode(call, admin_pb2.StartReassignmentRequest, raw)
        if request is None:
            return
        check_named("target", len(request.target), BROKERS_MAX)
        _, partition = self._context.find(request.partition)
        command = StartReassignment(
            partition_id=partition.partition_id,
            target=tuple(BrokerId(one) for one in request.target),
            partition_epoch=request.partition_epoch,
        )
        self._context.propose(
            call,
            command,
            lambda outcome: admin_pb2.StartReassignmentResponse(partition_epoch=_epoch(outcome)),
        )

    def cancel_reassignment(self, call: Call, raw: bytes) -> None:
        """Serve `CancelReassignment`."""
        request = decode(call, admin_pb2.CancelReassignmentRequest, raw)
        if request is None:
            return
        _, partition = self._context.find(request.partition)
        command = CancelReassignment(
            partition_id=partition.partition_id,
            partition_epoch=request.partition_epoch,
            is_unclean=request.is_unclean,
        )
        self._context.propose(
            call,
            command,
            lambda outcome: admin_pb2.CancelReassignmentResponse(partition_epoch=_epoch(outcome)),
        )

    # -- the metadata group ---------------------------------------------------------------------

    def transfer_metadata(self, call: Call, raw: bytes) -> None:
        """Serve `TransferMetadataLeadership`."""
        request = decode(call, admin_pb2.TransferMetadataLeadershipRequest, raw)
        if request is None:
            return
        context = self._context
        context.check_leader()
        target = BrokerId(request.to) if request.to else self._successor()
        response = admin_pb2.TransferMetadataLeadershipResponse(to=target)
        if target != context.me.broker:
            consensus = context.consensus
            context.change_group(lambda: consensus.transfer(target))
        call.reply(response.SerializeToString())

    def _successor(self) -> BrokerId:
        context = self._context
        successor = furthest_voter(context.state, context.consensus, besides=context.me)
        if successor is None:
            raise FailedPreconditionError("the metadata group has no other live voter")
        return successor

    def add_learner(self, call: Call, raw: bytes) -> None:
        """Serve `AddLearner`."""
        request = decode(call, admin_pb2.AddLearnerRequest, raw)
        if request is None:
            return
        context = self._context
        peer = peer_of(request.member)
        context.check_leader()
        known = context.state.brokers.get(peer.broker)
        if known is not None and known.removed and known.data_dir_id == peer.data_dir_id:
            raise FailedPreconditionError(
                f"broker {peer.broker} was removed with directory {peer.data_dir_id}"
            )
        response = admin_pb2.AddLearnerResponse()
        if peer not in (*context.consensus.voters, *context.consensus.learners):
            context.change_group(lambda: context.consensus.add_learner(peer))
        call.reply(response.SerializeToString())

    def promote(self, call: Call, raw: bytes) -> None:
        """Serve `PromoteLearner`."""
        request = decode(call, admin_pb2.PromoteLearnerRequest, raw)
        if request is None:
            return
        peer = peer_of(request.member)
        consensus = self._context.consensus
        if peer not in consensus.voters:
            self._change_member(peer, lambda: consensus.promote(peer))
        call.reply(admin_pb2.PromoteLearnerResponse().SerializeToString())

    def remove_member(self, call: Call, raw: bytes) -> None:
        """Serve `RemoveMember`."""
        request = decode(call, admin_pb2.RemoveMemberRequest, raw)
        if request is None:
            return
        context = self._context
        peer = peer_of(request.member)
        context.check_leader()
        if peer in (*context.consensus.voters, *context.consensus.learners):
            self._check_removal(peer)
            self._change_member(peer, lambda: context.consensus.remove(peer))
        call.reply(admin_pb2.RemoveMemberResponse().SerializeToString())

    def _change_member(self, peer: Peer, change: Callable[[], None]) -> None:
        context = self._context
        context.check_leader()
        if peer not in (*context.consensus.voters, *context.consensus.learners):
            raise NotFoundError(
                f"broker {peer.broker} with directory {peer.data_dir_id} is not a member of "
                "the metadata group"
            )
        context.change_group(change)

    def _check_removal(self, peer: Peer) -> None:
        """Refuse a removal that would soon be undone, or leave the group without a quorum."""
        context = self._context
        state, voters = context.state, context.consensus.voters
        known = state.brokers.get(peer.broker)
        # With at least `voters_max` other voters it would rejoin without a vote.
        is_demoted = peer in voters and len(voters) > context.facts.voters_max
        is_staying = is_alive(state, peer) and known is not None and not known.draining
        if is_staying and not is_demoted:
            raise FailedPreconditionError(
                f"broker {peer.broker} is alive and would join again, drain it first"
            )
        if peer not in voters:
            return
        left = [voter for voter in voters if voter != peer]
        alive = sum(is_alive(state, one) for one in left)
        if alive < len(left) // 2 + 1:
            raise FailedPreconditionError(
                f"the metadata group would have {alive} live voters of {len(left)}, needs "
                f"{len(left) // 2 + 1}"
            )


def _names(
    state: ClusterState, partitions: Sequence[PartitionId]
) -> dict[PartitionId, admin_pb2.PartitionRef]:
    """Return the current names of partitions, which may be deleted before the answer arrives."""
    return {
        partition: admin_pb2.PartitionRef(
            stream=state.streams[stream_of(partition)].name, partition=number_of(partition)
        )
        for partition in partitions
    }


def _outcomes(
    outcome: object, names: dict[PartitionId, admin_pb2.PartitionRef]
) -> list[admin_pb2.PartitionOutcome]:
    if not isinstance(outcome, Outcomes):
        raise unexpected(outcome)
    return [
        admin_pb2.PartitionOutcome(partition=names[one.partition_id], code=one.code, text=one.text)
        for one in outcome.outcomes
    ]


def _epoch(outcome: object) -> int:
    if not isinstance(outcome, PartitionAnswer):
        raise unexpected(outcome)
    return outcome.partition_epoch

"""`liftbridge.ext.v1.Admin`, read-only methods: brokers, partitions, the metadata group."""

from collections import Counter
from collections.abc import Container, Generator, Iterator, Mapping
from functools import partial

from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.operators.admin_context import AdminContext, peer_of
from liftbridge_broker.api.streams import check_named, decode
from liftbridge_broker.controller.commands import Bootstrap
from liftbridge_broker.controller.state import (
    BrokerState,
    ClusterState,
    StreamState,
    effective_min_isr,
)
from liftbridge_broker.errors import FailedPreconditionError, InvalidRequestError, UnavailableError
from liftbridge_broker.model.ids import BrokerId, PartitionId
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.group import is_alive
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.scheduling.steps import STEP, all_partitions, in_steps
from liftbridge_broker.replication.leader import ReplicaLag
from liftbridge_proto.ext.v1 import admin_pb2

PAGE_SIZE_MAX = 1_000
CLUSTER_ID_LENGTH_MAX = 64
MEMBERS_MAX = 15
"""Maximum number of founders of a cluster; more voters make a group slower, not safer."""


class AdminService:
    """Identity and bootstrap, and all read-only methods."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    # -- beginning ------------------------------------------------------------------------------

    def identity(self, call: Call, raw: bytes) -> None:
        """Serve `Identity`."""
        if decode(call, admin_pb2.IdentityRequest, raw) is None:
            return
        context = self._context
        response = admin_pb2.IdentityResponse(
            broker=context.me.broker,
            data_dir_id=context.me.data_dir_id,
            start_id=context.facts.start_id,
        )
        if context.running is not None:
            state, leader = context.state, context.consensus.leader
            own = state.brokers.get(BrokerId(context.me.broker))
            response.has_metadata = True
            response.cluster_id = state.cluster_id
            response.metadata_leader = "" if leader is None else leader.broker
            response.is_retired = context.facts.is_retired() or (
                own is not None and own.removed and own.data_dir_id == context.me.data_dir_id
            )
        call.reply(response.SerializeToString())

    def bootstrap(self, call: Call, raw: bytes) -> None:
        """Serve `Bootstrap`."""
        request = decode(call, admin_pb2.BootstrapRequest, raw)
        if request is None:
            return
        _check_cluster_id(request.cluster_id)
        if not 0 < len(request.members) <= MEMBERS_MAX:
            raise InvalidRequestError(
                f"members: {len(request.members)} given, must be 1 to {MEMBERS_MAX}"
            )
        members = tuple(sorted(peer_of(member) for member in request.members))
        context = self._context
        if len({peer.broker for peer in members}) != len(members):
            raise InvalidRequestError("members: a broker is listed twice")
        if context.me not in members:
            raise InvalidRequestError(
                f"members: must include broker {context.me.broker} with directory "
                f"{context.me.data_dir_id}"
            )
        if context.running is not None:
            self._bootstrap_again(call, request.cluster_id, members)
        elif context.found is None:
            raise UnavailableError(f"broker {context.me.broker} is starting, try again")
        else:
            is_new = context.found(members, request.cluster_id)
            response = admin_pb2.BootstrapResponse(was_done=not is_new)
            call.reply(response.SerializeToString())

    def _bootstrap_again(self, call: Call, cluster_id: str, members: tuple[Peer, ...]) -> None:
        """Confirm the cluster of a non-empty directory by its id or, without one, its members."""
        context = self._context
        present = context.state.cluster_id
        if present and present != cluster_id:
            raise FailedPreconditionError(
                f"broker {context.me.broker} is not empty, it belongs to cluster {present}"
            )
        response = admin_pb2.BootstrapResponse(was_done=True)
        if present:
            call.reply(response.SerializeToString())
        elif members != tuple(sorted(context.consensus.voters)):
            raise FailedPreconditionError(
                f"broker {context.me.broker} is not empty, it was bootstrapped with other members"
            )
        else:
            # All were killed before the first leader assigned the cluster id.
            context.propose(call, Bootstrap(cluster_id=cluster_id), lambda _outcome: response)

    # -- cluster --------------------------------------------------------------------------------

    def cluster(self, call: Call, raw: bytes) -> None:
        """Serve `ClusterStatus`."""
        request = decode(call, admin_pb2.ClusterStatusRequest, raw)
        if request is None:
            return
        context = self._context
        if request.needs_leader:
            context.check_leader()
        state, consensus = context.state, context.consensus
        leader = consensus.leader
        known = [broker.feature_level for broker in state.brokers.values() if not broker.removed]
        response = admin_pb2.ClusterStatusResponse(
            cluster_id=state.cluster_id,
            metadata_leader="" if leader is None else leader.broker,
            term=consensus.term,
            applied_index=state.applied_index,
            applied_hash=state.chain,
            feature_level=state.feature_level,
            feature_level_available=min(known, default=state.feature_level),
            catch_up_rate=state.catch_up_rate,
        )
        for peer in (*consensus.voters, *consensus.learners):
            response.members.add(
                member=admin_pb2.Member(broker=peer.broker, data_dir_id=peer.data_dir_id),
                is_voter=peer in consensus.voters,
                is_leader=peer == leader,
                match_index=consensus.match(peer),
                is_alive=is_alive(state, peer),
            )
        call.reply(response.SerializeToString())

    # -- brokers --------------------------------------------------------------------------------

    def brokers(self, call: Call, raw: bytes) -> Iterator[None] | None:
        """Serve `ListBrokers`."""
        request = decode(call, admin_pb2.ListBrokersRequest, raw)
        if request is None:
            return None
        if request.is_confirmed:
            self._context.confirm(call, partial(self._brokers, call))
            return None
        return self._brokers(call)

    def _brokers(self, call: Call) -> Iterator[None]:
        context = self._context
        state = context.state
        response = admin_pb2.ListBrokersResponse(applied_index=state.applied_index)
        replicas, leaders, behind = yield from _counts(state)
        applied = self._applied_indexes()
        for _, broker in sorted(state.brokers.items()):
            if broker.removed:
                continue
            target = response.brokers.add()
            _describe_broker(broker, target)
            target.role = self._role(broker)
            target.replicas = replicas[broker.broker]
            target.leaders = leaders[broker.broker]
            target.out_of_sync = behind[broker.broker]
            if broker.broker in applied:
                target.applied_index = applied[broker.broker]
        call.reply(response.SerializeToString())

    def _applied_indexes(self) -> Mapping[BrokerId, int]:
        node = self._context.node
        applied = {} if node.cluster is None else node.cluster.control.applied_indexes
        return {**applied, node.broker: self._context.state.applied_index}

    def _role(self, broker: BrokerState) -> admin_pb2.BrokerDescription.Role:
        peer = Peer(broker.broker, broker.data_dir_id)
        consensus = self._context.consensus
        if peer == consensus.leader:
            return admin_pb2.BrokerDescription.ROLE_LEADER
        if peer in consensus.voters:
            return admin_pb2.BrokerDescription.ROLE_VOTER
        if peer in consensus.learners:
            return admin_pb2.BrokerDescription.ROLE_LEARNER
        return admin_pb2.BrokerDescription.ROLE_UNSPECIFIED

    def settings(self, call: Call, raw: bytes) -> None:
        """Serve `ListSettings`."""
        if decode(call, admin_pb2.ListSettingsRequest, raw) is None:
            return
        facts = self._context.facts
        waiting = frozenset(facts.restart_needed())
        response = admin_pb2.ListSettingsResponse()
        for setting in facts.settings():
            if setting.has_effect:
                response.settings.add(
                    key=setting.key,
                    value=setting.text,
                    source=setting.source,
                    is_dynamic=setting.is_reloadable,
                    needs_restart=setting.key in waiting,
                )
        call.reply(response.SerializeToString())

    def status(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `BrokerStatus`."""
        if decode(call, admin_pb2.BrokerStatusRequest, raw) is None:
            return
        context = self._context
        node, facts = context.node, context.facts
        response = admin_pb2.BrokerStatusResponse(
            broker=node.broker,
            version=facts.version,
            time=context.clock.wall_ns(),
            configuration_hash=facts.configuration_hash,
            restart_needed=facts.restart_needed(),
            nats_server=facts.nats().server,
            nats_cluster=facts.nats().cluster,
            peer_keys=facts.peer_keys(),
            is_nats_connected=node.context.messaging.is_connected,
            are_peers_connected=facts.are_peers_connected(),
            is_disk_full=node.context.store.disk.is_full,
            free_bytes=node.context.files.free_bytes(),
            replicas=len(node.partitions),
        )

        def add(partition: Partition) -> None:
            response.log_bytes += partition.log.size_bytes
            response.leaders += partition.is_led
            if partition.offline_reason:
                ref = admin_pb2.PartitionRef(stream=partition.stream, partition=partition.number)
                response.offline.add(partition=ref, reason=partition.offline_reason)

        yield from in_steps(list(node.partitions.values()), add)
        for certificate in facts.certificates():
            response.certificates.add(
                setting=certificate.setting, fingerprint=certificate.fingerprint
            )
        call.reply(response.SerializeToString())

    # -- partitions -----------------------------------------------------------------------------

    def partitions(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `ListPartitions`.

        The token is the id of the last partition of the previous page.
        """
        request = decode(call, admin_pb2.ListPartitionsRequest, raw)
        if request is None:
            return
        context = self._context
        size = request.page_size or PAGE_SIZE_MAX
        if not 0 < size <= PAGE_SIZE_MAX:
            raise InvalidRequestError(f"page_size {size}: must be 1 to {PAGE_SIZE_MAX}")
        check_named("streams", len(request.streams))
        yield
        streams = dict.fromkeys(request.streams)
        yield from in_steps(streams, context.check_stream)
        response = admin_pb2.ListPartitionsResponse(applied_index=context.state.applied_index)
        last = 0
        for number, (stream, partition) in enumerate(all_partitions(context.state), 1):
            if _is_wanted(request, streams, stream, partition):
                if len(response.partitions) == size:
                    response.next_page_token = last
                    break
                last = partition.partition_id
                target = response.partitions.add()
                _describe_partition(stream, partition, target)
                _add_ends(context.node, partition, target, context)
            if number % STEP == 0:
                yield
        call.reply(response.SerializeToString())

    def reassignments(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `ListReassignments`."""
        if decode(call, admin_pb2.ListReassignmentsRequest, raw) is None:
            return
        response = admin_pb2.ListReassignmentsResponse()

        def add(one: tuple[StreamState, PartitionState]) -> None:
            stream, partition = one
            if partition.is_reassigning:
                response.reassignments.add(
                    partition=_ref(stream, partition),
                    replicas=partition.replicas,
                    target=partition.target,
                    adding=partition.adding,
                    removing=partition.removing,
                    caught_up=[one for one in partition.adding if one in partition.isr],
                    partition_epoch=partition.partition_epoch,
                )

        yield from in_steps(all_partitions(self._context.state), add)
        call.reply(response.SerializeToString())


def _check_cluster_id(cluster_id: str) -> None:
    is_word = cluster_id.replace("-", "").replace("_", "").replace(".", "").isalnum()
    if not is_word or not cluster_id.isascii() or len(cluster_id) > CLUSTER_ID_LENGTH_MAX:
        raise InvalidRequestError(
            f"cluster_id {cluster_id!r}: must be 1 to {CLUSTER_ID_LENGTH_MAX} letters, digits "
            "and any of '-_.'"
        )


def _counts(
    state: ClusterState,
) -> Generator[None, None, tuple[Counter[BrokerId], Counter[BrokerId], Counter[BrokerId]]]:
    """Count replicas, leaderships and out-of-sync replicas by broker."""
    leaders: Counter[BrokerId] = Counter()
    behind: Counter[BrokerId] = Counter()

    def count(one: tuple[StreamState, PartitionState]) -> None:
        partition = one[1]
        behind.update(broker for broker in partition.replicas if broker not in partition.isr)
        if partition.leader is not None:
            leaders[partition.leader] += 1

    yield from in_steps(all_partitions(state), count)
    return state.replica_counts, leaders, behind


def _describe_broker(broker: BrokerState, target: admin_pb2.BrokerDescription) -> None:
    target.broker = broker.broker
    target.host = broker.host
    target.port = broker.port
    target.zone = broker.zone
    target.version = broker.version
    target.feature_level = broker.feature_level
    target.start_id = broker.incarnation_id
    target.data_dir_id = broker.data_dir_id
    target.broker_epoch = broker.broker_epoch
    target.is_fenced = broker.fenced
    target.is_cordoned = broker.cordoned
    target.is_draining = broker.draining
    target.is_stopping = broker.in_controlled_shutdown
    target.replicas_max = broker.replicas_max
    for restart in broker.restarts:
        target.restarts.add(
            start_id=restart.incarnation_id,
            time=restart.started,
            is_clean=restart.is_clean,
            version=restart.version,
        )
    for name, host, port in broker.listeners:
        target.listeners.add(name=name, host=host, port=port)


def _is_wanted(
    request: admin_pb2.ListPartitionsRequest,
    streams: Container[str],
    stream: StreamState,
    partition: PartitionState,
) -> bool:
    """Return whether a request selects a partition, and its page starts before it."""
    is_degraded = partition.leader is None or len(partition.isr) < len(partition.replicas)
    return (
        partition.partition_id > request.page_token
        and (not request.streams or stream.name in streams)
        and (not request.broker or request.broker in partition.replicas)
        and (is_degraded or not request.only_degraded)
    )


def _ref(stream: StreamState, partition: PartitionState) -> admin_pb2.PartitionRef:
    return admin_pb2.PartitionRef(stream=stream.name, partition=partition.number)


def _describe_partition(
    stream: StreamState, partition: PartitionState, target: admin_pb2.PartitionStatus
) -> None:
    target.partition.CopyFrom(_ref(stream, partition))
    target.stream_id = stream.stream_id
    target.leader = partition.leader or ""
    target.leader_epoch = partition.leader_epoch
    target.partition_epoch = partition.partition_epoch
    target.isr.extend(partition.isr)
    target.elr.extend(partition.elr)
    target.last_known_elr.extend(partition.last_known_elr)
    target.min_isr = effective_min_isr(stream, partition)
    target.is_recovering = partition.is_recovering
    target.unclean_epoch = partition.unclean_epoch
    target.is_paused = partition.paused
    target.is_readonly = partition.readonly
    target.target.extend(partition.target)
    for broker, epoch in zip(partition.replicas, partition.replica_epochs, strict=True):
        in_sync = broker in partition.isr
        target.replicas.add(broker=broker, replica_epoch=epoch, is_in_sync=in_sync)


def _add_ends(
    node: Node, state: PartitionState, target: admin_pb2.PartitionStatus, context: AdminContext
) -> None:
    """Add the log ends known to this broker: its own and, as leader, those of followers."""
    partition = node.partitions.get(state.partition_id)
    if partition is None:
        return
    lags = _lags(node, state.partition_id, context)
    for replica in target.replicas:
        lag = lags.get(BrokerId(replica.broker))
        if replica.broker == node.broker:
            log = partition.log
            replica.log_end = log.log_end_offset
            replica.high_watermark = log.high_watermark
            replica.flushed = log.recovery_point
        elif lag is not None:
            replica.lag_ms = lag.lag_ns // MILLISECOND_NS
            if lag.log_end_offset is not None:
                replica.log_end = lag.log_end_offset


def _lags(
    node: Node, partition_id: PartitionId, context: AdminContext
) -> Mapping[BrokerId, ReplicaLag]:
    if node.cluster is None:
        return {}
    leading = node.cluster.replicas.leading.get(partition_id)
    if leading is None:
        return {}
    return {lag.broker: lag for lag in leading.core.lags(context.clock.now())}

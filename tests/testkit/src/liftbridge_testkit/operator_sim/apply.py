"""Executes actions on the models, and calls the judge before each dangerous action."""

from collections.abc import Generator
from typing import Any

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decision import TokenAnswer
from liftbridge_operator.cluster.rendering.settings import VOTERS
from liftbridge_testkit.operator_sim import judge
from liftbridge_testkit.operator_sim.errors import ApiError
from liftbridge_testkit.operator_sim.stage import Seen, Stage


def apply(
    world: Stage, action: act.Action, seen: Seen
) -> Generator[None, None, TokenAnswer | None]:
    """Execute an action; return the answer of `CheckRestart`, if any.

    Raises:
        ApiError: The server or a broker refuses.
        InvariantError: The action must never be done.
    """
    judge.any_action(world, action, seen)
    if isinstance(action, act.DeletePod):
        yield from _delete_pod(world, action, seen)
        return None
    if isinstance(action, act.CheckRestart):
        return _check(world, action)
    _DOING[type(action)](world, action, seen)
    return None
    yield


def _delete_pod(world: Stage, action: act.DeletePod, seen: Seen) -> Generator[None]:
    api, meant = world.api, (action.name, action.uid, action.resource_version)
    if action.template is not None:
        _template(world, action.template, seen)
        yield
    judge.deletion(world, action, api.pod(*meant), seen)
    api.delete_pod(*meant, is_forced=action.is_forced)


def _keep_pod(world: Stage, action: act.KeepPod, seen: Seen) -> None:
    del seen
    meant = (action.name, action.uid, action.resource_version)
    world.api.patch_pod(*meant, kept=action.token)


def _check(world: Stage, action: act.CheckRestart) -> TokenAnswer:
    text, expires, against = world.brokers.check_restart(
        action.broker, action.pod_uid, accepts=action.accepts_unavailable
    )
    return TokenAnswer(text, expires, 0, against)


def _create_identity(world: Stage, action: act.CreateIdentity, seen: Seen) -> None:
    del seen
    world.api.create_identity(action.cluster_id, is_started=action.is_started)


def _write_founders(world: Stage, action: act.WriteFounders, seen: Seen) -> None:
    del seen
    now = world.api.identity
    if now is not None and now.resource_version == action.resource_version:
        judge.founders(world, now, action.founders)
    world.api.patch_identity(action.resource_version, founders=action.founders, is_started=True)


def _bootstrap(world: Stage, action: act.Bootstrap, seen: Seen) -> None:
    del seen
    for broker in action.brokers:
        world.brokers.bootstrap(broker, action.cluster_id, action.founders)


def _create_set(world: Stage, action: act.CreateSet, seen: Seen) -> None:
    if world.api.brokers is None:
        judge.set_size(world, action, seen)
    world.api.create_set(
        replicas=action.replicas,
        revision=action.revision,
        good_revision=action.good_revision,
        bad_revision=action.bad_revision,
        claim_bytes=action.claim_bytes,
    )


def _template(world: Stage, action: act.SetTemplate, seen: Seen) -> None:
    del seen
    world.api.patch_set(
        action.uid,
        action.resource_version,
        revision=action.revision,
        good_revision=action.good_revision,
        bad_revision=action.bad_revision,
    )


def _replicas(world: Stage, action: act.SetReplicas, seen: Seen) -> None:
    now = world.api.brokers
    if now is not None and now.resource_version == action.resource_version:
        judge.replicas(world, action, seen)
    world.api.patch_set(action.uid, action.resource_version, replicas=action.replicas)


def _orphan(world: Stage, action: act.OrphanSet, seen: Seen) -> None:
    del seen
    now = world.api.brokers
    if now is not None and now.resource_version == action.resource_version:
        judge.orphan(world)
    world.api.delete_set(action.uid, action.resource_version)


def _grow(world: Stage, action: act.GrowClaim, seen: Seen) -> None:
    del seen
    meant = (action.name, action.uid, action.resource_version)
    world.api.patch_claim(*meant, requested_bytes=action.size_bytes)


def _mark(world: Stage, action: act.MarkClaim, seen: Seen) -> None:
    del seen
    meant = (action.name, action.uid, action.resource_version)
    world.api.patch_claim(*meant, is_retired=action.is_retired)


def _delete_claim(world: Stage, action: act.DeleteClaim, seen: Seen) -> None:
    meant = (action.name, action.uid, action.resource_version)
    judge.claim_deletion(world, world.api.claim(*meant), seen)
    world.api.patch_claim(*meant, is_terminating=True)


def _budget(world: Stage, action: act.SetBudget, seen: Seen) -> None:
    del seen
    world.api.put_budget(action.max_unavailable)


def _record(world: Stage, action: act.Record, seen: Seen) -> None:
    now = world.api.resource
    if now is not None and now.resource_version == action.resource_version:
        judge.record(world, now, action, seen)
    recorded = action.recorded
    world.api.patch_resource(
        action.resource_version, disruption=recorded.disruption, shape=recorded.shape
    )


def _leading(world: Stage) -> None:
    if not world.brokers.has_quorum:
        raise ApiError(504, "no leader of the metadata")


def _transfer(world: Stage, action: act.TransferLeaders, seen: Seen) -> None:
    del seen
    _leading(world)
    world.brokers.transfer_leaders(action.broker, action.to)


def _transfer_metadata(world: Stage, action: act.TransferMetadataLeadership, seen: Seen) -> None:
    del seen
    _leading(world)
    brokers = world.brokers
    if action.to in {voter.broker for voter in brokers.alive_voters()} and world.rng.random() < 0.9:
        brokers.leader = action.to
        brokers.term += 1


def _elect(world: Stage, action: act.ElectPreferred, seen: Seen) -> None:
    del seen
    _leading(world)
    world.brokers.elect_preferred(action.partitions)


def _cordon(world: Stage, action: act.Cordon, seen: Seen) -> None:
    del seen
    _leading(world)
    known = world.brokers.registered.get(action.broker)
    if known is None:
        raise ApiError(404, "no such broker")
    known.is_cordoned, known.is_draining = True, action.is_draining


def _uncordon(world: Stage, action: act.Uncordon, seen: Seen) -> None:
    del seen
    _leading(world)
    known = world.brokers.registered.get(action.broker)
    if known is not None:
        known.is_cordoned = known.is_draining = False


def _add_learner(world: Stage, action: act.AddLearner, seen: Seen) -> None:
    del seen
    _leading(world)
    if action.member not in world.brokers.members:
        world.brokers.members[action.member] = False
        world.brokers.match[action.member] = 0


def _promote(world: Stage, action: act.PromoteLearner, seen: Seen) -> None:
    _leading(world)
    brokers = world.brokers
    if brokers.members.get(action.member) is not False:
        raise ApiError(409, "no learner")
    if brokers.index - brokers.match.get(action.member, 0) > 200:
        raise ApiError(409, "it has not caught up")
    judge.promotion(world, action.member, seen)
    brokers.members[action.member] = True


def _remove_member(world: Stage, action: act.RemoveMember, seen: Seen) -> None:
    _leading(world)
    brokers = world.brokers
    votes = brokers.members.get(action.member)
    if votes is None:
        return
    known = brokers.registered.get(action.member.broker)
    is_staying = brokers.is_alive(action.member) and known is not None and not known.is_draining
    if is_staying and not (votes and brokers.voter_count > VOTERS):
        raise ApiError(409, "it is alive and would be let in again")
    judge.removal(world, action.member, seen)
    del brokers.members[action.member]
    if not brokers.has_quorum:
        world.count("rare", "quorum away after a removal")


def _retire(world: Stage, action: act.Retire, seen: Seen) -> None:
    del seen
    world.brokers.retire(action.member)


def _remove_broker(world: Stage, action: act.RemoveBroker, seen: Seen) -> None:
    del seen
    _leading(world)
    known = world.brokers.registered.get(action.broker)
    if known is None or known.epoch != action.broker_epoch or not known.is_fenced:
        raise ApiError(409, "another session, or not stopped")
    if world.brokers.holds(action.broker):
        raise ApiError(409, "it has replicas")
    del world.brokers.registered[action.broker]


def _reassign(world: Stage, action: act.Reassign, seen: Seen) -> None:
    _leading(world)
    for move in action.moves:
        judge.move(world, move, seen)
        world.brokers.reassign((move.stream, move.number), move.target, move.partition_epoch)


def _rate(world: Stage, action: act.SetCatchUpRate, seen: Seen) -> None:
    del seen
    _leading(world)
    world.brokers.catch_up_rate = action.bytes_per_second


def _level(world: Stage, action: act.SetFeatureLevel, seen: Seen) -> None:
    del seen
    _leading(world)
    judge.level(world, action)
    world.brokers.feature_level = action.level
    world.reached("feature level raised")


_DOING: dict[type, Any] = {
    act.CreateIdentity: _create_identity,
    act.WriteFounders: _write_founders,
    act.Bootstrap: _bootstrap,
    act.CreateSet: _create_set,
    act.SetTemplate: _template,
    act.SetReplicas: _replicas,
    act.OrphanSet: _orphan,
    act.GrowClaim: _grow,
    act.MarkClaim: _mark,
    act.DeleteClaim: _delete_claim,
    act.SetBudget: _budget,
    act.Record: _record,
    act.KeepPod: _keep_pod,
    act.TransferLeaders: _transfer,
    act.TransferMetadataLeadership: _transfer_metadata,
    act.ElectPreferred: _elect,
    act.Cordon: _cordon,
    act.Uncordon: _uncordon,
    act.AddLearner: _add_learner,
    act.PromoteLearner: _promote,
    act.RemoveMember: _remove_member,
    act.Retire: _retire,
    act.RemoveBroker: _remove_broker,
    act.Reassign: _reassign,
    act.SetCatchUpRate: _rate,
    act.SetFeatureLevel: _level,
}

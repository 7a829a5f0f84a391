"""Checks against the true state, at each action, that the operator never breaks a rule.

A pass cannot know of events after it read the metadata, so later losses are not its fault. Earlier
losses are.
"""

from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decision import Plan
from liftbridge_operator.cluster.planning.observation import Claim, Identity, Member, Pod
from liftbridge_operator.cluster.planning.view import ordinal_of
from liftbridge_testkit.operator_sim.api import Resource
from liftbridge_testkit.operator_sim.brokers import Replicas
from liftbridge_testkit.operator_sim.errors import InvariantError
from liftbridge_testkit.operator_sim.stage import Seen, Stage


def _claim(is_kept: bool, text: str) -> None:
    if not is_kept:
        raise InvariantError(text)


def any_action(world: Stage, action: act.Action, seen: Seen) -> None:
    """Check the rules for all actions."""
    desired = seen.observation.desired
    _claim(not desired.is_paused and not desired.is_deleting, f"acts though paused: {action}")
    if isinstance(action, act.CreateSet | act.Bootstrap):
        ids = {claim.cluster_id for claim in world.api.claims.values()}
        ids |= {claim.cluster_id for claim in seen.observation.claims}
        _claim(len(ids) <= 1, f"starts over volumes of two clusters: {ids}")
    if isinstance(action, act.SetTemplate):
        world.written(action.revision)
        _claim(
            not desired.config_errors or action.revision != desired.revision,
            "writes a template with a refused configuration",
        )


def planned(plan: Plan, action: act.Action, seen: Seen) -> None:
    """Check that an action that affects brokers is a step of the published plan."""
    if plan.step_count > len(plan.steps):
        return
    steps = {(step.what, step.object) for step in plan.steps}
    for alternatives in _steps_of(action, seen):
        _claim(
            not steps.isdisjoint(alternatives),
            f"{action} is none of the steps that were planned: {sorted(steps)}",
        )


def _steps_of(action: act.Action, seen: Seen) -> list[set[tuple[str, str]]]:
    """Return the plan steps required for an action; one of each set suffices."""
    name = seen.observation.desired.name
    if isinstance(action, act.DeletePod):
        return [{(what, action.name) for what in ("Restart", "ReplaceVolume")}]
    if isinstance(action, act.DeleteClaim):
        return [{("ReplaceVolume", action.name)}]
    if isinstance(action, act.GrowClaim):
        return [{("GrowVolume", action.name)}]
    if isinstance(action, act.SetFeatureLevel):
        return [{("RaiseFeatureLevel", name)}]
    now = seen.observation.brokers
    if not isinstance(action, act.SetReplicas) or now is None:
        return []
    if action.replicas < now.replicas:
        what, numbers = "RemoveBroker", range(action.replicas, now.replicas)
    else:
        what, numbers = "AddBroker", range(now.replicas, action.replicas)
    what = "Stop" if not action.replicas else "Start" if not now.replicas else what
    return [{(what, f"{name}-{number}")} for number in numbers]


def founders(world: Stage, now: Identity, list_: tuple[Member, ...]) -> None:
    """Check Bootstrap.

    Only for a cluster that does not exist yet, and only on empty directories.
    """
    _claim(not now.is_started, "a second list of founders")
    _claim(not world.brokers.histories, "founders are written over a history")
    del list_


def _others_short(one: Replicas, broker: str, when: int) -> list[str]:
    """Return other replicas that were out of sync when the metadata was read."""
    return [
        name
        for name in one.replicas
        if name != broker and name not in one.isr and one.out_since.get(name, 0) <= when
    ]


def deletion(world: Stage, action: act.DeletePod, pod: Pod, seen: Seen) -> None:
    """Check the deletion of a pod."""
    desired, brokers = seen.observation.desired, world.brokers
    if action.is_forced:
        _claim(pod.node not in world.api.nodes, f"{pod.name} is deleted by force, its node lives")
    is_replaced = any(one.broker == pod.name for one in desired.replace)
    if not is_replaced:
        _claim(
            not desired.needs_approval or desired.approved_hash != "", "restarts without approval"
        )
        _claim(desired.is_window_open, "restarts outside of the window")
        if desired.needs_approval:
            _claim(world.is_approved(desired), "restarts what was not approved")
    process = brokers.processes.get(pod.name)
    is_serving = process is not None and brokers.is_up(pod.name)
    if not is_serving or process is None or process.start_id != pod.uid:
        _not_serving(world, pod, is_asked=is_replaced or pod.uid in desired.restarts)
        return
    when = seen.metadata_ms
    for partition in brokers.partitions.values():
        if pod.name in partition.replicas and pod.name in partition.isr:
            short = _others_short(partition, pod.name, when)
            _claim(not short, f"{pod.name} goes while {partition.key} lacks {short}")
            _claim(
                len(partition.replicas) > 1
                or desired.allows_unavailable
                or desired.approved_hash != "",
                f"{partition.key} has one replica and nobody accepted that it is away",
            )
        heirs = [name for name in partition.isr if name != pod.name and brokers.is_up(name)]
        if (
            partition.leader == pod.name
            and heirs
            and partition.led_since <= when
            and not is_replaced
        ):
            _claim(
                not _can_take_over(world, partition.key, when),
                f"{pod.name} leads {partition.key} yet",
            )
    _claim(_voters_stay(world, pod.name, when), f"{pod.name} takes the majority of voters along")
    if is_replaced:
        return
    _one_at_a_time(world, pod, seen)


def _can_take_over(world: Stage, key: tuple[str, int], when: int) -> bool:
    one = world.brokers.partitions[key]
    return any(
        name != one.leader
        and world.brokers.is_up(name)
        and world.brokers.processes[name].since_ms < when - 2_000
        for name in one.isr
    )


def _not_serving(world: Stage, pod: Pod, *, is_asked: bool) -> None:
    if not is_asked and not pod.is_ready:
        now = world.api.brokers
        _claim(
            now is None or pod.revision != now.revision,
            f"{pod.name} is not ready and gets the same template again",
        )
        young = [
            one.name
            for one in world.api.pods.values()
            if one.name != pod.name and one.is_terminating
        ]
        _claim(not young or not pod.is_ready, f"{pod.name} goes while {young} go")
    world.count("deleted", "not serving")


def _one_at_a_time(world: Stage, pod: Pod, seen: Seen) -> None:
    """Check the restart of a serving broker: recorded, with consent, and no other broker absent."""
    resource, brokers = world.api.resource, world.brokers
    if resource is None:
        return
    if pod.is_ready:
        record_ = seen.observation.recorded.disruption
        _claim(
            record_ is not None and record_.pod_uid == pod.uid,
            f"{pod.name} is deleted without a record of it",
        )
        assert record_ is not None
        consent = brokers.tokens.get(record_.token)
        _claim(consent is not None, f"{pod.name} is deleted without consent")
        assert consent is not None
        _claim(
            consent.start_id == pod.uid and consent.expires_ms >= seen.observation.now_ms,
            f"{pod.name} is deleted with a consent that is over",
        )
        _claim(seen.observation.budget in (0, None), f"{pod.name} goes with the budget open")
        _claim(
            seen.observation.metadata is None
            or seen.observation.metadata.leader != pod.name
            or len(brokers.alive_voters()) <= 1,
            f"{pod.name} leads the metadata",
        )
        twice = seen.readings
        _claim(
            any(seen.observation.now_ms - one >= 2_000 for one in twice),
            f"{pod.name} goes after one reading of the gate",
        )
        if wanted_full(seen):
            away = _away_before(world, pod.name, seen.metadata_ms)
            _claim(not away, f"{pod.name} goes while {away} are away")
            unproven = sorted(world.unproven - {pod.name})
            _claim(not unproven, f"{pod.name} goes before {unproven} are proven to be back")
        world.unproven.add(pod.name)
        world.count("deleted", "ready")
    else:
        world.count("deleted", "serving though not ready")


def wanted_full(seen: Seen) -> bool:
    """Return whether the gate requires all replicas."""
    return seen.observation.desired.needs_full_isr


def _away_before(world: Stage, name: str, when: int) -> list[str]:
    """Return the brokers of the set that were away when the metadata was read."""
    brokers = world.api.brokers
    found = []
    for ordinal in range(brokers.replicas if brokers else 0):
        other = f"{name.rpartition('-')[0]}-{ordinal}"
        known = world.brokers.registered.get(other)
        if other == name:
            continue
        if known is None or (known.is_fenced and known.away_since_ms < when):
            found.append(other)
    return found


def _voters_stay(world: Stage, name: str, when: int) -> bool:
    brokers = world.brokers
    voters = [one for one, votes in brokers.members.items() if votes]
    if len(voters) <= 2 or all(voter.broker != name for voter in voters):
        return True
    near = 0
    for voter in voters:
        known = brokers.registered.get(voter.broker)
        if voter.broker == name or known is None or known.dir_id != voter.data_dir_id:
            continue
        process = brokers.processes.get(voter.broker)
        near += process is not None or (
            known.seen_ms >= when - 3_000 or (known.is_fenced and known.away_since_ms >= when)
        )
    return 2 * near > len(voters)


def removal(world: Stage, member: Member, seen: Seen) -> None:
    """Check the removal of a member from the metadata group."""
    brokers = world.brokers
    if not brokers.members.get(member):
        return
    rest = [one for one, votes in brokers.members.items() if votes and one != member]
    alive = [one for one in rest if brokers.is_alive(one) or _fell_after(world, one, seen)]
    _claim(2 * len(alive) > len(rest), f"{member.broker} is removed from too few: {alive}")


def _fell_after(world: Stage, member: Member, seen: Seen) -> bool:
    known = world.brokers.registered.get(member.broker)
    return (
        known is not None
        and known.dir_id == member.data_dir_id
        and known.seen_ms >= seen.metadata_ms - 3_500
    )


def promotion(world: Stage, member: Member, seen: Seen) -> None:
    """Check the promotion of a learner."""
    count = world.brokers.voter_count + 1
    _claim(count <= 5, f"{count} voters")
    alive = len(world.brokers.alive_voters()) + 1
    _claim(
        2 * alive > count or not wanted_full(seen),
        f"{member.broker} gets a vote, {count} do not run",
    )


def replicas(world: Stage, action: act.SetReplicas, seen: Seen) -> None:
    """Check a change of the number of pods."""
    now = world.api.brokers
    if now is None:
        return
    if action.replicas == 0:
        _claim(seen.observation.desired.is_suspended, "stops everything though not suspended")
        return
    _claim(
        now.replicas == 0 or abs(action.replicas - now.replicas) == 1,
        f"{now.replicas} pods become {action.replicas} at once",
    )
    if now.replicas == 0:
        _claim(_kept(world) <= action.replicas, f"{_kept(world)} volumes, {action.replicas} pods")
    for ordinal in range(action.replicas, now.replicas):
        name = f"{seen.observation.desired.name}-{ordinal}"
        process = world.brokers.processes.get(name)
        _claim(not world.brokers.holds(name), f"{name} goes with its replicas")
        claim = world.api.claims.get(name)
        _claim(claim is None or claim.is_retired, f"{name} goes, its claim unmarked")
        _claim(process is None or process.disk.is_retired, f"{name} goes and may vote again")
        votes = any(votes and one.broker == name for one, votes in world.brokers.members.items())
        _claim(not votes, f"{name} goes with its vote")


def _kept(world: Stage) -> int:
    return 1 + max(
        (claim.ordinal for claim in world.api.claims.values() if not claim.is_retired), default=-1
    )


def set_size(world: Stage, action: act.CreateSet, seen: Seen) -> None:
    """Check the creation of the set over existing volumes."""
    desired = seen.observation.desired
    if action.replicas or not desired.is_suspended:
        shape = world.api.resource.shape if world.api.resource is not None else None
        kept = _kept(world) if shape is None else shape.replicas
        _claim(action.replicas >= kept, f"{kept} volumes in use, {action.replicas} pods")


def orphan(world: Stage) -> None:
    """Check the deletion of the set without its pods."""
    resource, brokers = world.api.resource, world.api.brokers
    assert brokers is not None
    if resource is None:
        return
    shape = resource.shape
    _claim(
        shape is not None
        and (shape.replicas, shape.revision) == (brokers.replicas, brokers.revision),
        "the set goes and nobody knows what it was",
    )


def claim_deletion(world: Stage, claim: Claim, seen: Seen) -> None:
    """Check the deletion of a volume."""
    desired = seen.observation.desired.replace
    asked = any(one.volume_uid == claim.uid for one in desired)
    _claim(asked, f"{claim.name} is deleted though nobody asked")
    name = claim.name
    for partition in world.brokers.partitions.values():
        if name in partition.replicas:
            short = _others_short(partition, name, seen.metadata_ms)
            _claim(
                not short and len(partition.replicas) > 1,
                f"{claim.name} goes, {partition.key} needs it",
            )
    _claim(
        not any(votes and one.broker == name for one, votes in world.brokers.members.items()),
        f"{name} loses its directory and has a vote",
    )
    forced = any(one.volume_uid == claim.uid and one.is_forced for one in desired)
    process = world.brokers.processes.get(name)
    _claim(
        forced or process is None or process.since_ms >= seen.metadata_ms - 5_000,
        f"{name} runs and loses its volume",
    )


def record(world: Stage, now: Resource, action: act.Record, seen: Seen) -> None:
    """Check the status that records the begin or end of a restart."""
    before, after = now.disruption, action.recorded.disruption
    if after is not None:
        _claim(before is None or before == after, "a second restart is recorded beside the first")
        world.reached("restart recorded")
        return
    if before is None:
        return
    pod = world.api.pods.get(before.broker)
    brokers = world.api.brokers
    if pod is None or pod.uid == before.pod_uid:
        return
    if brokers is not None and ordinal_of(before.broker) >= brokers.replicas:
        world.unproven.discard(before.broker)
        return
    consent = world.brokers.tokens.get(before.token)
    known = world.brokers.registered.get(before.broker)
    if consent is None or known is None or known.dir_id != consent.dir_id:
        world.unproven.discard(before.broker)
        return
    for key in consent.in_sync:
        one = world.brokers.partitions.get(key)
        if one is None or before.broker not in one.replicas or before.broker in one.isr:
            continue
        _claim(
            one.out_since.get(before.broker, 0) > seen.metadata_ms,
            f"{before.broker} is called back and is not in sync for {key}",
        )
    process = world.brokers.processes.get(before.broker)
    for key, end in consent.held.items():
        one = world.brokers.partitions.get(key)
        if one is None or process is None or before.broker not in one.isr:
            continue
        _claim(process.disk.logs.get(key, 0) >= end, f"{before.broker} lacks records of {key}")
    world.unproven.discard(before.broker)
    world.reached("restart proven")


def level(world: Stage, action: act.SetFeatureLevel) -> None:
    """Check a change of the feature level."""
    brokers = world.brokers
    _claim(action.level >= brokers.feature_level, f"level {action.level} is lower than before")
    _claim(action.level <= brokers.known_level(), f"somebody does not know level {action.level}")


def move(world: Stage, moved: act.Move, seen: Seen) -> None:
    """Check a reassignment."""
    one = world.brokers.partitions.get((moved.stream, moved.number))
    if one is None or one.epoch != moved.partition_epoch:
        return
    if len(moved.target) < len(one.replicas):
        desired = seen.observation.desired
        _claim(moved.stream in desired.automatic_factor, f"{moved.stream} has a fixed factor")
        least = min(3, max(desired.replicas, 1))
        _claim(len(moved.target) >= least, f"{moved.stream} gets {len(moved.target)} replicas")
        short = [name for name in moved.target if name not in one.isr]
        _claim(not short, f"{one.key} becomes smaller and {short} are not in sync")

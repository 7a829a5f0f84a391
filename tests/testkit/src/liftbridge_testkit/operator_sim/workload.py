"""Actions of users and the environment in a schedule: changes, faults, and their end."""

from dataclasses import replace

from liftbridge_broker.model.units import GIB
from liftbridge_operator.cluster.planning.observation import (
    DesiredState,
    DesiredVolume,
    Replacement,
    StuckCause,
)
from liftbridge_testkit.operator_sim.brokers import Replicas
from liftbridge_testkit.operator_sim.kube import level_of
from liftbridge_testkit.operator_sim.stage import Stage

CAUSES = (StuckCause.IMAGE_PULL, StuckCause.CRASH_LOOP, StuckCause.CONFIG)


def begin(world: Stage) -> None:
    """Create a cluster as the user."""
    rng = world.rng
    replicas = rng.choice((1, 2, 3, 3, 3, 3, 4, 5))
    world.create_resource(
        DesiredState(
            name="c",
            generation=1,
            replicas=replicas,
            revision="r1",
            data_volume=DesiredVolume(GIB),
            needs_approval=rng.random() < 0.15,
            allows_unavailable=replicas <= 2 or rng.random() < 0.5,
            is_rebalanced=rng.random() < 0.3,
        )
    )


def make_streams(world: Stage) -> None:
    """Create streams as a user, once the cluster serves."""
    brokers, rng, resource = world.brokers, world.rng, world.api.resource
    able = sorted(name for name in brokers.registered if brokers.is_up(name))
    able = [name for name in able if not brokers.registered[name].is_cordoned]
    if not brokers.has_quorum or not able or len(brokers.partitions) >= 4 or resource is None:
        return
    factor = min(rng.choice((1, 2, 3, 3, 3)), len(able))
    number = len(brokers.partitions)
    key = (f"s{number}", 0)
    names = tuple(rng.sample(able, factor))
    min_isr = 2 if factor == 3 else 1
    brokers.partitions[key] = Replicas(key, names, names, names[0], min_isr, led_since=world.now)
    for name in names:
        brokers.processes[name].disk.logs[key] = 0
    if rng.random() < 0.7:
        automatic = (*resource.desired.automatic_factor, key[0])
        world.put_desired(automatic_factor=automatic)
    world.trace(f"stream {key} {names}")


def change(world: Stage) -> None:
    """Change the specification, or act as an administrator."""
    resource, rng = world.api.resource, world.rng
    if resource is None:
        return
    make_streams(world)
    choice = rng.randrange(16)
    desired = resource.desired
    if choice <= 3:
        _new_revision(world, is_bad=choice == 0)
    elif choice <= 6:
        world.put_desired(
            replicas=rng.choice((1, 2, 3, 3, 4, 5)),
            allows_unavailable=True,
            catch_up_rate=1_000 * (world.revisions % 3),
        )
        world.count("wish", "scale")
    elif choice == 7:
        larger = DesiredVolume(desired.data_volume.size_bytes + GIB)
        world.put_desired(data_volume=larger)
        world.count("wish", "grow")
    elif choice <= 10:
        _toggle_wish(world, choice)
    elif choice == 11:
        errors = () if desired.config_errors else ("unknown key",)
        _new_revision(world, is_bad=False)
        world.put_desired(config_errors=errors)
        world.count("wish", "wrong configuration")
    else:
        {12: _recreate, 13: _restart_one, 14: _drain_brokers, 15: approve}[choice](world)


def _toggle_wish(world: Stage, choice: int) -> None:
    """Toggle a field of the specification."""
    assert world.api.resource is not None
    desired = world.api.resource.desired
    if choice == 8:
        world.put_desired(is_suspended=not desired.is_suspended)
        world.count("wish", "suspend or resume")
    elif choice == 9:
        world.put_desired(is_paused=not desired.is_paused)
        world.count("wish", "pause or go on")
    else:
        world.put_desired(is_window_open=not desired.is_window_open)
        world.count("wish", "window")


def _new_revision(world: Stage, *, is_bad: bool) -> None:
    resource = world.api.resource
    assert resource is not None
    world.revisions += 1
    revision = f"r{world.revisions}"
    if is_bad:
        world.kube.bad_revisions[revision] = world.rng.choice(CAUSES)
        world.count("wish", "bad template")
    else:
        world.count("wish", "template")
    # Users request a level together with the template that supports it.
    level = level_of(revision) if world.revisions % 2 == 0 else resource.desired.feature_level
    world.put_desired(revision=revision, feature_level=max(level, resource.desired.feature_level))


def _restart_one(world: Stage) -> None:
    """Request the restart of one pod, whatever its template."""
    names = sorted(world.api.pods)
    if names:
        pod = world.api.pods[world.rng.choice(names)]
        world.put_desired(restarts=(pod.uid,))
        world.count("wish", "restart of one")


def _drain_brokers(world: Stage) -> None:
    """Drain some brokers, or end that."""
    resource, rng = world.api.resource, world.rng
    assert resource is not None
    names = [f"c-{one}" for one in range(resource.desired.replicas)]
    drained = rng.sample(names, rng.randrange(1, len(names) + 1))
    world.put_desired(drained=() if resource.desired.drained else tuple(sorted(drained)))
    world.count("wish", "drain or its end")


def _recreate(world: Stage) -> None:
    """Delete the resource with its objects, and create it again over the volumes."""
    api, resource = world.api, world.api.resource
    if resource is None or world.rng.random() < 0.5:
        return
    api.brokers = None
    for pod in list(api.pods.values()):
        api.put_pod(pod, is_terminating=True)
    api.budget = None
    world.create_resource(
        replace(
            resource.desired, generation=1, approved_hash="", replicas=resource.desired.replicas
        )
    )
    world.unproven.clear()
    world.count("wish", "resource created again")


def approve(world: Stage) -> None:
    """Approve the published plan."""
    resource = world.api.resource
    if resource is None or not resource.desired.needs_approval or not resource.plan_hash:
        return
    if resource.desired.approved_hash != resource.plan_hash:
        world.approved.add(resource.plan_hash)
        world.put_desired(approved_hash=resource.plan_hash)
        world.count("wish", "approve")


def fault(world: Stage) -> None:
    """Inject a fault."""
    names = sorted(world.api.pods)
    _FAULTS[world.rng.randrange(len(_FAULTS))](world, names)


def _kill(world: Stage, names: list[str]) -> None:
    if names:
        world.kube.crash(world.rng.choice(names))
        world.count("fault", "broker killed")


def _lose_node(world: Stage, names: list[str]) -> None:
    del names
    if len(world.kube.down) < 2:
        world.kube.lose_node(world.rng.choice(sorted(world.api.nodes)))
        world.count("fault", "node lost")


def _return_node(world: Stage, names: list[str]) -> None:
    del names
    if world.kube.down:
        world.kube.return_node(min(world.kube.down))
        world.count("fault", "node back")


def _links(world: Stage, names: list[str]) -> None:
    _toggle(world.without_nats, names, world)


def _answers(world: Stage, names: list[str]) -> None:
    _toggle(world.hidden, names, world)


def _delete(world: Stage, names: list[str]) -> None:
    pod = world.api.pods[world.rng.choice(names)] if names else None
    if pod is not None and not pod.is_terminating:
        world.api.put_pod(pod, is_terminating=True)
        world.count("fault", "pod deleted by hand")


def _scale_by_hand(world: Stage, names: list[str]) -> None:
    """Scale the set down by hand, perhaps to zero."""
    del names
    brokers, rng = world.api.brokers, world.rng
    if brokers is None or brokers.is_terminating or not brokers.replicas:
        return
    replicas = rng.randrange(brokers.replicas)
    world.api.patch_set(brokers.uid, brokers.resource_version, replicas=replicas)
    world.count("fault", "scaled by hand")


def _depose(world: Stage, names: list[str]) -> None:
    del names
    world.brokers.leader = ""
    world.count("fault", "metadata leader changes")


def _repeat(world: Stage, names: list[str]) -> None:
    """Write an object without a change, for a new version."""
    if names:
        world.api.put_pod(world.api.pods[world.rng.choice(names)])
        world.count("fault", "event repeated")


def _toggle(names: set[str], all_: list[str], world: Stage) -> None:
    if names:
        names.clear()
    elif all_:
        names.add(world.rng.choice(all_))
    world.count("fault", "link or answers")


def _drain(world: Stage, names: list[str]) -> None:
    """Cordon two nodes and evict their pods, or end that."""
    del names
    api, rng = world.api, world.rng
    cordoned = [node for node in api.nodes.values() if node.is_unschedulable]
    if cordoned:
        for node in cordoned:
            api.nodes[node.name] = replace(node, is_unschedulable=False)
        return
    for name in rng.sample(sorted(api.nodes), 2):
        api.nodes[name] = replace(api.nodes[name], is_unschedulable=True)
        for pod in list(api.pods.values()):
            if pod.node == name:
                was_let = world.kube.evict(pod.name)
                world.count("fault", "evicted" if was_let else "eviction refused")


def _lose_volume(world: Stage, names: list[str]) -> None:
    """Lose a machine whose volume is not the only copy, and request a replacement."""
    brokers, api, rng = world.brokers, world.api, world.rng
    resource = api.resource
    if resource is None or world.kube.down or not brokers.has_quorum:
        return
    if not names:
        return
    name = rng.choice(names)
    pod, claim = api.pods[name], api.claims.get(name)
    on_node = [one for one in api.pods.values() if one.node == pod.node]
    others = [voter for voter in brokers.alive_voters() if voter.broker != name]
    holds = [partition for partition in brokers.partitions.values() if name in partition.replicas]
    is_safe = all(len(one.replicas) > 1 and set(one.replicas) <= set(one.isr) for one in holds)
    # A move may leave it with the only replica before the loss is noticed.
    is_safe = is_safe and not any(
        name in partition.target for partition in brokers.partitions.values()
    )
    is_safe = is_safe and all(
        brokers.is_up(other) for one in holds for other in one.replicas if other != name
    )
    if len(on_node) != 1 or claim is None or not is_safe or not brokers.is_up(name):
        return
    if 2 * len(others) <= brokers.voter_count or claim.is_retired:
        return
    stuck_on = [one for one, at in world.kube.volume_nodes.items() if at == pod.node]
    if any(one.uid in stuck_on and one.uid != claim.uid for one in api.claims.values()):
        return
    world.kube.destroy_node(pod.node)
    wish = Replacement(name, claim.uid)
    world.put_desired(replace=(*resource.desired.replace, wish)[-4:])
    world.count("fault", "volume lost")


def heal(world: Stage) -> None:
    """End all faults, and make the specification one that can be fulfilled."""
    api, brokers = world.api, world.brokers
    for name in list(world.kube.down):
        world.kube.return_node(name)
    world.without_nats.clear()
    world.hidden.clear()
    for node in list(api.nodes.values()):
        api.nodes[node.name] = replace(node, is_unschedulable=False, is_ready=True)
    resource = api.resource
    assert resource is not None
    fixed = [
        len(partition.replicas if not partition.target else partition.target)
        for partition in brokers.partitions.values()
        if partition.key[0] not in resource.desired.automatic_factor
    ]
    automatic = [
        min(3, len(partition.replicas))
        for partition in brokers.partitions.values()
        if partition.target and partition.key[0] in resource.desired.automatic_factor
    ]
    least = max([1, *fixed, *automatic])
    revision = resource.desired.revision
    if revision in world.kube.bad_revisions:
        revision += "-mended"
    world.put_desired(
        replicas=max(resource.desired.replicas, least),
        revision=revision,
        is_paused=False,
        is_suspended=False,
        is_window_open=True,
        config_errors=(),
        allows_unavailable=True,
        drained=(),
        feature_level=level_of(revision) if resource.desired.feature_level else 0,
    )


_FAULTS = (
    _kill,
    _kill,
    _lose_node,
    _return_node,
    _return_node,
    _links,
    _answers,
    _drain,
    _delete,
    _lose_volume,
    _depose,
    _repeat,
    _scale_by_hand,
)

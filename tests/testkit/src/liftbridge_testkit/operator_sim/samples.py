"""Observations for tests: a healthy cluster, and small changes of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from liftbridge_operator.cluster.planning.decide import decide
from liftbridge_operator.cluster.planning.decision import Decision, Memory, TokenAnswer
from liftbridge_operator.cluster.planning.observation import (
    BrokerReport,
    BrokerSet,
    Claim,
    DesiredState,
    DesiredVolume,
    Disruption,
    Identity,
    Member,
    MemberReport,
    Metadata,
    Node,
    Observation,
    Partition,
    Pod,
    Recorded,
    SelfReport,
    Verification,
)
from liftbridge_operator.cluster.planning.roll import remember

NOW = 10_000_000
TOKEN = "token"


def names(count: int) -> tuple[str, ...]:
    """Return the names of a cluster's brokers."""
    return tuple(f"c-{one}" for one in range(count))


def healthy(count: int = 3, **desired: Any) -> Observation:
    """Return a cluster at rest: one partition with as many replicas as brokers, at most three."""
    all_ = names(count)
    founders = tuple(Member(name, f"dir-{name}") for name in all_[:3])
    voters = all_[: 5 if count >= 5 else min(count, 3)]
    wish = {"replicas": count, "revision": "r1", "data_volume": DesiredVolume(10), **desired}
    factor = min(count, 3)
    return Observation(
        now_ms=NOW,
        resource_version=7,
        fresh_cluster_id="fresh",
        desired=DesiredState(name="c", generation=1, **wish),
        identity=Identity(1, "id", founders, is_started=True),
        brokers=BrokerSet("set", 5, count, "r1", "r1", "", 10),
        pods=tuple(pod(name) for name in all_),
        claims=tuple(
            Claim(name, at, f"claim-{name}", 3, "id", 10, 10) for at, name in enumerate(all_)
        ),
        budget=None if count == 1 else 1,
        nodes=tuple(Node(f"node-{name}") for name in all_),
        reports=tuple(
            SelfReport(name, f"uid-{name}", f"dir-{name}", "id", has_metadata=True) for name in all_
        ),
        metadata=Metadata(
            cluster_id="id",
            leader="c-0",
            term=3,
            members=tuple(
                MemberReport(
                    Member(name, f"dir-{name}"), name in voters, is_alive=True, match_index=500
                )
                for name in all_
            ),
            brokers=tuple(BrokerReport(name, f"dir-{name}", f"uid-{name}", 1) for name in all_),
            partitions=(
                Partition("s", 0, all_[0], 4, all_[:factor], all_[:factor], min(factor, 2)),
            ),
        ),
    )


def pod(name: str, **changes: Any) -> Pod:
    """Return a pod that has been ready for long."""
    made = Pod(
        name=name,
        ordinal=int(name.rpartition("-")[2]),
        uid=f"uid-{name}",
        resource_version=9,
        revision="r1",
        node=f"node-{name}",
        zone="a",
        created_ms=0,
        changed_ms=0,
        is_ready=True,
        is_running=True,
        is_terminating=False,
    )
    return replace(made, **changes)


def _one_of(all_: tuple[Any, ...], is_it: Callable[[Any], bool], **changes: Any) -> tuple[Any, ...]:
    return tuple(replace(one, **changes) if is_it(one) else one for one in all_)


def with_pod(seen: Observation, name: str, **changes: Any) -> Observation:
    """Return a copy with one pod changed."""
    return replace(seen, pods=_one_of(seen.pods, lambda one: one.name == name, **changes))


def with_claim(seen: Observation, name: str, **changes: Any) -> Observation:
    """Return a copy with one claim changed."""
    return replace(seen, claims=_one_of(seen.claims, lambda one: one.name == name, **changes))


def with_report(seen: Observation, name: str, **changes: Any) -> Observation:
    """Return a copy with a changed report of one process."""
    return replace(seen, reports=_one_of(seen.reports, lambda one: one.broker == name, **changes))


def with_node(seen: Observation, name: str, **changes: Any) -> Observation:
    """Return a copy with the node of a pod changed."""
    at = f"node-{name}"
    return replace(seen, nodes=_one_of(seen.nodes or (), lambda one: one.name == at, **changes))


def with_set(seen: Observation, **changes: Any) -> Observation:
    """Return a copy with the set changed."""
    assert seen.brokers is not None
    return replace(seen, brokers=replace(seen.brokers, **changes))


def with_desired(seen: Observation, **changes: Any) -> Observation:
    """Return a copy with another specification."""
    return replace(seen, desired=replace(seen.desired, **changes))


def with_metadata(seen: Observation, **changes: Any) -> Observation:
    """Return a copy with other metadata."""
    assert seen.metadata is not None
    return replace(seen, metadata=replace(seen.metadata, **changes))


def with_broker(seen: Observation, name: str, **changes: Any) -> Observation:
    """Return a copy with one broker changed in the metadata."""
    assert seen.metadata is not None
    changed = _one_of(seen.metadata.brokers, lambda one: one.broker == name, **changes)
    return with_metadata(seen, brokers=changed)


def with_member(seen: Observation, name: str, **changes: Any) -> Observation:
    """Return a copy with one member of the metadata group changed."""
    assert seen.metadata is not None
    changed = _one_of(seen.metadata.members, lambda one: one.member.broker == name, **changes)
    return with_metadata(seen, members=changed)


def with_partition(seen: Observation, **changes: Any) -> Observation:
    """Return a copy with the partition changed."""
    assert seen.metadata is not None
    return with_metadata(
        seen,
        partitions=tuple(replace(partition, **changes) for partition in seen.metadata.partitions),
    )


def later(seen: Observation, ms: int) -> Observation:
    """Return a copy some time later."""
    return replace(seen, now_ms=seen.now_ms + ms)


def led_by(seen: Observation, name: str) -> Observation:
    """Return a copy with another leader of partition and metadata."""
    return with_partition(with_metadata(seen, leader=name), leader=name)


def passes(seen: Observation, count: int = 8, memory: Memory | None = None) -> list[Decision]:
    """Return the decisions of passes every 3 s on an unchanged state; brokers consent."""
    memory = memory or Memory()
    found = []
    for at in range(count):
        decision = decide(later(seen, at * 3_000), memory)
        found.append(decision)
        memory = decision.memory
        if decision.action is not None:
            answer = TokenAnswer(TOKEN, seen.now_ms + 600_000, 1)
            memory = remember(memory, decision.action, answer)
    return found


def kinds(decisions: list[Decision]) -> list[str]:
    """Return the names of the actions, repetitions left out."""
    found: list[str] = []
    for decision in decisions:
        name = type(decision.action).__name__ if decision.action is not None else ""
        if name and (not found or found[-1] != name):
            found.append(name)
    return found


def waits(decisions: list[Decision]) -> set[str]:
    """Return the waits."""
    return {wait.what for decision in decisions for wait in decision.status.waits}


def recorded(seen: Observation, name: str = "c-2", **changes: Any) -> Observation:
    """Return a copy with a recorded restart of the pod in its earlier state."""
    made = Disruption(name, f"uid-{name}", TOKEN, seen.now_ms + 600_000, seen.now_ms, 1)
    return replace(seen, recorded=Recorded(disruption=replace(made, **changes)), budget=0)


def came_back(seen: Observation, name: str = "c-2", **verification: Any) -> Observation:
    """Return a copy in which the recorded pod is recreated and its broker verified the token."""
    seen = recorded(with_pod(seen, name, uid="new", revision=seen.desired.revision), name)
    seen = with_report(with_broker(seen, name, start_id="new"), name, start_id="new")
    return replace(seen, verification=Verification(TOKEN, **{"is_complete": True, **verification}))

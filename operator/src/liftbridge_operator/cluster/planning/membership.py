"""The metadata group follows the brokers: one change a pass, a majority throughout."""

from collections.abc import Callable, Sequence

from liftbridge_operator.cluster.planning.actions import (
    Action,
    AddLearner,
    PromoteLearner,
    RemoveBroker,
    RemoveMember,
)
from liftbridge_operator.cluster.planning.decision import Outcome
from liftbridge_operator.cluster.planning.observation import Member, MemberReport
from liftbridge_operator.cluster.planning.view import View, ordinal_of, voters_for

JOINING = "ScalingUp"


def repair(view: View) -> Outcome | None:
    """Remove members whose broker has another directory, and add brokers that are no members."""
    return _first(view, (_remove_ghost, _add))


def follow(view: View) -> Outcome | None:
    """Adjust the number of voters to that of brokers, and remove brokers beyond the set."""
    return _first(view, (_promote, _demote, _forget))


def _first(view: View, stories: Sequence[Callable[[View], Action | None]]) -> Outcome | None:
    if view.metadata is None:
        return None
    for story in stories:
        action = story(view)
        if action is not None:
            return Outcome(JOINING, action)
    return None


def can_remove(view: View, member: MemberReport) -> bool:
    """Return whether the remaining voters would have a majority without a member."""
    if not member.is_voter:
        return True
    voters = view.voters()
    others = [voter for voter in voters if voter.member != member.member]
    near = [other for other in others if view.is_caught_up(other)]
    # The removal needs a majority of the remaining voters, and so does everything after it.
    return bool(others) and 2 * len(near) > len(others)  # gate REST


def _remove_ghost(view: View) -> RemoveMember | None:
    """Remove a member whose broker now runs on another directory; the old one does not return."""
    for broker, members in view.members.items():
        report, pod = view.reports.get(broker), view.pods.get(broker)
        if report is None or pod is None or report.start_id != pod.uid:
            continue
        for member in members:
            is_other = member.member.data_dir_id != report.data_dir_id
            if is_other and not member.is_alive and can_remove(view, member):  # gate GHOST
                return RemoveMember(member.member)
    return None


def _add(view: View) -> AddLearner | None:
    assert view.metadata is not None
    for name in view.names:
        report, pod = view.reports.get(name), view.pods.get(name)
        if report is None or pod is None or report.start_id != pod.uid or report.is_retired:
            continue
        if not view.members.get(name) and view.is_current(pod):
            return AddLearner(Member(name, report.data_dir_id))
    return None


def _promote(view: View) -> PromoteLearner | None:
    voters = view.voters()
    if len(voters) >= voters_for(view.size) or not all(voter.is_alive for voter in voters):
        return None
    for name in view.names:
        known, report = view.brokers.get(name), view.reports.get(name)
        if known is None or ordinal_of(name) >= view.desired.replicas:
            continue
        if known.is_cordoned and name not in view.drained:
            continue
        if report is None or report.is_retired:  # gate NO_VOTE_FOR_RETIRED
            continue
        for one in view.members.get(name, ()):
            if not one.is_voter and view.is_caught_up(one):  # gate PROMOTE
                return PromoteLearner(one.member)
    return None


def _demote(view: View) -> RemoveMember | None:
    """Remove the highest surplus voter after a scale-in; it joins again as a learner."""
    assert view.metadata is not None
    voters = view.voters()
    if len(voters) <= voters_for(view.size) or not all(map(view.is_caught_up, voters)):
        return None
    for one in sorted(voters, key=lambda voter: -ordinal_of(voter.member.broker)):
        if one.member.broker != view.metadata.leader and view.size:
            return RemoveMember(one.member) if can_remove(view, one) else None
    return None


def _forget(view: View) -> RemoveMember | RemoveBroker | None:
    """Remove a broker beyond the set that has no pod and holds no replicas."""
    assert view.metadata is not None
    brokers = view.seen.brokers
    if brokers is None or not brokers.replicas or view.seen.recorded.shape is not None:
        return None
    for name, known in view.brokers.items():
        is_held = any(
            name in partition.replicas or name in partition.target
            for partition in view.partitions()
        )
        if ordinal_of(name) < view.size or name in view.pods or is_held or not known.is_fenced:
            continue
        for member in view.members.get(name, ()):
            if not member.is_voter:
                return RemoveMember(member.member)
        if not view.members.get(name):
            return RemoveBroker(name, known.broker_epoch)
    return None

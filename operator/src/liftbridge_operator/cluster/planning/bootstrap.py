"""Bootstrap and adoption: one identity, one list of founders, never a second metadata log.

The operator writes the cluster's id before any pod starts, the list of founders before it sends it.
A broker with an empty directory never founds a cluster by itself. Existing volumes are adopted if
all belong to one cluster; all brokers with a volume are started again, never fewer.
"""

from liftbridge_operator.cluster.planning.actions import (
    Bootstrap,
    CreateIdentity,
    CreateSet,
    WriteFounders,
)
from liftbridge_operator.cluster.planning.decision import Outcome, Wait
from liftbridge_operator.cluster.planning.observation import Member, SelfReport
from liftbridge_operator.cluster.planning.view import FOUNDERS_MAX, View

BOOTSTRAPPING = "Bootstrapping"
EXPANDING = "ExpandingVolumes"


def kept_count(view: View) -> int:
    """Return the number of brokers needed to serve all volumes in use, at least that recorded."""
    ordinals = [claim.ordinal for claim in view.claims.values() if not claim.is_retired]
    ordinals += [pod.ordinal for pod in view.pods.values()]
    return max(max(ordinals, default=-1) + 1, view.seen.recorded.size or 0)


def conflict(view: View) -> Outcome | None:
    """Report volumes and an identity that do not belong to one cluster."""
    identity = view.seen.identity
    ids = {one.cluster_id for one in view.claims.values() if one.cluster_id}
    if identity is not None:
        ids.add(identity.cluster_id)
    foreign = {report.cluster_id for report in view.reports.values() if report.cluster_id} - ids
    if len(ids) <= 1 and not (ids and foreign):  # gate ONE_CLUSTER
        return None
    odd = [
        claim.name
        for claim in view.claims.values()
        if identity is None or claim.cluster_id != identity.cluster_id
    ]
    return Outcome(
        "",
        waits=(
            Wait(
                "Conflict",
                odd[0] if odd else view.desired.name,
                "volumes and ConfigMap name one cluster",
                is_stalled=True,
            ),
        ),
    )


def create(view: View) -> Outcome | None:
    """Create the identity, then the set."""
    identity = view.seen.identity
    if identity is None:
        ids = sorted({claim.cluster_id for claim in view.claims.values() if claim.cluster_id})
        known = ids[0] if ids else ""
        # A rebuilt identity counts as started: its founders are no longer known.
        is_started = bool(known)  # gate REBUILT
        made = CreateIdentity(known or view.seen.fresh_cluster_id, is_started)
        return Outcome(BOOTSTRAPPING, made)
    if view.seen.brokers is not None:
        if view.seen.brokers.is_terminating:
            wait = Wait("SetTerminating", view.desired.name, "the former set is gone")
            return Outcome("Reconciling", waits=(wait,))
        return None
    if view.desired.config_errors and not view.seen.recorded.shape:
        return Outcome("", waits=(invalid(view),))
    if view.seen.recorded.shape is not None:
        progressing = EXPANDING
    else:
        progressing = "Reconciling" if identity.is_started else BOOTSTRAPPING
    return Outcome(progressing, wanted_set(view, identity.cluster_id))


def invalid(view: View) -> Wait:
    """Return the wait for a configuration that brokers accept."""
    return Wait(
        "InvalidSpec", view.desired.name, "; ".join(view.desired.config_errors[:3]), is_stalled=True
    )


def wanted_set(view: View, cluster_id: str) -> CreateSet:
    """Return the creation of the set: in the recorded shape, else as specified."""
    shape = view.seen.recorded.shape
    kept = kept_count(view)
    if shape is not None:
        replicas = max(shape.replicas, 0)
        return CreateSet(
            cluster_id,
            replicas,
            shape.revision,
            shape.good_revision,
            shape.bad_revision,
            view.desired.data_volume.size_bytes,
        )
    replicas = 0 if view.desired.is_suspended else max(view.desired.replicas, kept)  # gate ADOPT
    return CreateSet(
        cluster_id, replicas, view.desired.revision, "", "", view.desired.data_volume.size_bytes
    )


def found(view: View) -> Outcome | None:
    """Write the founders once all of them wait with empty directories; then bootstrap them."""
    identity = view.seen.identity
    if identity is None or view.metadata is not None:
        return None
    if identity.is_started:
        return _bootstrap(view, identity.founders)
    names = [view.name(ordinal) for ordinal in range(min(view.size, FOUNDERS_MAX))]
    waiting: list[SelfReport] = []
    for name in names:
        reported, pod = view.reports.get(name), view.pods.get(name)
        if reported is None or pod is None or reported.start_id != pod.uid:
            wait = Wait("BrokersNotReady", name, "the broker answers for the first time")
            return Outcome(BOOTSTRAPPING, waits=(wait,))
        waiting.append(reported)
    reports = view.reports.values()
    if any(report.has_metadata or report.cluster_id for report in reports):  # gate EMPTY
        wait = Wait(
            "QuorumLost", view.desired.name, "its volumes are brought back", is_stalled=True
        )
        return Outcome("", waits=(wait,))
    if not waiting:
        return None
    founders = tuple(Member(one.broker, one.data_dir_id) for one in waiting)
    return Outcome(BOOTSTRAPPING, WriteFounders(identity.resource_version, founders))


def _bootstrap(view: View, founders: tuple[Member, ...]) -> Outcome | None:
    """Bootstrap listed founders without metadata; other brokers wait or are lost."""
    identity = view.seen.identity
    assert identity is not None
    due, lost, unheard = [], [], []
    for founder in founders:
        reported = view.reports.get(founder.broker)
        if reported is None:
            unheard.append(founder.broker)
        elif reported.has_metadata:
            continue
        elif reported.data_dir_id == founder.data_dir_id:  # gate FOUNDER
            due.append(founder)
        else:
            lost.append(founder.broker)
    if due:
        return Outcome(BOOTSTRAPPING, Bootstrap(identity.cluster_id, founders, tuple(due)))
    # Without a list of founders, every broker may have been one.
    everybody = len(founders) or kept_count(view)
    if unheard or len(view.reports) < everybody:
        return None
    if lost or not founders:
        is_over = 2 * len(lost) >= len(founders) and not any(
            report.has_metadata and report.broker not in lost for report in view.reports.values()
        )
        if is_over or 2 * len(lost) > len(founders):
            wait = Wait(
                "QuorumLost",
                (lost or [view.desired.name])[0],
                "a majority of its volumes is brought back",
                is_stalled=True,
            )
            return Outcome("", waits=(wait,))
    return None

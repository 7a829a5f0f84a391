"""Maintained form of the set, its budget and the identity, which actions write.

The set keeps the template that an action gave it, whatever is rendered now, and the budget keeps
its number; everything else about them is as rendered.
"""

from collections.abc import Iterator
from contextlib import suppress

from liftbridge_operator.cluster.acting.context import ActionContext
from liftbridge_operator.cluster.observing.objects import (
    annotation_of,
    belongs_to,
    budget_of,
    identity_of,
    is_terminating,
    metadata_of,
)
from liftbridge_operator.cluster.rendering import guards, workload
from liftbridge_operator.cluster.rendering.identity import identity
from liftbridge_operator.cluster.rendering.revision import asked_text
from liftbridge_operator.kube.errors import ConflictError
from liftbridge_operator.kube.kinds import SETS
from liftbridge_operator.kube.port import Object, Preconditions
from liftbridge_operator.model import names


def kept_beside(context: ActionContext) -> Iterator[tuple[Object, Object]]:
    """Yield each of them in its desired form and as read."""
    for body, live in (
        (_set(context), context.reads.set),
        (_budget(context), context.reads.budget),
        (_identity(context), context.reads.identity),
    ):
        if body is not None and live is not None:
            yield body, live


def _set(context: ActionContext) -> Object | None:
    live, kept = context.reads.set, workload.read_kept(context.reads.revision)
    if live is None or kept is None or not _is_mine(context, live):
        return None
    is_bad_known = context.reads.refused is not None
    marks = workload.Marks(
        annotation_of(live, names.GOOD_REVISION),
        annotation_of(live, names.BAD_REVISION) if is_bad_known else "",
    )
    body = workload.stateful_set(
        context.cluster, context.inputs, kept, marks, replicas=None, claim_bytes=0
    )
    asked = annotation_of(live, names.ASKED)  # the specification may be written differently now
    if asked:
        body["metadata"]["annotations"][names.ASKED] = asked
    return body


def _budget(context: ActionContext) -> Object | None:
    live = context.reads.budget
    allowed = budget_of(live) if live is not None else None
    if live is None or allowed is None or not _is_mine(context, live):
        return None  # the planner writes it, with a number
    return guards.disruption_budget(context.cluster, context.inputs, allowed)


def _identity(context: ActionContext) -> Object | None:
    live = context.reads.identity
    if live is None or is_terminating(live):
        return None
    known = identity_of(live)
    founders = tuple((founder.broker, founder.data_dir_id) for founder in known.founders)
    # A metadata group that has a leader was founded, even if the identity does not say so.
    is_started = known.is_started or context.leader != ""
    return identity(context.cluster, context.inputs, founders, is_started=is_started)


async def note_asked(context: ActionContext) -> None:
    """Record the present desired state on the set, where its template stays the same.

    A later operator that renders it differently can tell that the desired state has not changed.

    Raises:
        KubeError: The call failed.
    """
    live, recorded = context.reads.set, context.inputs.recorded
    asked = asked_text(context.cluster)
    if live is None or recorded is None or recorded.asked == asked:
        return
    if recorded.revision != context.rendered.revision:
        return
    # After a concurrent change the next pass tries again.
    with suppress(ConflictError):
        await context.kube.patch(
            SETS,
            context.cluster.namespace,
            str(metadata_of(live)["name"]),
            {"metadata": {"annotations": {names.ASKED: asked}}},
            preconditions=Preconditions.of(live),
        )


def _is_mine(context: ActionContext, live: Object) -> bool:
    return belongs_to(live, context.cluster.uid) and not is_terminating(live)

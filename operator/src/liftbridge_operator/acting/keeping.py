"""The set, its budget and the identity, which are written by actions, as they are to be kept.

A set keeps the template that it was given, whatever is rendered by now, and the budget its number;
everything else about them is as it would be rendered.
"""

from collections.abc import Iterator
from contextlib import suppress

from liftbridge_operator.acting.context import ActionContext
from liftbridge_operator.kube.errors import ConflictError
from liftbridge_operator.kube.kinds import SETS
from liftbridge_operator.kube.port import Object, Preconditions
from liftbridge_operator.observing.objects import (
    annotation_of,
    belongs_to,
    budget_of,
    identity_of,
    is_terminating,
    metadata_of,
)
from liftbridge_operator.rendering import guards, names, workload
from liftbridge_operator.rendering.identity import identity
from liftbridge_operator.rendering.revision import asked_text


def kept_beside(context: ActionContext) -> Iterator[tuple[Object, Object]]:
    """Each of them as it is to be, and as it is."""
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
    asked = annotation_of(live, names.ASKED)  # it may have been asked for in other words since
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
    founders = tuple((one.broker, one.data_dir_id) for one in known.founders)
    # Whoever leads brokers that answer has been founded, whatever is written here.
    is_started = known.is_started or context.leader != ""
    return identity(context.cluster, context.inputs, founders, is_started=is_started)


async def note_asked(context: ActionContext) -> None:
    """Write down on the set what is asked for now, where its template stays all the same.

    So an operator that renders it otherwise sees that nobody asked for anything since.

    Raises:
        KubeError: The call failed.
    """
    live, recorded = context.reads.set, context.inputs.recorded
    asked = asked_text(context.cluster)
    if live is None or recorded is None or recorded.asked == asked:
        return
    if recorded.revision != context.rendered.revision:
        return
    # Where somebody else is at it, the next pass looks again.
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

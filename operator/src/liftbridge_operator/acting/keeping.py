"""The set, its budget and the identity, which are written by actions, as they are to be kept.

A set keeps the template that it was given, whatever is rendered by now, and the budget its number;
everything else about them is as it would be rendered.
"""

from collections.abc import Iterator
from contextlib import suppress

from liftbridge_operator.acting.hands import Hands
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


def kept_beside(hands: Hands) -> Iterator[tuple[Object, Object]]:
    """Each of them as it is to be, and as it is."""
    for body, live in (
        (_set(hands), hands.reads.set),
        (_budget(hands), hands.reads.budget),
        (_identity(hands), hands.reads.identity),
    ):
        if body is not None and live is not None:
            yield body, live


def _set(hands: Hands) -> Object | None:
    live, kept = hands.reads.set, workload.read_kept(hands.reads.revision)
    if live is None or kept is None or not _is_mine(hands, live):
        return None
    is_bad_known = hands.reads.refused is not None
    marks = workload.Marks(
        annotation_of(live, names.GOOD_REVISION),
        annotation_of(live, names.BAD_REVISION) if is_bad_known else "",
    )
    body = workload.stateful_set(
        hands.cluster, hands.inputs, kept, marks, replicas=None, claim_bytes=0
    )
    asked = annotation_of(live, names.ASKED)  # it may have been asked for in other words since
    if asked:
        body["metadata"]["annotations"][names.ASKED] = asked
    return body


def _budget(hands: Hands) -> Object | None:
    live = hands.reads.budget
    allowed = budget_of(live) if live is not None else None
    if live is None or allowed is None or not _is_mine(hands, live):
        return None  # the planner writes it, with a number
    return guards.disruption_budget(hands.cluster, hands.inputs, allowed)


def _identity(hands: Hands) -> Object | None:
    live = hands.reads.identity
    if live is None or is_terminating(live):
        return None
    known = identity_of(live)
    founders = tuple((one.broker, one.data_dir_id) for one in known.founders)
    # Whoever leads brokers that answer has been founded, whatever is written here.
    is_started = known.is_started or hands.leader != ""
    return identity(hands.cluster, hands.inputs, founders, is_started=is_started)


async def note_asked(hands: Hands) -> None:
    """Write down on the set what is asked for now, where its template stays all the same.

    So an operator that renders it otherwise sees that nobody asked for anything since.

    Raises:
        KubeError: The call failed.
    """
    live, recorded = hands.reads.set, hands.inputs.recorded
    asked = asked_text(hands.cluster)
    if live is None or recorded is None or recorded.asked == asked:
        return
    if recorded.revision != hands.rendered.revision:
        return
    # Where somebody else is at it, the next pass looks again.
    with suppress(ConflictError):
        await hands.kube.patch(
            SETS,
            hands.cluster.namespace,
            str(metadata_of(live)["name"]),
            {"metadata": {"annotations": {names.ASKED: asked}}},
            preconditions=Preconditions.of(live),
        )


def _is_mine(hands: Hands, live: Object) -> bool:
    return belongs_to(live, hands.cluster.uid) and not is_terminating(live)

"""Remove obsolete objects of a cluster at rest, and record its desired state."""

from liftbridge_operator.cluster.acting.context import ActionContext, Trouble
from liftbridge_operator.cluster.acting.keeping import note_asked
from liftbridge_operator.cluster.acting.parts import release_volumes
from liftbridge_operator.cluster.acting.supplied import Supplied, refusal_noted
from liftbridge_operator.cluster.acting.supply import forget_revisions
from liftbridge_operator.cluster.reconciling.remembered import Pass
from liftbridge_operator.kube.kinds import CLAIMS, CONFIG_MAPS, SETS


async def tidy(context: ActionContext, found: Pass) -> Trouble | None:
    """Remove former templates and volumes of removed brokers once nothing can reference them.

    Also record the desired state for the next version of the operator.

    Returns:
        The first refusal, which is retried in the next pass at rest; None without one.

    Raises:
        KubeError: The API server does not answer.
    """
    brokers = found.seen.brokers
    if brokers is None or not found.seen.identity:
        return None
    kept = {brokers.revision, brokers.good_revision, brokers.bad_revision}
    kept |= {pod.revision for pod in found.seen.pods} | {found.seen.desired.revision}
    done = Supplied()
    async with refusal_noted(done, f"the {SETS.kind}"):
        await note_asked(context)
    async with refusal_noted(done, f"a {CONFIG_MAPS.kind} of a former template"):
        await forget_revisions(context, kept)
    async with refusal_noted(done, f"the {CLAIMS.kind} of a broker that left"):
        await release_volumes(context, brokers.replicas)
    for name, refusal in done.refusals.items():
        shown = f"{name}: {refusal.text}" if refusal.reason == "MissingRights" else name
        return Trouble(refusal.reason, {"verb": "change", "object": shown, "detail": refusal.text})
    return None

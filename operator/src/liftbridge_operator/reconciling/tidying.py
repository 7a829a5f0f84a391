"""What a cluster at rest does not need any more goes, and what is asked for is written down."""

import structlog

from liftbridge_operator.acting.context import ActionContext
from liftbridge_operator.acting.keeping import note_asked
from liftbridge_operator.acting.parts import release_volumes
from liftbridge_operator.acting.refused import refusal_of
from liftbridge_operator.acting.supply import forget_revisions
from liftbridge_operator.kube.errors import KubeError
from liftbridge_operator.reconciling.remembered import Pass

log = structlog.get_logger("liftbridge.operator")


async def tidy(context: ActionContext, found: Pass) -> None:
    """Former templates, and volumes of brokers that left, go once nothing can need them.

    And what is asked for is written down, for the operator that comes next.

    Raises:
        KubeError: The API server does not answer; a refusal is logged, since nothing needs this.
    """
    brokers = found.seen.brokers
    if brokers is None or not found.seen.identity:
        return
    kept = {brokers.revision, brokers.good_revision, brokers.bad_revision}
    kept |= {pod.revision for pod in found.seen.pods} | {found.seen.wanted.revision}
    try:
        await note_asked(context)
        await forget_revisions(context, kept)
        await release_volumes(context, brokers.replicas)
    except KubeError as error:
        said = refusal_of(error)
        if said is None:
            raise
        log.warning("tidying_refused", name=context.cluster.name, reason=said.reason, why=said.text)

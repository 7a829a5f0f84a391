"""Perform one action of the planner, before its deadline.

Right before the action the process checks that it leads and that the observation is recent enough.
A conflict, or a broker that does not answer, is expected: the next pass decides again.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from liftbridge_operator.cluster.acting import on_brokers, on_objects
from liftbridge_operator.cluster.acting.context import (
    ActionContext,
    Done,
    MissingTemplateError,
    RefusedError,
)
from liftbridge_operator.cluster.acting.refused import refusal_of
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.kube.errors import ConflictError, KubeError, NotFoundError
from liftbridge_operator.kube.port import Fence

Deed = Callable[[ActionContext, Any], Awaitable[Done]]


async def perform(
    context: ActionContext,
    action: act.Action,
    *,
    deadline_ms: int,
    clock_ms: Callable[[], int],
    fence: Fence,
) -> Done:
    """Perform an action, and return its outcome.

    `Record` is not performed here: it is a write of the status.

    Args:
        context: Context of the pass.
        action: The action.
        deadline_ms: After it the action is dropped: too much may have changed.
        clock_ms: Clock of the deadline.
        fence: Checks that this process still leads.

    Raises:
        FencedError: This process does not lead.
        KubeError: The call failed without a refusal, so the outcome is unknown.
    """
    deed = DEEDS[type(action)]
    fence.check(context.cluster.namespace)
    if clock_ms() > deadline_ms:
        return Done(text="it took too long since the objects were read")
    try:
        return await deed(context, action)
    except (KubeError, RefusedError, MissingTemplateError) as error:
        return _not_done(error)


def _not_done(error: KubeError | RefusedError | MissingTemplateError) -> Done:
    """Return the outcome of an action that failed.

    Raises:
        KubeError: It is unknown whether the action was done.
    """
    text = str(error)
    match error:
        case RefusedError() if error.refusal.is_silence:
            return Done(text=text)
        case RefusedError():
            return Done(text=text, refusal=Refusal("ActionRefused", text, needs_person=False))
        case MissingTemplateError():
            return Done(text=text, refusal=Refusal("UnsupportedChange", text))
        case _:
            pass
    refusal = refusal_of(error)
    if refusal is None and not isinstance(error, ConflictError | NotFoundError):
        raise error
    return Done(text=text, refusal=refusal)


DEEDS: Final[Mapping[type, Deed]] = {
    act.CreateIdentity: on_objects.create_identity,
    act.WriteFounders: on_objects.write_founders,
    act.Bootstrap: on_brokers.bootstrap,
    act.CreateSet: on_objects.create_set,
    act.SetTemplate: on_objects.set_template,
    act.SetReplicas: on_objects.set_replicas,
    act.OrphanSet: on_objects.orphan_set,
    act.GrowClaim: on_objects.grow_claim,
    act.MarkClaim: on_objects.mark_claim,
    act.DeleteClaim: on_objects.delete_claim,
    act.SetBudget: on_objects.set_budget,
    act.CheckRestart: on_brokers.check_restart,
    act.DeletePod: on_objects.delete_pod,
    act.KeepPod: on_objects.keep_pod,
    act.TransferLeaders: on_brokers.transfer_leaders,
    act.TransferMetadataLeadership: on_brokers.transfer_metadata,
    act.ElectPreferred: on_brokers.elect_preferred,
    act.Cordon: on_brokers.cordon,
    act.Uncordon: on_brokers.uncordon,
    act.AddLearner: on_brokers.add_learner,
    act.PromoteLearner: on_brokers.promote_learner,
    act.RemoveMember: on_brokers.remove_member,
    act.Retire: on_brokers.retire,
    act.RemoveBroker: on_brokers.remove_broker,
    act.Reassign: on_brokers.reassign,
    act.SetCatchUpRate: on_brokers.set_catch_up_rate,
    act.SetFeatureLevel: on_brokers.set_feature_level,
}
"""Function that performs each action; `Record` is a write of the status."""

"""Actions that brokers carry out.

Each names its target exactly, so that a late or repeated request changes nothing more.
"""

import asyncio
from hashlib import sha256

from liftbridge_operator.cluster.acting.context import ActionContext, Done, RefusedError
from liftbridge_operator.cluster.brokers.port import CONSENT_MS, Refusal
from liftbridge_operator.cluster.planning import actions as act
from liftbridge_operator.cluster.planning.decision import TokenAnswer

RESTART_ID_LENGTH = 32


def restart_id(token: bytes) -> str:
    """Return the name under which a token is stored: short, and derived from the token."""
    return sha256(token).hexdigest()[:RESTART_ID_LENGTH]


def _settled(answer: Refusal | None) -> Done:
    if answer is not None:
        raise RefusedError(answer)
    return Done()


async def bootstrap(context: ActionContext, action: act.Bootstrap) -> Done:
    """Send the founders to all brokers of the action; each may have received them before."""
    refusals = await asyncio.gather(
        *(
            context.admin.bootstrap(broker.broker, action.cluster_id, action.founders)
            for broker in action.brokers
        )
    )
    return _settled(next((one for one in refusals if one is not None), None))


async def check_restart(context: ActionContext, action: act.CheckRestart) -> Done:
    """Request the restart token; the broker returns the token or the blockers of the restart."""
    answer = await context.admin.check_restart(
        action.broker,
        action.pod_uid,
        accepts_unavailable=action.accepts_unavailable,
        needs_full_isr=action.needs_full_isr,
    )
    if isinstance(answer, Refusal):
        return Done(TokenAnswer("", 0, 0, (answer.text,)), text=answer.text)
    if not answer.token or answer.blockers:
        return Done(TokenAnswer("", 0, 0, answer.blockers))
    name = restart_id(answer.token)
    # Measured by the local clock from before the request: clocks of brokers may be off.
    given = TokenAnswer(name, context.now_ms + CONSENT_MS, answer.partitions)
    return Done(given, token=answer.token)


async def transfer_leaders(context: ActionContext, action: act.TransferLeaders) -> Done:
    """Transfer the leadership of a broker's partitions to other brokers."""
    return _settled(
        await context.admin.transfer_leaders(context.leader, action.broker, to=action.to)
    )


async def transfer_metadata(context: ActionContext, action: act.TransferMetadataLeadership) -> Done:
    """Transfer the leadership of the metadata group."""
    return _settled(await context.admin.transfer_metadata(context.leader, action.to))


async def elect_preferred(context: ActionContext, action: act.ElectPreferred) -> Done:
    """Transfer the leadership of partitions back to their first replicas."""
    return _settled(await context.admin.elect_preferred(context.leader, action.partitions))


async def cordon(context: ActionContext, action: act.Cordon) -> Done:
    """Cordon a broker, or drain it."""
    answer = await context.admin.cordon(
        context.leader, action.broker, is_draining=action.is_draining
    )
    return _settled(answer)


async def uncordon(context: ActionContext, action: act.Uncordon) -> Done:
    """Uncordon a broker, so that it takes replicas again."""
    return _settled(await context.admin.uncordon(context.leader, action.broker))


async def add_learner(context: ActionContext, action: act.AddLearner) -> Done:
    """Add a learner to the metadata group."""
    return _settled(await context.admin.add_learner(context.leader, action.member))


async def promote_learner(context: ActionContext, action: act.PromoteLearner) -> Done:
    """Promote a learner to a voter."""
    return _settled(await context.admin.promote_learner(context.leader, action.member))


async def remove_member(context: ActionContext, action: act.RemoveMember) -> Done:
    """Remove a member from the metadata group."""
    return _settled(await context.admin.remove_member(context.leader, action.member))


async def retire(context: ActionContext, action: act.Retire) -> Done:
    """Retire a data directory, so that it never votes again."""
    return _settled(await context.admin.retire(action.member))


async def remove_broker(context: ActionContext, action: act.RemoveBroker) -> Done:
    """Remove a stopped broker from the metadata."""
    answer = await context.admin.remove_broker(context.leader, action.broker, action.broker_epoch)
    return _settled(answer)


async def set_catch_up_rate(context: ActionContext, action: act.SetCatchUpRate) -> Done:
    """Set the bound on the catch-up rate of moves."""
    return _settled(await context.admin.set_catch_up_rate(context.leader, action.bytes_per_second))


async def set_feature_level(context: ActionContext, action: act.SetFeatureLevel) -> Done:
    """Raise the feature level."""
    return _settled(await context.admin.set_feature_level(context.leader, action.level))


async def reassign(context: ActionContext, action: act.Reassign) -> Done:
    """Start reassignments; after a refusal, continue with the remaining ones."""
    refused = None
    for move in action.moves:
        answer = await context.admin.reassign(context.leader, move)
        if answer is not None and answer.is_silence:
            raise RefusedError(answer)
        refused = refused or answer
    return _settled(refused)

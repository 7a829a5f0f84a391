"""Actions that brokers carry out.

Each names what it means exactly, so that one that comes late or twice changes nothing more.
"""

import asyncio
from hashlib import sha256

from liftbridge_operator.acting.context import ActionContext, Done, RefusedError
from liftbridge_operator.brokers.port import CONSENT_MS, Refusal
from liftbridge_operator.planning import actions as act
from liftbridge_operator.planning.decision import TokenAnswer

RESTART_ID_LENGTH = 32


def restart_id(token: bytes) -> str:
    """The name under which a token is kept: short, and the same for the same token."""
    return sha256(token).hexdigest()[:RESTART_ID_LENGTH]


def _settled(answer: Refusal | None) -> Done:
    if answer is not None:
        raise RefusedError(answer)
    return Done()


async def bootstrap(context: ActionContext, action: act.Bootstrap) -> Done:
    """Tell all that are due; each may have been told before."""
    said = await asyncio.gather(
        *(
            context.admin.bootstrap(one.broker, action.cluster_id, action.founders)
            for one in action.brokers
        )
    )
    return _settled(next((one for one in said if one is not None), None))


async def check_restart(context: ActionContext, action: act.CheckRestart) -> Done:
    """Ask for the token; what stands against the restart is an answer as well."""
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
    # Counted on our own clock, from before it was asked: clocks of brokers may be off.
    given = TokenAnswer(name, context.now_ms + CONSENT_MS, answer.partitions)
    return Done(given, token=answer.token)


async def transfer_leaders(context: ActionContext, action: act.TransferLeaders) -> Done:
    """Partitions of a broker go to others."""
    return _settled(
        await context.admin.transfer_leaders(context.leader, action.broker, to=action.to)
    )


async def transfer_metadata(context: ActionContext, action: act.TransferMetadataLeadership) -> Done:
    """The metadata group gets another leader."""
    return _settled(await context.admin.transfer_metadata(context.leader, action.to))


async def elect_preferred(context: ActionContext, action: act.ElectPreferred) -> Done:
    """Partitions go back to their first replicas."""
    return _settled(await context.admin.elect_preferred(context.leader, action.partitions))


async def cordon(context: ActionContext, action: act.Cordon) -> Done:
    """Nothing new on a broker."""
    answer = await context.admin.cordon(
        context.leader, action.broker, is_draining=action.is_draining
    )
    return _settled(answer)


async def uncordon(context: ActionContext, action: act.Uncordon) -> Done:
    """A broker takes replicas again."""
    return _settled(await context.admin.uncordon(context.leader, action.broker))


async def add_learner(context: ActionContext, action: act.AddLearner) -> Done:
    """A member without a vote."""
    return _settled(await context.admin.add_learner(context.leader, action.member))


async def promote_learner(context: ActionContext, action: act.PromoteLearner) -> Done:
    """A vote."""
    return _settled(await context.admin.promote_learner(context.leader, action.member))


async def remove_member(context: ActionContext, action: act.RemoveMember) -> Done:
    """A member less."""
    return _settled(await context.admin.remove_member(context.leader, action.member))


async def retire(context: ActionContext, action: act.Retire) -> Done:
    """A directory never votes again."""
    return _settled(await context.admin.retire(action.member))


async def remove_broker(context: ActionContext, action: act.RemoveBroker) -> Done:
    """A stopped broker is forgotten."""
    answer = await context.admin.remove_broker(context.leader, action.broker, action.broker_epoch)
    return _settled(answer)


async def set_catch_up_rate(context: ActionContext, action: act.SetCatchUpRate) -> Done:
    """A bound for moves."""
    return _settled(await context.admin.set_catch_up_rate(context.leader, action.bytes_per_second))


async def set_feature_level(context: ActionContext, action: act.SetFeatureLevel) -> Done:
    """Newer rules."""
    return _settled(await context.admin.set_feature_level(context.leader, action.level))


async def reassign(context: ActionContext, action: act.Reassign) -> Done:
    """Moves of partitions; one that is refused does not keep the others from beginning."""
    refused = None
    for move in action.moves:
        answer = await context.admin.reassign(context.leader, move)
        if answer is not None and answer.is_silence:
            raise RefusedError(answer)
        refused = refused or answer
    return _settled(refused)

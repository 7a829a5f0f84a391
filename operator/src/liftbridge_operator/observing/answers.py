"""One round of questions to all brokers: who they are, what their leader knows, what is proven.

Brokers are asked side by side, each with its own bound, so that a round takes as long as the
slowest answer and never longer than a silence is waited for.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from liftbridge_operator.brokers.port import BrokerAdmin, Refusal, Told
from liftbridge_operator.planning.observation import (
    Disruption,
    Metadata,
    SelfReport,
    Verification,
)

LEADERS_MAX: Final = 2
"""Brokers that are asked for the metadata, when those that answer do not agree on a leader."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What brokers said.

    Attributes:
        metadata: None when no leader answered that could confirm it leads.
        refusals: What was said instead of an answer, by broker.
    """

    reports: tuple[SelfReport, ...] = ()
    metadata: Metadata | None = None
    verification: Verification | None = None
    refusals: tuple[tuple[str, Refusal], ...] = ()


async def ask(
    admin: BrokerAdmin,
    brokers: Sequence[str],
    disruption: Disruption | None = None,
    token: bytes | None = None,
) -> Answers:
    """Ask everybody.

    Args:
        admin: The brokers.
        brokers: Those whose pods run.
        disruption: The restart that is recorded.
        token: What its broker gave for it; None when that is lost.
    """
    said = await asyncio.gather(*(admin.tell(name) for name in brokers))
    told = [one for one in said if isinstance(one, Told)]
    refusals = [
        (name, one) for name, one in zip(brokers, said, strict=True) if isinstance(one, Refusal)
    ]
    metadata, refused = await _metadata(admin, told)
    refusals += refused
    verification = None
    if disruption is not None and any(one.report.broker == disruption.broker for one in told):
        verification = await _verify(admin, disruption, token)
    return Answers(tuple(one.report for one in told), metadata, verification, tuple(refusals))


async def _metadata(
    admin: BrokerAdmin, told: Sequence[Told]
) -> tuple[Metadata | None, list[tuple[str, Refusal]]]:
    """The metadata of whom most brokers take for the leader, or of the next one."""
    votes = Counter(one.metadata_leader for one in told if one.metadata_leader)
    refusals: list[tuple[str, Refusal]] = []
    for leader, _ in votes.most_common(LEADERS_MAX):
        answer = await admin.metadata(leader)
        if not isinstance(answer, Refusal):
            return answer, refusals
        refusals.append((leader, answer))
    return None, refusals


async def _verify(
    admin: BrokerAdmin, disruption: Disruption, token: bytes | None
) -> Verification | None:
    if token is None:
        # Nobody can compare any more: what counts is that its replicas are in sync again.
        return Verification(disruption.token, is_complete=False, is_other_directory=True)
    answer = await admin.verify_restart(disruption.broker, token)
    if isinstance(answer, Refusal):
        return None
    return Verification(
        disruption.token,
        is_complete=answer.is_complete,
        is_other_directory=answer.is_other_directory,
        blockers=answer.blockers,
    )

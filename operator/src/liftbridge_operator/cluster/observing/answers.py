"""Query all brokers for their identity, the leader's metadata and the verification of a restart.

The queries run concurrently, each with a time-out, so a round takes as long as the slowest answer
and never longer than the time-out.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from liftbridge_operator.cluster.brokers.port import BrokerAdmin, ProcessReport, Refusal
from liftbridge_operator.cluster.planning.observation import (
    Disruption,
    Metadata,
    SelfReport,
    Verification,
)

LEADERS_MAX: Final = 2
"""Maximum number of brokers asked for the metadata, when answers name different leaders."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of brokers.

    Attributes:
        metadata: None when no leader answered that could confirm its leadership.
        refusals: Brokers that refused or did not answer, each with the refusal.
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
    """Ask all brokers.

    Args:
        admin: Port to the brokers.
        brokers: Brokers whose pods run.
        disruption: The recorded restart.
        token: Its restart token; None when that is lost.
    """
    outcomes = await asyncio.gather(*(admin.process_report(name) for name in brokers))
    answered = [one for one in outcomes if isinstance(one, ProcessReport)]
    refusals = [
        (name, one) for name, one in zip(brokers, outcomes, strict=True) if isinstance(one, Refusal)
    ]
    metadata, refused = await _metadata(admin, answered)
    refusals += refused
    verification = None
    if disruption is not None and any(one.report.broker == disruption.broker for one in answered):
        verification = await _verify(admin, disruption, token)
    return Answers(tuple(one.report for one in answered), metadata, verification, tuple(refusals))


async def _metadata(
    admin: BrokerAdmin, processes: Sequence[ProcessReport]
) -> tuple[Metadata | None, list[tuple[str, Refusal]]]:
    """Return the metadata of the leader that most brokers name, or of the next one."""
    votes = Counter(one.metadata_leader for one in processes if one.metadata_leader)
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
        # Offsets cannot be compared: the restart is verified by its replicas being in sync again.
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

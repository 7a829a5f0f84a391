"""Port of the operator to brokers.

Every answer is a value, even a missing one: that a broker does not answer is an observation.
Restart tokens are bytes that only brokers interpret. Times are Unix milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from liftbridge_operator.cluster.planning.actions import Move
from liftbridge_operator.cluster.planning.observation import Member, Metadata, SelfReport

CONSENT_MS: Final = 60_000
"""Requested validity of a broker's consent to its restart."""

_SILENCES: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused or unanswered call.

    Attributes:
        code: Name of its gRPC status.
        text: Message of the broker, or of the connection's failure.
    """

    code: str
    text: str

    @property
    def is_silence(self) -> bool:
        """Return whether no answer came, so that the outcome is unknown."""
        return self.code in _SILENCES


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Report of a broker process about itself, and the metadata leader that it knows."""

    report: SelfReport
    metadata_leader: str


@dataclass(frozen=True, slots=True)
class Consent:
    """Answer to a restart check.

    Attributes:
        token: Records the offsets that the broker holds; empty when there are blockers.
        expires_ms: Time by which the restart must have begun, by the broker's clock.
        partitions: Number of recorded partitions.
        blockers: Reasons against the restart.
    """

    token: bytes
    expires_ms: int
    partitions: int
    blockers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verified:
    """A restarted broker's answer to the verification of its token.

    Attributes:
        is_other_directory: Whether it has another volume, so that offsets cannot be compared.
    """

    is_complete: bool
    is_other_directory: bool
    blockers: tuple[str, ...] = ()


class BrokerAdmin(Protocol):
    """Admin of the brokers of one cluster, by their names.

    `leader` is the metadata leader, which receives changes: only it can change the group, and it
    has the latest state to check other changes against. An unanswered change may have been done;
    every change is idempotent.
    """

    async def process_report(self, broker: str) -> ProcessReport | Refusal:
        """Return the broker's identity, and the state of its connections and its disk."""
        ...

    async def metadata(self, broker: str) -> Metadata | Refusal:
        """Return the metadata from the leader, which has just confirmed its leadership."""
        ...

    async def check_restart(
        self, broker: str, start_id: str, *, accepts_unavailable: bool, needs_full_isr: bool
    ) -> Consent | Refusal:
        """Check whether the process `start_id` of a broker may be restarted now."""
        ...

    async def verify_restart(self, broker: str, token: bytes) -> Verified | Refusal:
        """Check whether a restarted broker holds everything that its token records."""
        ...

    async def bootstrap(
        self, broker: str, cluster_id: str, founders: Sequence[Member]
    ) -> Refusal | None:
        """Found the cluster, together with all founders."""
        ...

    async def retire(self, member: Member) -> Refusal | None:
        """Mark the directory of a broker as one that never votes again."""
        ...

    async def transfer_leaders(self, leader: str, broker: str, *, to: str) -> Refusal | None:
        """Hand over all partitions that a broker leads to any broker, or only to `to`."""
        ...

    async def transfer_metadata(self, leader: str, to: str) -> Refusal | None:
        """Transfer the leadership of the metadata group to another voter."""
        ...

    async def elect_preferred(
        self, leader: str, partitions: Sequence[tuple[str, int]]
    ) -> Refusal | None:
        """Transfer leadership of partitions, by stream and number, to their first replicas."""
        ...

    async def cordon(self, leader: str, broker: str, *, is_draining: bool) -> Refusal | None:
        """Place nothing new on a broker, and with `is_draining` move its replicas away."""
        ...

    async def uncordon(self, leader: str, broker: str) -> Refusal | None:
        """End the cordon and the drain of a broker."""
        ...

    async def add_learner(self, leader: str, member: Member) -> Refusal | None:
        """Add a learner."""
        ...

    async def promote_learner(self, leader: str, member: Member) -> Refusal | None:
        """Promote a learner to a voter."""
        ...

    async def remove_member(self, leader: str, member: Member) -> Refusal | None:
        """Remove a member from the metadata group."""
        ...

    async def remove_broker(self, leader: str, broker: str, broker_epoch: int) -> Refusal | None:
        """Remove a stopped broker from the metadata, at the observed broker epoch."""
        ...

    async def reassign(self, leader: str, move: Move) -> Refusal | None:
        """Start the reassignment of a partition, at the observed partition epoch."""
        ...

    async def set_catch_up_rate(self, leader: str, bytes_per_second: int) -> Refusal | None:
        """Bound the catch-up rate that each leader grants moved replicas; 0 for no bound."""
        ...

    async def set_feature_level(self, leader: str, level: int) -> Refusal | None:
        """Raise the feature level."""
        ...

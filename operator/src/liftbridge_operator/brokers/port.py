"""What the operator asks brokers.

Every answer is a value, also that there was none: a broker that does not answer is something that
was observed. Tokens of restarts are bytes that only brokers read. Times are Unix milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from liftbridge_operator.planning.actions import Move
from liftbridge_operator.planning.observation import Member, Metadata, SelfReport

CONSENT_MS: Final = 60_000
"""How long a broker's consent to its restart is asked to hold."""

_SILENCES: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that was not answered as asked.

    Attributes:
        code: Name of its gRPC status.
        text: What the broker says, or what became of the connection.
    """

    code: str
    text: str

    @property
    def is_silence(self) -> bool:
        """Whether nobody answered, so that it is not known whether it was done."""
        return self.code in _SILENCES


@dataclass(frozen=True, slots=True)
class Told:
    """What a process says of itself, and whom it takes for the leader of the metadata group."""

    report: SelfReport
    metadata_leader: str


@dataclass(frozen=True, slots=True)
class Consent:
    """Answer to the question whether a broker may be restarted.

    Attributes:
        token: Records what it holds; empty when something stands against the restart.
        expires_ms: When the restart must have begun, by the broker's clock.
        partitions: Partitions recorded.
        blockers: What stands against it.
    """

    token: bytes
    expires_ms: int
    partitions: int
    blockers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verified:
    """What a broker that was restarted says of the token.

    Attributes:
        is_other_directory: Whether it runs on another volume, so that nothing can be compared.
    """

    is_complete: bool
    is_other_directory: bool
    blockers: tuple[str, ...] = ()


class BrokerAdmin(Protocol):
    """Admin of the brokers of one cluster, by their names.

    `leader` is the broker to ask for a change, the leader of the metadata group: it alone can
    change the group, and knows best whether the rest may be done. A change that is answered by a
    silence may have been done; each is such that asking again does no harm.
    """

    async def tell(self, broker: str) -> Told | Refusal:
        """Who the broker is, and how its links and its disk are."""
        ...

    async def metadata(self, broker: str) -> Metadata | Refusal:
        """The metadata, of the leader of the group, which has just confirmed that it leads."""
        ...

    async def check_restart(
        self, broker: str, start_id: str, *, accepts_unavailable: bool, needs_full_isr: bool
    ) -> Consent | Refusal:
        """Whether the process `start_id` of a broker may be restarted now."""
        ...

    async def verify_restart(self, broker: str, token: bytes) -> Verified | Refusal:
        """Whether a broker is back with everything that its token records."""
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
        """Hand over all partitions that a broker leads and another one can, or just `to`."""
        ...

    async def transfer_metadata(self, leader: str, to: str) -> Refusal | None:
        """Have another voter lead the metadata group."""
        ...

    async def elect_preferred(
        self, leader: str, partitions: Sequence[tuple[str, int]]
    ) -> Refusal | None:
        """Have the first replicas of partitions, by stream and number, lead them."""
        ...

    async def cordon(self, leader: str, broker: str, *, is_draining: bool) -> Refusal | None:
        """Place nothing new on a broker, and with `is_draining` move what it holds away."""
        ...

    async def uncordon(self, leader: str, broker: str) -> Refusal | None:
        """End the cordon and the drain of a broker."""
        ...

    async def add_learner(self, leader: str, member: Member) -> Refusal | None:
        """Add a member without a vote."""
        ...

    async def promote_learner(self, leader: str, member: Member) -> Refusal | None:
        """Give a member a vote."""
        ...

    async def remove_member(self, leader: str, member: Member) -> Refusal | None:
        """Take a member out of the metadata group."""
        ...

    async def remove_broker(self, leader: str, broker: str, broker_epoch: int) -> Refusal | None:
        """Forget a stopped broker, of the registration that was seen."""
        ...

    async def reassign(self, leader: str, move: Move) -> Refusal | None:
        """Start the move of a partition, at the epoch that was seen."""
        ...

    async def set_catch_up_rate(self, leader: str, bytes_per_second: int) -> Refusal | None:
        """Bound what each leader spends on replicas that are moved; 0 for no bound."""
        ...

    async def set_feature_level(self, leader: str, level: int) -> Refusal | None:
        """Put newer rules of decision into force."""
        ...

"""Context and outcome of an action."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from liftbridge_operator.cluster.acting.whole import Kept
from liftbridge_operator.cluster.brokers.port import BrokerAdmin, Refusal
from liftbridge_operator.cluster.observing.reads import Reads
from liftbridge_operator.cluster.planning.decision import TokenAnswer
from liftbridge_operator.cluster.planning.refusals import Refusal as Refused
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Rendered
from liftbridge_operator.kube.port import Kube
from liftbridge_operator.model.storage import VolumeFate


class RefusedError(Exception):
    """A broker refused a request, or did not answer.

    Attributes:
        refusal: The broker's refusal.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.code}: {refusal.text}")
        self.refusal = refusal


class MissingTemplateError(Exception):
    """The template of a revision is no longer stored, so it cannot be written again."""


@dataclass(frozen=True, slots=True)
class ActionContext:
    """Everything that an action of one pass needs.

    Attributes:
        leader: Broker that leads the metadata group; empty without a leader.
        reads: Reads of the pass.
        now_ms: Start of the pass.
        held: Objects around the set whose writes were refused and are not retried yet.
        kept: Objects as last applied; each apply updates its entry.
    """

    kube: Kube
    admin: BrokerAdmin
    leader: str
    cluster: Cluster
    inputs: Inputs
    rendered: Rendered
    reads: Reads
    now_ms: int
    held: Mapping[str, Refused] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)

    @property
    def fate(self) -> str:
        """Fate of the volume of a broker that is scaled in: `deleted` or `kept`."""
        is_deleted = self.cluster.spec.storage.retention.when_scaled is VolumeFate.DELETE
        return "deleted" if is_deleted else "kept"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem that only a user can fix, as a reason of `Stalled` with its values."""

    reason: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """Outcome of an action.

    Attributes:
        answer: Answer to the restart check of a broker.
        token: Restart token that came with the answer.
        text: Why the action was not done; empty when it was. The next pass decides again.
        refusal: Refusal of the API server or a broker; the action is retried later.
    """

    answer: TokenAnswer | None = None
    token: bytes = b""
    text: str = ""
    refusal: Refused | None = None

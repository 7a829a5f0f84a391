"""What an action is carried out with, and what becomes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from liftbridge_operator.acting.whole import Kept
from liftbridge_operator.brokers.port import BrokerAdmin, Refusal
from liftbridge_operator.kube.port import Kube
from liftbridge_operator.model.storage import VolumeFate
from liftbridge_operator.observing.reads import Reads
from liftbridge_operator.planning.decision import TokenAnswer
from liftbridge_operator.planning.refusals import Refusal as Refused
from liftbridge_operator.rendering.subject import Cluster, Inputs, Rendered


class RefusedError(Exception):
    """A broker did not do what was asked, or did not answer.

    Attributes:
        refusal: What it said.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.code}: {refusal.text}")
        self.refusal = refusal


class MissingTemplateError(Exception):
    """The template of a revision is not kept any more, so that it cannot be written again."""


@dataclass(frozen=True, slots=True)
class ActionContext:
    """Everything that an action of one pass is done with.

    Attributes:
        leader: Broker that leads the metadata group; empty for nobody.
        reads: What the pass has read.
        now_ms: When the pass began.
        held: Objects around the set that were refused, and are not tried again yet.
        kept: Objects as they were last brought to what was rendered; written by who brings them.
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
        """What becomes of the volume of a broker that leaves."""
        is_deleted = self.cluster.spec.storage.retention.when_scaled is VolumeFate.DELETE
        return "deleted" if is_deleted else "kept"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that a person has to mend, as a reason of `Stalled` with its values."""

    reason: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """What became of an action.

    Attributes:
        answer: Of the question whether a broker may be restarted.
        token: What the broker gave with it.
        text: Why it was not done; empty when it was. Usual: the next pass looks again.
        refusal: What somebody said against it; it is tried again later.
    """

    answer: TokenAnswer | None = None
    token: bytes = b""
    text: str = ""
    refusal: Refused | None = None

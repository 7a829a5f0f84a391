"""What a pass comes to: one action or a wait, what the status says, what the next pass needs."""

from dataclasses import dataclass

from liftbridge_operator.planning.actions import Action


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that the operator waits for, as the status shows it.

    Attributes:
        what: A reason in CamelCase.
        object: Pod, partition, claim or resource it is about.
        ends_when: For people.
        since_ms: When it was first seen in a row.
        is_stalled: Whether it does not end without a person.
    """

    what: str
    object: str
    ends_when: str
    since_ms: int = 0
    is_stalled: bool = False


@dataclass(frozen=True, slots=True)
class GateReading:
    """An open gate: of which broker, at which epoch of the metadata, when first and last."""

    broker: str
    epoch: str
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Token:
    """A broker's consent to the restart of a pod."""

    broker: str
    pod_uid: str
    text: str
    expires_ms: int
    partitions: int


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """What `CheckRestart` came to; `text` is empty when there are blockers."""

    text: str
    expires_ms: int
    partitions: int
    blockers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """An action that was refused: it is told, and tried again later.

    Attributes:
        action: Kind of the action.
        object: What it is about.
        reason: A wait of the catalogue.
        text: What was said against it.
        generation: Of the specification that asks for it; with another one it is tried at once.
        count: Refusals in a row.
        until_ms: When it is tried again.
        needs_person: Whether it does not end by itself.
    """

    action: str
    object: str
    reason: str
    text: str
    generation: int
    count: int
    until_ms: int
    needs_person: bool = True


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process remembers from pass to pass; one that was lost costs time, nothing else.

    Attributes:
        gate: The reading of the gate that is to be repeated.
        token: Consent that is not recorded yet.
        refusal: What the broker said against its restart when it was asked.
        empty: Broker seen without replicas, and when first; the broker empty for none.
        waits: Waits of the last pass.
        refused: What was refused, and is tried again later.
        now_ms: When all this was written down.
        ahead: Moments that were ahead of the clock, and when each was first seen so.
    """

    gate: GateReading | None = None
    token: Token | None = None
    refusal: tuple[str, ...] = ()
    empty: tuple[str, int] = ("", 0)
    waits: tuple[Wait, ...] = ()
    refused: tuple[Refused, ...] = ()
    now_ms: int = 0
    ahead: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that the plan says will be done to one object, and why.

    Attributes:
        cause: Path of the field that asks for it, or what else does.
    """

    what: str
    object: str
    cause: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What the present specification will disrupt.

    Attributes:
        hash: Of target and kinds of risk, not of progress; empty when nothing is to be done.
        steps: The first of them, in order.
        step_count: How many there are.
        risks: Kinds of unavailability that come with it.
        is_disruptive: Whether any step is one by which brokers go away.
        needs_consent: Whether any step waits for windows and approval.
    """

    hash: str = ""
    steps: tuple[Step, ...] = ()
    step_count: int = 0
    risks: tuple[str, ...] = ()
    is_disruptive: bool = False
    needs_consent: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """From what the conditions of the resource are computed.

    Attributes:
        is_ready: Whether everything wanted is so and serves.
        is_available: None when the metadata does not answer.
        progressing: Reason of the work under way; empty for none.
        degraded: Reasons for reduced redundancy.
        stalled: Reason why a person is needed; empty for none.
        disruption_blockers: Why no broker may be restarted now; empty when one may.
    """

    generation: int
    replicas: int
    ready_replicas: int
    is_ready: bool
    is_available: bool | None
    progressing: str
    degraded: tuple[str, ...]
    stalled: str
    offline: int
    under_replicated: int
    below_min_isr: int
    disruption_blockers: tuple[str, ...]
    waits: tuple[Wait, ...] = ()
    plan: Plan = Plan()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, what to publish, and what to bring to the next pass.

    Attributes:
        deadline_ms: After it the action is dropped, undone: too much may have changed.
    """

    action: Action | None
    deadline_ms: int
    status: Status
    memory: Memory


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answer of one story: an action, or a wait that keeps later stories from acting.

    Attributes:
        progressing: Reason of the work under way.
        memory: None when it does not change.
    """

    progressing: str
    action: Action | None = None
    waits: tuple[Wait, ...] = ()
    memory: Memory | None = None

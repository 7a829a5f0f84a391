"""Result of a pass: one action or a wait, the status, and the memory for the next pass."""

from dataclasses import dataclass

from liftbridge_operator.cluster.planning.actions import Action


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of the operator, as the status shows it.

    Attributes:
        what: A reason in CamelCase.
        object: Pod, partition, claim or resource it is about.
        ends_when: Human-readable condition that ends the wait.
        since_ms: When it was first seen without a break.
        is_stalled: Whether only a user can end it.
    """

    what: str
    object: str
    ends_when: str
    since_ms: int = 0
    is_stalled: bool = False


@dataclass(frozen=True, slots=True)
class GateReading:
    """Readings of an open gate: broker, epochs, and times of the first and last reading."""

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
    """Answer to `CheckRestart`; `text` is empty when there are blockers."""

    text: str
    expires_ms: int
    partitions: int
    blockers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused action, which is reported and retried later.

    Attributes:
        action: Kind of the action.
        object: Object or broker of the action.
        reason: A wait of the catalogue.
        text: Message of the refusal.
        generation: Generation of the specification; another one is tried at once.
        count: Refusals in a row.
        until_ms: When it is retried.
        needs_person: Whether only a user can resolve it.
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
    """State that a process keeps between passes; its loss costs only time.

    Attributes:
        gate: The reading of the gate that is to be repeated.
        token: Consent of a broker that is not recorded yet.
        refusal: Blockers that the broker reported when it was asked for a restart token.
        empty: Broker first seen without replicas, and when; an empty name for none.
        waits: Waits of the last pass.
        refused: Refused actions, which are retried later.
        now_ms: Time of the pass that wrote this memory.
        ahead: Times ahead of the clock, and when each was first seen.
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
    """A planned change of one object, and its cause.

    Attributes:
        cause: Path of the field that requests it, or another cause.
    """

    what: str
    object: str
    cause: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Disruptions that the present specification causes.

    Attributes:
        hash: Hash of target and kinds of risk, not of progress; empty without steps.
        steps: The first steps, in order.
        step_count: Number of all steps.
        risks: Kinds of unavailability that it causes.
        is_disruptive: Whether any step stops or removes brokers.
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
    """Inputs of the conditions of the resource.

    Attributes:
        is_ready: Whether everything is as desired and serves.
        is_available: None when the metadata does not answer.
        progressing: Reason of the work under way; empty for none.
        degraded: Reasons for reduced redundancy.
        stalled: Reason that only a user can resolve; empty for none.
        disruption_blockers: Waits that block every restart now; empty when a broker may restart.
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
    """Action, status, and memory for the next pass.

    Attributes:
        deadline_ms: After it the action is dropped: too much may have changed.
    """

    action: Action | None
    deadline_ms: int
    status: Status
    memory: Memory


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answer of one rule: an action, or a wait that keeps later rules from acting.

    Attributes:
        progressing: Reason of the work under way.
        memory: Changed memory; None when it does not change.
    """

    progressing: str
    action: Action | None = None
    waits: tuple[Wait, ...] = ()
    memory: Memory | None = None

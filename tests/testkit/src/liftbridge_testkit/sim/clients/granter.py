"""A granter: an administrator who changes access rules at random, also against running calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.rules import (
    AccessRule,
    NameMatch,
    Operation,
    ResourceKind,
    super_rules,
)
from liftbridge_broker.controller.callers.commands import AccessCommand, ChangeRules, SetAccess
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_testkit.sim.clients.calls import Answer, Calls, Lost, Serving
from liftbridge_testkit.sim.clients.directory import Directory
from liftbridge_testkit.sim.invariants.access import AccessRules
from liftbridge_testkit.sim.world import World

ROOT: Final = "root"
"""Super-user, for whom nobody acts: rules can always be changed."""

CALLERS: Final = (
    Principal("ann", ("team",)),
    Principal("anton"),
    Principal("bob", ("team", "others")),
    Principal(""),
)
"""Whom clients act for; the last one is anonymous."""

MEMBER: Final = Principal("carl", ("members",))
"""Whom members of consumer groups act for."""

WHOM: Final = (
    ("*", False),
    ("an*", False),
    ("ann", False),
    ("bob", False),
    ("carl", False),
    ("team", True),
    ("members", True),
)
NAMES: Final[Mapping[ResourceKind, tuple[tuple[NameMatch, str], ...]]] = {
    ResourceKind.STREAM: (
        (NameMatch.EXACT, "guarded"),
        (NameMatch.EXACT, "grouped"),
        (NameMatch.PREFIX, ""),
        (NameMatch.PREFIX, "gua"),
        (NameMatch.PATTERN, ">"),
    ),
    ResourceKind.GROUP: ((NameMatch.EXACT, "incremental"), (NameMatch.PREFIX, "")),
    ResourceKind.CURSOR: ((NameMatch.EXACT, "guarded/place"), (NameMatch.PREFIX, "guarded/")),
}
USED: Final[Mapping[ResourceKind, tuple[Operation, ...]]] = {
    ResourceKind.STREAM: (
        Operation.READ,
        Operation.PUBLISH,
        Operation.DESCRIBE,
        Operation.ALL,
    ),
    ResourceKind.GROUP: (Operation.JOIN, Operation.DESCRIBE, Operation.ALL),
    ResourceKind.CURSOR: (Operation.SET, Operation.READ, Operation.ALL),
}

EVERYTHING: Final = super_rules("*")


@dataclass(slots=True)
class Granter:
    """One granter from `start` until `stop`, which allows everybody everything in the end.

    Attributes:
        think_ns: Maximum time between two changes.
        is_open: Whether everything was allowed in the end.
    """

    world: World
    calls: Calls
    directory: Directory
    rules: AccessRules
    think_ns: int = 300 * MILLISECOND_NS
    is_stopped: bool = False
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(f"granter {self.world.seed}")

    def start(self) -> None:
        """Allow the half of it, turn access control on, and begin to change rules."""
        granted = [*super_rules(ROOT), *EVERYTHING]
        self._propose("grant", ChangeRules(granted=tuple(granted)))
        self._propose("switch on", SetAccess(is_on=True, super_users=(ROOT,)))
        self._later()

    def stop(self) -> None:
        """Allow everybody everything from now on."""
        if not self.is_stopped:
            self.is_stopped = True
            self._open_all(None)

    @property
    def is_open(self) -> bool:
        """Return whether all brokers know that everybody may do everything."""
        return all(map(_is_open, self.directory.states()))

    def _open_all(self, _outcome: object) -> None:
        """Allow everything where it is missing; changes of before may still arrive."""
        state = self.directory.state()
        if state is None or _is_open(state):
            self._open_later(None)
            return
        denied = [one for one in state.access.rules if one.is_denied]
        command = ChangeRules(granted=EVERYTHING, revoked=tuple(denied))
        self._propose("grant", command, self._open_later)

    def _open_later(self, outcome: object) -> None:
        self.world.scheduler.after(self.think_ns, self._open_all, outcome)

    def _later(self) -> None:
        self.world.scheduler.after(self._random.randrange(1, self.think_ns), self._go)

    def _go(self) -> None:
        if self.is_stopped:
            return
        name = self._random.choice(tuple(CHANGES))
        command = CHANGES[name](self)
        if command is not None:
            self._propose(name, command)
        self._later()

    def _propose(
        self, name: str, command: AccessCommand, done: Callable[[object], None] | None = None
    ) -> None:
        def serve(serving: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
            serving.node.propose(command, now, answer)

        def answered(outcome: object) -> None:
            is_done = not isinstance(outcome, LiftbridgeError | Lost)
            self.world.coverage.count("access", name if is_done else "change refused")
            self.world.trace.note(self.world.now, "granter", name, is_done)
            if done is not None:
                done(outcome)

        self.calls.call("granter", self.directory.any_machine(), serve, answered)

    # -- changes ------------------------------------------------------------------------------

    def _rule(self, *, is_denied: bool) -> AccessRule:
        kind = self._random.choice(tuple(NAMES))
        match, name = self._random.choice(NAMES[kind])
        principal, is_group = self._random.choice(WHOM)
        operation = self._random.choice(USED[kind])
        return AccessRule(principal, is_group, kind, match, name, is_denied, int(operation))

    def grant(self) -> AccessCommand:
        """Allow something."""
        return ChangeRules(granted=(self._rule(is_denied=False),))

    def deny(self) -> AccessCommand:
        """Deny something."""
        return ChangeRules(granted=(self._rule(is_denied=True),))

    def revoke(self) -> AccessCommand | None:
        """Take some rules away."""
        return self._revoked(is_denied=False)

    def forgive(self) -> AccessCommand | None:
        """Take some denials away."""
        return self._revoked(is_denied=True)

    def _revoked(self, *, is_denied: bool) -> AccessCommand | None:
        state = self.directory.state()
        known = [] if state is None else list(state.access.rules)
        rules = [one for one in known if one.principal != ROOT and one.is_denied == is_denied]
        if not rules:
            return None
        count = self._random.randrange(1, len(rules) + 1) if is_denied else 1
        return ChangeRules(revoked=tuple(self._random.sample(rules, count)))

    def hit(self) -> AccessCommand | None:
        """Deny what some running call does."""
        running = [one for some in self.rules.running.values() for one in some.values()]
        if not running:
            return None
        one = self._random.choice(running)
        act = self._random.choice(one.acts)
        whom = one.who.name or "*"
        match = NameMatch.EXACT
        rule = AccessRule(whom, False, act.kind, match, act.name, True, int(act.operation))  # noqa: FBT003 - the fields of a rule
        return ChangeRules(granted=(rule,))

    def switch_off(self) -> AccessCommand:
        """Turn access control off."""
        return SetAccess(is_on=False)

    def switch_on(self) -> AccessCommand:
        """Turn it on."""
        return SetAccess(is_on=True, super_users=(ROOT,))


def _is_open(state: ClusterState) -> bool:
    """Return whether rules deny nothing, and allow everybody everything."""
    rules = state.access.rules
    allowed = (rules.get(one.key) for one in EVERYTHING)
    return not any(one.is_denied for one in rules) and all(
        one is not None and one.operations & Operation.ALL for one in allowed
    )


CHANGES: Final[Mapping[str, Callable[[Granter], AccessCommand | None]]] = {
    "grant": Granter.grant,
    "restore": lambda _granter: ChangeRules(granted=EVERYTHING),
    "deny": Granter.deny,
    "revoke": Granter.revoke,
    "forgive": Granter.forgive,
    "hit": Granter.hit,
    "switch off": Granter.switch_off,
    "switch on": Granter.switch_on,
}
"""Changes by name."""

"""In-memory brokers behind the port of the user reconciler.

brokers = MemoryUsers(clock)
brokers.grant("billing", Publish)         # as somebody else
brokers.is_silent = True                  # nobody answers
"""

from collections.abc import Callable
from typing import Protocol

from liftbridge_operator.model.user import Effect, Operation, ResourceKind
from liftbridge_operator.streams.port import RefusedError, SilentError
from liftbridge_operator.users import rules as rules_
from liftbridge_operator.users.observation import NO_LIMITS, Limits, ObservedToken, Snapshot
from liftbridge_operator.users.port import MadeToken
from liftbridge_operator.users.rules import RuleKey, Rules


class HasSeconds(Protocol):
    """Something that knows the time, in Unix seconds."""

    def __call__(self) -> int:
        """Return the time."""
        ...


def rule(name: str, *operations: Operation, effect: Effect = Effect.ALLOW) -> Rules:
    """Return a rule for streams."""
    return {RuleKey(ResourceKind.STREAM, name, effect): frozenset(operations)}


class MemoryUsers:
    """Implement `UserBrokers` in memory.

    Attributes:
        is_on: Whether rules are in force.
        rules: Rules by principal.
        quotas: Quotas by principal.
        held: Tokens by their public part.
        calls: Requested changes, in order.
        looks: Number of looks.
        is_silent: Whether no broker answers.
        loses_answers: Whether changes are made, and their answers lost.
        refusals: Text of the refusal of a change, by its name.
    """

    def __init__(self, now_s: HasSeconds) -> None:
        self._now_s = now_s
        self.is_on = True
        self.rules: dict[str, Rules] = {}
        self.quotas: dict[str, Limits] = {}
        self.held: dict[str, ObservedToken] = {}
        self.calls: list[tuple[str, str]] = []
        self.looks = 0
        self.is_silent = self.loses_answers = self.is_closed = False
        self.refusals: dict[str, str] = {}
        self._watchers: list[Callable[[str], None]] = []
        self._ids = 0

    # -- as somebody else -----------------------------------------------------------------------

    def grant(self, principal: str, rules: Rules) -> None:
        """Grant rules by hand."""
        self.rules[principal] = rules_.plus(self.rules.get(principal, {}), rules)

    def revoke(self, principal: str, rules: Rules) -> None:
        """Revoke rules by hand."""
        left = rules_.minus(self.rules.get(principal, {}), rules)
        self.rules[principal] = left
        if not left:
            del self.rules[principal]

    def watch_revocations(self, callback: Callable[[str], None]) -> None:
        """Call a function with each token that is about to end."""
        self._watchers.append(callback)

    def valid(self, principal: str) -> set[str]:
        """Return the public parts of the tokens that brokers accept now."""
        return {
            one.token_id
            for one in self.held.values()
            if one.principal == principal and not 0 < one.expires_s <= self._now_s()
        }

    # -- the port -------------------------------------------------------------------------------

    async def look(self) -> Snapshot:
        """Implement `UserBrokers.look`."""
        self.looks += 1
        if self.is_silent:
            raise SilentError("nobody answers")
        now = self._now_s()
        tokens = tuple(one for one in self.held.values() if not 0 < one.expires_s <= now)
        return Snapshot(self.is_on, dict(self.rules), dict(self.quotas), tokens)

    def _asked(self, what: str, name: str) -> None:
        self.calls.append((what, name))
        if self.is_silent:
            raise SilentError("nobody answers")
        if what in self.refusals:
            raise RefusedError(self.refusals[what])

    def _answered(self) -> None:
        if self.loses_answers:
            raise SilentError("the answer is lost")

    async def change_rules(
        self, principal: str, *, granted: Rules, revoked: Rules, is_dry_run: bool = False
    ) -> None:
        """Implement `UserBrokers.change_rules`."""
        self._asked("check_rules" if is_dry_run else "change_rules", principal)
        if not is_dry_run:
            self.grant(principal, granted)
            self.revoke(principal, revoked)
            self._answered()

    async def set_quota(self, principal: str, limits: Limits) -> None:
        """Implement `UserBrokers.set_quota`."""
        self._asked("set_quota", principal)
        self.quotas.pop(principal, None)
        if limits != NO_LIMITS:
            self.quotas[principal] = limits
        self._answered()

    async def create_token(self, principal: str, group: str, *, lifetime_s: int) -> MadeToken:
        """Implement `UserBrokers.create_token`."""
        self._asked("create_token", principal)
        self._ids += 1
        token_id, now = f"{self._ids:012d}", self._now_s()
        self.held[token_id] = ObservedToken(token_id, principal, (group,), now, now + lifetime_s)
        self._answered()
        return MadeToken(token_id, f"lbt_{token_id}_{'s' * 46}")

    async def revoke_token(self, token_id: str, *, after_s: int) -> None:
        """Implement `UserBrokers.revoke_token`."""
        self._asked("revoke_token", token_id)
        for callback in self._watchers:
            callback(token_id)
        token = self.held.get(token_id)
        if token is not None and after_s:
            ends = self._now_s() + after_s
            earlier = min(ends, token.expires_s) if token.expires_s else ends
            self.held[token_id] = token._replace(expires_s=earlier)
        else:
            self.held.pop(token_id, None)
        self._answered()

    async def close(self) -> None:
        """Implement `UserBrokers.close`."""
        self.is_closed = True

"""Port of the user reconciler to the brokers of one cluster.

Every call ends within a bound of the adapter, and may raise `SilentError`; changes also
`RefusedError`. A change that ends with `SilentError` may have been done; the next look shows it.
"""

from typing import NamedTuple, Protocol

from liftbridge_operator.users.observation import Limits, Snapshot
from liftbridge_operator.users.rules import Rules


class MadeToken(NamedTuple):
    """A token that was created.

    Attributes:
        token_id: Public part.
        secret: The whole token; never logged.
    """

    token_id: str
    secret: str

    def __repr__(self) -> str:
        """Return a text without the secret."""
        return f"MadeToken({self.token_id!r})"


class UserBrokers(Protocol):
    """The brokers of one cluster."""

    async def look(self) -> Snapshot:
        """Return what brokers keep about callers, confirmed by a majority."""
        ...

    async def change_rules(
        self, principal: str, *, granted: Rules, revoked: Rules, is_dry_run: bool = False
    ) -> None:
        """Grant and revoke rules of a principal, all of them or none.

        Args:
            principal: The principal.
            granted: Operations to add.
            revoked: Operations to remove; missing ones are not an error.
            is_dry_run: Whether only to check the request.
        """
        ...

    async def set_quota(self, principal: str, limits: Limits) -> None:
        """Set all limits of a principal; without limits, remove its quota."""
        ...

    async def create_token(self, principal: str, group: str, *, lifetime_s: int) -> MadeToken:
        """Create a token whose principal is in a group."""
        ...

    async def revoke_token(self, token_id: str, *, after_s: int) -> None:
        """End a token, at once or after a time; one that is gone is not an error."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

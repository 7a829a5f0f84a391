"""Who calls: the port from the gRPC server to keys, rules and tokens."""

from collections.abc import Callable
from typing import Protocol

from liftbridge_broker.access.identities import Caller, Identity
from liftbridge_broker.errors import LiftbridgeError


class Authenticator(Protocol):
    """Knows keys, rules and tokens.

    Attributes:
        generation: Changes when the same proof may mean another identity.
    """

    generation: int

    def identify(
        self,
        caller: Caller,
        authorization: bytes,
        done: Callable[[Identity | LiftbridgeError], None],
    ) -> Identity | None:
        """Return the identity of a call; None if `done` gets it in a later turn.

        Raises:
            LiftbridgeError: The call is refused.
        """
        ...

    def fault_of(self, identity: Identity) -> str:
        """Return why an identity no longer holds; empty while it does."""
        ...

"""Commands about API tokens: create, expire, revoke.

The state holds what a broker needs to verify a token, never the token: its Argon2id hash (RFC 9106)
in the PHC form, with the parameters that `VERIFIER_PREFIX` fixes, so that no command can make
verifications more costly.
"""

from typing import Final

from liftbridge_broker.access.api_tokens import is_token_id
from liftbridge_broker.access.names import fault_of
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.controller.callers.commands import CreateToken, ExpireToken, RevokeToken
from liftbridge_broker.controller.records import (
    Decision,
    Done,
    Record,
    TokenChanged,
    TokensForgotten,
)
from liftbridge_broker.controller.state import ClusterState, TokenState
from liftbridge_broker.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
)
from liftbridge_broker.model.units import HOUR_NS

TOKEN_LEVEL: Final = 4
"""Lowest feature level at which there are API tokens: older versions cannot read the commands."""

TOKENS_MAX: Final = 10_000
"""Maximum number of API tokens of a cluster; each costs about 200 bytes of a snapshot."""

REMEMBERED_NS: Final = 7 * 24 * HOUR_NS
"""Time after its end for which a token stays listed; the next created one then replaces it."""

VERIFIER_PREFIX: Final = "$argon2id$v=19$m=19456,t=2,p=1$"
"""Algorithm and cost: 19 MiB and 2 passes, some 30 ms."""

VERIFIER_LENGTH: Final = len(VERIFIER_PREFIX) + 22 + 1 + 43
"""Length of a verifier: a salt of 16 bytes and a hash of 32, in base 64 without padding."""


def check_level(state: ClusterState) -> None:
    """Refuse commands about tokens that a broker of the cluster could not read.

    Called before they are proposed too, because an older broker would stop at them.

    Raises:
        FailedPreconditionError: The feature level in force is too low.
    """
    if state.feature_level < TOKEN_LEVEL:  # guard Token.level
        raise FailedPreconditionError(
            f"API tokens need feature level {TOKEN_LEVEL}, and {state.feature_level} is in force: "
            "upgrade all brokers, then raise it"
        )


def create_token(state: ClusterState, command: CreateToken) -> Decision:
    """Add a token, in the place of those that ended long ago."""
    check_level(state)
    if not is_token_id(command.token_id):
        raise InvalidRequestError(f"Invalid token id {command.token_id[:40]!r}")
    if command.token_id in state.tokens:  # guard Token.once
        raise AlreadyExistsError(f"token {command.token_id} already exists")
    fault = fault_of(Principal(command.principal, command.groups))
    if fault:
        raise InvalidRequestError(f"Invalid token, its principal {fault}")
    verifier = command.verifier
    if len(verifier) != VERIFIER_LENGTH or not verifier.startswith(VERIFIER_PREFIX):
        raise InvalidRequestError("Invalid token, its verifier has another form")
    if command.expires and command.expires <= command.created:
        raise InvalidRequestError("Invalid token, it ends before it begins")
    forgotten = tuple(
        token.token_id
        for token in state.tokens.values()
        if token.expires and token.expires + REMEMBERED_NS <= command.created
    )
    count = len(state.tokens) - len(forgotten)
    if count >= TOKENS_MAX:
        raise LimitError(f"{count} API tokens exist, limit {TOKENS_MAX}: revoke unused ones")
    records: list[Record] = [TokensForgotten(forgotten)] if forgotten else []
    token = TokenState(
        token_id=command.token_id,
        principal=command.principal,
        groups=command.groups,
        verifier=verifier,
        created=command.created,
        expires=command.expires,
        created_by=command.created_by,
    )
    return Decision((*records, TokenChanged(token)), Done())


def expire_token(state: ClusterState, command: ExpireToken) -> Decision:
    """Bring the end of a token forward; one that ends earlier already stays as it is."""
    token = _existing(state, command.token_id)
    if command.expires <= 0:
        raise InvalidRequestError(f"Invalid end {command.expires} of a token")
    if token.expires and command.expires > token.expires:  # guard Token.end
        return Decision((), Done())
    return Decision((TokenChanged(token._replace(expires=command.expires)),), Done())


def revoke_token(state: ClusterState, command: RevokeToken) -> Decision:
    """Remove a token; no broker accepts it from now on."""
    return Decision((TokensForgotten((_existing(state, command.token_id).token_id,)),), Done())


def _existing(state: ClusterState, token_id: str) -> TokenState:
    check_level(state)
    token = state.tokens.get(token_id)
    if token is None:
        raise NotFoundError(f"no such token: {token_id[:40]}")
    return token

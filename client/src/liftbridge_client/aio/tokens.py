"""API tokens of a cluster, through the ports for operators."""

import secrets
import string
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final

from liftbridge_client import admin_model as model
from liftbridge_client.aio.admin_calls import AdminCalls
from liftbridge_client.core.arguments import checked_calls
from liftbridge_client.core.deadlines import one_deadline
from liftbridge_client.errors import (
    AlreadyExistsError,
    LiftbridgeError,
    NotFoundError,
    UsageError,
)
from liftbridge_proto.ext.v1 import tokens_pb2

_ID_DIGITS: Final = string.digits + string.ascii_lowercase
_ID_LENGTH: Final = 12
"""Form of the id of a token."""

_deadline = one_deadline(attrgetter("_calls.call_seconds"))


@checked_calls
class Tokens:
    """API tokens; returned by `AdminClient.tokens`."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    @_deadline
    async def create(
        self, principal: str, *, groups: Sequence[str] = (), lifetime: timedelta | None = None
    ) -> model.NewToken:
        """Create an API token; its secret is in no other answer.

        Args:
            principal: Whom its bearer acts for.
            groups: Groups of the principal.
            lifetime: Time after which the token ends, in whole seconds; `None` for never.

        Raises:
            UsageError: The lifetime is shorter than a second.
        """
        request = tokens_pb2.CreateTokenRequest(
            principal=principal,
            groups=groups,
            lifetime_seconds=0 if lifetime is None else _whole_seconds("lifetime", lifetime, 1),
        )
        while True:
            request.id = "".join(secrets.choice(_ID_DIGITS) for _ in range(_ID_LENGTH))
            try:
                answer = await self._calls.call(
                    "CreateToken", request, tokens_pb2.CreateTokenResponse, service="Tokens"
                )
            except AlreadyExistsError as error:
                if not error.may_be_done:
                    raise
                # An attempt created it whose answer was lost: nobody will ever have its secret.
                try:
                    await self.revoke(request.id)
                except LiftbridgeError:
                    raise error from None
            else:
                return model.NewToken(answer.secret, model.token_of(answer.token))

    async def list(self) -> AsyncGenerator[model.ApiToken, None]:
        """List API tokens in order of their ids."""
        request = tokens_pb2.ListTokensRequest(page_size=1_000)
        while True:
            response = await self._calls.call(
                "ListTokens", request, tokens_pb2.ListTokensResponse, service="Tokens"
            )
            for token in response.tokens:
                yield model.token_of(token)
            request.page_token = response.next_page_token
            if not request.page_token:
                return

    async def revoke(self, token_id: str, *, after: timedelta = timedelta(0)) -> None:
        """End an API token, at once or after some time, while its users get another one.

        One that ends earlier already stays as it is.

        Raises:
            NotFoundError: There is no such token.
            UsageError: The time is negative.
        """
        request = tokens_pb2.RevokeTokenRequest(
            id=token_id, after_seconds=_whole_seconds("after", after, 0)
        )
        try:
            await self._calls.call(
                "RevokeToken", request, tokens_pb2.RevokeTokenResponse, service="Tokens"
            )
        except NotFoundError as error:
            if after or not error.may_be_done:  # otherwise an earlier attempt removed it
                raise


def _whole_seconds(name: str, time: timedelta, least: int) -> int:
    seconds = int(time.total_seconds())
    if seconds < least:
        raise UsageError(f"{name} {time}: must be at least {least} s")
    return seconds

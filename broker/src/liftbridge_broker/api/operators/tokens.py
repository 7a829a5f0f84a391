"""`liftbridge.ext.v1.Tokens`: API tokens of the cluster, for operators."""

from collections.abc import Iterator
from functools import partial

from liftbridge_broker.access.api_tokens import ApiToken, is_token_id
from liftbridge_broker.access.names import fault_of
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.operators.admin_context import AdminContext
from liftbridge_broker.api.streams import decode
from liftbridge_broker.controller.callers.commands import (
    CreateToken,
    ExpireToken,
    RevokeToken,
    TokenCommand,
)
from liftbridge_broker.controller.callers.tokens import check_level
from liftbridge_broker.controller.state import TokenState
from liftbridge_broker.errors import InvalidRequestError, LiftbridgeError
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.node.scheduling.steps import in_steps
from liftbridge_broker.ports.observe import Observer
from liftbridge_proto.ext.v1 import tokens_pb2

PAGE_SIZE_DEFAULT = 100
PAGE_SIZE_MAX = 1_000

LIFETIME_SECONDS_MAX = 100 * 366 * 86_400
"""Longest lifetime, a century: longer ones are mistakes of the unit."""


class TokenService:
    """Creates, lists and ends tokens; each change is an event of the audit."""

    def __init__(self, context: AdminContext, observer: Observer | None) -> None:
        self._context = context
        self._observer = observer

    def create(self, call: Call, raw: bytes) -> None:
        """Serve `CreateToken`: the answer has the secret, which is in no other place."""
        request = decode(call, tokens_pb2.CreateTokenRequest, raw)
        if request is None:
            return
        context = self._context
        check_level(context.state)
        fault = fault_of(Principal(request.principal, tuple(request.groups)))
        if fault:
            raise InvalidRequestError(f"principal {request.principal[:40]!r} {fault}")
        _check_seconds("lifetime_seconds", request.lifetime_seconds)
        if request.id and not is_token_id(request.id):
            raise InvalidRequestError(f"id {request.id[:40]!r}: must be 12 digits or letters a-z")

        def made(token: ApiToken, verifier: str) -> None:
            token = token._replace(token_id=request.id or token.token_id)
            created = context.clock.wall_ns()
            lifetime = request.lifetime_seconds * SECOND_NS
            command = CreateToken(
                token_id=token.token_id,
                principal=request.principal,
                groups=tuple(request.groups),
                verifier=verifier,
                created=created,
                expires=created + lifetime if lifetime else 0,
                created_by=call.principal.name,
            )
            try:
                context.propose(call, command, partial(self._created, call, token, command))
            except LiftbridgeError as error:  # no longer inside the turn that received the call
                call.refuse(error)

        context.facts.make_token(made)

    def _created(
        self, call: Call, token: ApiToken, command: CreateToken, _outcome: object
    ) -> tokens_pb2.CreateTokenResponse:
        self._report("api_token_created", call, command, principal=command.principal)
        response = tokens_pb2.CreateTokenResponse(secret=token.text)
        _describe(
            TokenState(
                token_id=command.token_id,
                principal=command.principal,
                groups=command.groups,
                verifier="",
                created=command.created,
                expires=command.expires,
                created_by=command.created_by,
            ),
            response.token,
        )
        return response

    def list_tokens(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `ListTokens`; the page token is the last id of the previous page."""
        request = decode(call, tokens_pb2.ListTokensRequest, raw)
        if request is None:
            return
        size = request.page_size or PAGE_SIZE_DEFAULT
        if not 0 < size <= PAGE_SIZE_MAX:
            raise InvalidRequestError(f"page_size {size}: must be 1 to {PAGE_SIZE_MAX}")
        # Ten thousand are sorted in 3 ms; a token that is revoked between two pages does no harm.
        names = sorted(name for name in self._context.state.tokens if name > request.page_token)
        response = tokens_pb2.ListTokensResponse()

        def add(name: str) -> None:
            if (token := self._context.state.tokens.get(name)) is not None:
                _describe(token, response.tokens.add())

        yield from in_steps(names[:size], add)
        if len(names) > size:
            response.next_page_token = names[size - 1]
        call.reply(response.SerializeToString())

    def revoke(self, call: Call, raw: bytes) -> None:
        """Serve `RevokeToken`."""
        request = decode(call, tokens_pb2.RevokeTokenRequest, raw)
        if request is None:
            return
        context = self._context
        check_level(context.state)
        _check_seconds("after_seconds", request.after_seconds)
        command: TokenCommand = RevokeToken(token_id=request.id)
        if request.after_seconds:
            end = context.clock.wall_ns() + request.after_seconds * SECOND_NS
            command = ExpireToken(token_id=request.id, expires=end)

        def done(_outcome: object) -> tokens_pb2.RevokeTokenResponse:
            after = request.after_seconds
            self._report("api_token_revoked", call, command, after_seconds=after)
            return tokens_pb2.RevokeTokenResponse()

        context.propose(call, command, done)

    def _report(self, kind: str, call: Call, command: TokenCommand, **fields: object) -> None:
        if self._observer is not None:
            by = {"by": call.principal.name, "peer": call.peer}
            self._observer.transition(kind, {"token": command.token_id, **fields, **by})


def _check_seconds(name: str, seconds: int) -> None:
    if seconds > LIFETIME_SECONDS_MAX:
        raise InvalidRequestError(f"{name} {seconds}: must be at most {LIFETIME_SECONDS_MAX}")


def _describe(token: TokenState, target: tokens_pb2.Token) -> None:
    target.id = token.token_id
    target.principal = token.principal
    target.groups.extend(token.groups)
    target.created_seconds = token.created // SECOND_NS
    target.expires_seconds = -(-token.expires // SECOND_NS)
    target.created_by = token.created_by

"""`UserBrokers` over gRPC, on the admin ports of brokers."""

from collections.abc import AsyncIterator, Iterable
from typing import Final

import grpc

from liftbridge_operator.model.user import Effect, Operation, ResourceKind
from liftbridge_operator.streams.grpc_calls import ADMIN, GrpcCalls
from liftbridge_operator.streams.port import BrokersError, ChangedError, SilentError
from liftbridge_operator.users.marks import is_mark
from liftbridge_operator.users.observation import NO_LIMITS, Limits, ObservedToken, Snapshot
from liftbridge_operator.users.port import MadeToken
from liftbridge_operator.users.rules import RuleKey, Rules
from liftbridge_proto.ext.v1 import access_pb2, admin_pb2, quotas_pb2, tokens_pb2

ACCESS: Final = "/liftbridge.ext.v1.Access/"
TOKENS: Final = "/liftbridge.ext.v1.Tokens/"
QUOTAS: Final = "/liftbridge.ext.v1.Quotas/"
PAGE_SIZE: Final = 1_000
PAGES_MAX: Final = 100

_KINDS: Final = {
    ResourceKind.STREAM: access_pb2.RESOURCE_KIND_STREAM,
    ResourceKind.SUBJECT: access_pb2.RESOURCE_KIND_SUBJECT,
    ResourceKind.GROUP: access_pb2.RESOURCE_KIND_GROUP,
    ResourceKind.CURSOR: access_pb2.RESOURCE_KIND_CURSOR,
    ResourceKind.CLUSTER: access_pb2.RESOURCE_KIND_CLUSTER,
}
_OPERATIONS: Final = {
    Operation.CREATE: access_pb2.OPERATION_CREATE,
    Operation.DELETE: access_pb2.OPERATION_DELETE,
    Operation.ALTER: access_pb2.OPERATION_ALTER,
    Operation.PAUSE: access_pb2.OPERATION_PAUSE,
    Operation.SET_READONLY: access_pb2.OPERATION_SET_READONLY,
    Operation.DESCRIBE: access_pb2.OPERATION_DESCRIBE,
    Operation.PUBLISH: access_pb2.OPERATION_PUBLISH,
    Operation.READ: access_pb2.OPERATION_READ,
    Operation.ATTACH: access_pb2.OPERATION_ATTACH,
    Operation.JOIN: access_pb2.OPERATION_JOIN,
    Operation.SET: access_pb2.OPERATION_SET,
    Operation.GRANT: access_pb2.OPERATION_GRANT,
    Operation.ALL: access_pb2.OPERATION_ALL,
}
_KIND_OF: Final = {value: kind for kind, value in _KINDS.items()}
_OPERATION_OF: Final = {value: operation for operation, value in _OPERATIONS.items()}


class GrpcUsers(GrpcCalls):
    """Implements `UserBrokers`; its creator closes it."""

    # A feature level that is too low, and a change that would leave nobody who may change rules.
    refusals = GrpcCalls.refusals | {grpc.StatusCode.FAILED_PRECONDITION}

    # -- reads --------------------------------------------------------------------------------

    async def look(self) -> Snapshot:
        """See `UserBrokers`."""
        last: SilentError | None = None
        for _ in self.endpoints:
            try:
                return await self._look()
            except SilentError as error:
                last = error
            except BrokersError as error:
                raise SilentError(str(error)) from error
        assert last is not None
        raise last

    async def _look(self) -> Snapshot:
        await self._ask(
            self._preferred,
            ADMIN,
            admin_pb2.ListBrokersRequest(is_confirmed=True),
            admin_pb2.ListBrokersResponse,
        )
        is_on, rules = False, dict[str, dict[RuleKey, frozenset[Operation]]]()
        async for page in self._rule_pages():
            is_on = page.is_on
            for one in page.rules:
                key = key_of(one)
                if key is not None and not one.is_group:
                    found = (_OPERATION_OF.get(operation) for operation in one.operations)
                    of_one = rules.setdefault(one.principal, {})
                    of_one[key] = frozenset(known for known in found if known is not None)
        quotas: dict[str, Limits] = {}
        after = ""
        for _ in range(PAGES_MAX):
            listed = await self._ask(
                self._preferred,
                QUOTAS,
                quotas_pb2.ListQuotasRequest(page_size=PAGE_SIZE, page_token=after),
                quotas_pb2.ListQuotasResponse,
            )
            for quota in listed.quotas:
                if quota.kind == quotas_pb2.QUOTA_KIND_PRINCIPAL:
                    limits = (getattr(quota.limits, name) for name in Limits._fields)
                    quotas[quota.name] = Limits(*limits)
            after = listed.next_page_token
            if not after:
                break
        return Snapshot(is_on, rules, quotas, tuple([one async for one in self._tokens()]))

    async def _rule_pages(self) -> AsyncIterator[access_pb2.ListRulesResponse]:
        after = ""
        for _ in range(PAGES_MAX):
            page = await self._ask(
                self._preferred,
                ACCESS,
                access_pb2.ListRulesRequest(page_size=PAGE_SIZE, page_token=after),
                access_pb2.ListRulesResponse,
            )
            yield page
            after = page.next_page_token
            if not after:
                break

    async def _tokens(self) -> AsyncIterator[ObservedToken]:
        after = ""
        for _ in range(PAGES_MAX):
            page = await self._ask(
                self._preferred,
                TOKENS,
                tokens_pb2.ListTokensRequest(page_size=PAGE_SIZE, page_token=after),
                tokens_pb2.ListTokensResponse,
            )
            for one in page.tokens:
                if any(map(is_mark, one.groups)):
                    yield ObservedToken(
                        one.id,
                        one.principal,
                        tuple(one.groups),
                        one.created_seconds,
                        one.expires_seconds,
                    )
            after = page.next_page_token
            if not after:
                break

    # -- changes ------------------------------------------------------------------------------

    async def change_rules(
        self, principal: str, *, granted: Rules, revoked: Rules, is_dry_run: bool = False
    ) -> None:
        """See `UserBrokers`."""
        request = access_pb2.ChangeRulesRequest(
            granted=messages_of(principal, granted),
            revoked=messages_of(principal, revoked),
            is_dry_run=is_dry_run,
        )
        await self._ask(self._preferred, ACCESS, request, access_pb2.ChangeRulesResponse)

    async def set_quota(self, principal: str, limits: Limits) -> None:
        """See `UserBrokers`."""
        quota = quotas_pb2.Quota(kind=quotas_pb2.QUOTA_KIND_PRINCIPAL, name=principal)
        if limits != NO_LIMITS:
            quota.limits.CopyFrom(quotas_pb2.Limits(**limits._asdict()))
        request = quotas_pb2.SetQuotaRequest(quota=quota)
        await self._ask(self._preferred, QUOTAS, request, quotas_pb2.SetQuotaResponse)

    async def create_token(self, principal: str, group: str, *, lifetime_s: int) -> MadeToken:
        """See `UserBrokers`."""
        request = tokens_pb2.CreateTokenRequest(
            principal=principal, groups=[group], lifetime_seconds=lifetime_s
        )
        made = await self._ask(self._preferred, TOKENS, request, tokens_pb2.CreateTokenResponse)
        return MadeToken(made.token.id, made.secret)

    async def revoke_token(self, token_id: str, *, after_s: int) -> None:
        """See `UserBrokers`."""
        request = tokens_pb2.RevokeTokenRequest(id=token_id, after_seconds=after_s)
        try:
            await self._ask(self._preferred, TOKENS, request, tokens_pb2.RevokeTokenResponse)
        except ChangedError:
            return  # it is gone


def key_of(rule: access_pb2.AccessRule) -> RuleKey | None:
    """Return what a rule of the brokers is about; None if this operator does not know its kind."""
    kind = _KIND_OF.get(rule.kind)
    if kind is None:
        return None
    end = "*" if rule.match == access_pb2.NAME_MATCH_PREFIX else ""
    effect = Effect.DENY if rule.is_denied else Effect.ALLOW
    return RuleKey(kind, rule.name + end, effect)


def messages_of(principal: str, rules: Rules) -> Iterable[access_pb2.AccessRule]:
    """Return rules in the form of brokers, as the command `liftbridge access grant` reads them."""
    for key, operations in rules.items():
        match, name = _match_of(key)
        yield access_pb2.AccessRule(
            principal=principal,
            kind=_KINDS[key.kind],
            match=match,
            name=name,
            is_denied=key.effect is Effect.DENY,
            operations=sorted(_OPERATIONS[one] for one in operations),
        )


def _match_of(key: RuleKey) -> tuple[access_pb2.NameMatch, str]:
    if key.kind is not ResourceKind.SUBJECT and key.name.endswith("*"):
        return access_pb2.NAME_MATCH_PREFIX, key.name[:-1]
    tokens = key.name.split(".")
    if "*" in tokens or tokens[-1] == ">":
        return access_pb2.NAME_MATCH_PATTERN, key.name
    return access_pb2.NAME_MATCH_EXACT, key.name

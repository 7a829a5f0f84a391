"""Access rules of a cluster, on the port for operators."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from liftbridge_client import access_model as model
from liftbridge_client.aio.admin.calls import AdminCalls
from liftbridge_client.core.arguments import checked_calls
from liftbridge_client.core.deadlines import one_deadline
from liftbridge_client.errors import UsageError
from liftbridge_proto.ext.v1 import access_pb2 as pb

_ACCESS: Final = "/liftbridge.ext.v1.Access/"
_PAGE_SIZE: Final = 1_000
_CHANGES_MAX: Final = 500

_deadline = one_deadline(attrgetter("_calls.call_seconds"))


@checked_calls
class AccessControl:
    """Who may do what; from `AdminClient.access`."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    @_deadline
    async def rules(self) -> model.AccessRules:
        """List all rules, in the order in which they were first granted."""
        request, rules = pb.ListRulesRequest(page_size=_PAGE_SIZE), list[model.AccessRule]()
        while True:
            response = await self._calls.call(_ACCESS + "ListRules", request, pb.ListRulesResponse)
            rules += model.rules_of(response.rules)
            request.page_token = response.next_page_token
            if not request.page_token:
                return model.AccessRules(rules, response.is_on, response.is_enforced)

    async def change(
        self,
        granted: Sequence[model.AccessRule] = (),
        revoked: Sequence[model.AccessRule] = (),
        *,
        is_dry_run: bool = False,
    ) -> Sequence[model.AccessRule]:
        """Add operations to rules and take operations from rules: all of it, or nothing.

        Args:
            granted: Rules with the operations to add.
            revoked: Rules with the operations to take away; those that do not exist are ignored.
            is_dry_run: Whether to report the changes without making them.

        Returns:
            The rules that changed, with all their operations.

        Raises:
            UsageError: There are more than 500 rules, or one has an unknown word.
            FailedPreconditionError: Nobody could change the rules any more, or some broker is too
                old.
        """
        if len(granted) + len(revoked) > _CHANGES_MAX:
            raise UsageError(
                f"{len(granted) + len(revoked)} rules in one change, at most {_CHANGES_MAX}"
            )
        request = pb.ChangeRulesRequest(
            granted=map(model.message_of, granted),
            revoked=map(model.message_of, revoked),
            is_dry_run=is_dry_run,
        )
        response = await self._calls.call(_ACCESS + "ChangeRules", request, pb.ChangeRulesResponse)
        return model.rules_of(response.changed)

    async def disable(self) -> None:
        """Turn access control off in the cluster.

        Brokers with `access.enabled` still enforce it, and turn it on again when they start.
        """
        await self._calls.call(
            _ACCESS + "DisableAccess", pb.DisableAccessRequest(), pb.DisableAccessResponse
        )

    async def check(
        self,
        principal: str,
        operation: model.Operation,
        resource: model.Resource,
        *,
        groups: Sequence[str] = (),
    ) -> model.Access:
        """Ask whether a principal may do something; an empty name is an anonymous caller."""
        request = pb.CheckAccessRequest(
            principal=principal,
            groups=groups,
            operation=model.operation_name(operation),
            kind=model.kind_name(resource.kind),
            name=resource.name,
        )
        response = await self._calls.call(_ACCESS + "CheckAccess", request, pb.CheckAccessResponse)
        return model.Access(response.is_allowed, model.rules_of(response.rules))

    async def convert_policy(self, model_text: str, policy: str) -> Sequence[model.AccessRule]:
        """Convert a Casbin model and policy of the original to rules; changes nothing.

        Raises:
            InvalidRequestError: They use what is not known; names the place.
        """
        request = pb.ConvertPolicyRequest(model=model_text.encode(), policy=policy.encode())
        response = await self._calls.call(
            _ACCESS + "ConvertPolicy", request, pb.ConvertPolicyResponse
        )
        return model.rules_of(response.rules)

    async def nats_permissions(
        self, principal: str, *, groups: Sequence[str] = ()
    ) -> model.NatsPermissions:
        """Return the NATS permissions that correspond to the rules of a principal."""
        request = pb.NatsPermissionsRequest(principal=principal, groups=groups)
        response = await self._calls.call(
            _ACCESS + "NatsPermissions", request, pb.NatsPermissionsResponse
        )
        return model.NatsPermissions(
            list(response.publish_allow),
            list(response.publish_deny),
            list(response.subscribe_allow),
            list(response.subscribe_deny),
        )

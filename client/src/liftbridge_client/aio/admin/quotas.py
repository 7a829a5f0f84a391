"""Quotas of a cluster, on the port for operators."""

from collections.abc import AsyncGenerator
from typing import Final

from liftbridge_client.aio.admin.calls import AdminCalls
from liftbridge_client.core.arguments import checked_calls
from liftbridge_client.quota_model import Limits, Quota, QuotaKind, kind_value, limits_of, quota_of
from liftbridge_proto.ext.v1 import quotas_pb2 as pb

_QUOTAS: Final = "/liftbridge.ext.v1.Quotas/"
_PAGE_SIZE: Final = 1_000
_NONE: Final = Limits()


@checked_calls
class Quotas:
    """How much principals and streams may use; from `AdminClient.quotas`."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def list(self) -> AsyncGenerator[Quota, None]:
        """List quotas, those of principals first, by name."""
        request = pb.ListQuotasRequest(page_size=_PAGE_SIZE)
        while True:
            response = await self._calls.call(
                _QUOTAS + "ListQuotas", request, pb.ListQuotasResponse
            )
            for quota in response.quotas:
                yield quota_of(quota)
            request.page_token = response.next_page_token
            if not request.page_token:
                return

    async def set(self, kind: QuotaKind, name: str, limits: Limits) -> None:
        """Set all limits of a principal or a stream; without any, its quota is removed.

        Args:
            kind: `principal` or `stream`.
            name: Name of the principal or stream; `*` for each principal without a quota of its
                own, where all anonymous callers count as one.
            limits: Its limits.

        Raises:
            InvalidRequestError: A limit is too large, or is none of the kind.
            FailedPreconditionError: Some broker is too old.
        """
        quota = pb.Quota(kind=kind_value(kind), name=name, limits=limits_of(limits))
        request = pb.SetQuotaRequest(quota=quota)
        await self._calls.call(_QUOTAS + "SetQuota", request, pb.SetQuotaResponse)

    async def remove(self, kind: QuotaKind, name: str) -> None:
        """Remove the quota of a principal or a stream, if it has one."""
        await self.set(kind, name, _NONE)

"""`liftbridge.ext.v1.Quotas`: limits of principals and streams, for operators."""

from collections.abc import Iterator
from typing import Final

from liftbridge_broker.access.quotas import Quota, QuotaKey, QuotaKind
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.operators.admin_context import AdminContext
from liftbridge_broker.api.streams import decode
from liftbridge_broker.controller.callers.commands import SetQuota
from liftbridge_broker.controller.callers.quotas import check_level
from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.node.scheduling.steps import in_steps
from liftbridge_broker.ports.observe import Observer
from liftbridge_proto.ext.v1 import quotas_pb2

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1_000

_KINDS: Final = {
    quotas_pb2.QUOTA_KIND_PRINCIPAL: QuotaKind.PRINCIPAL,
    quotas_pb2.QUOTA_KIND_STREAM: QuotaKind.STREAM,
}
_KIND_VALUES: Final = {kind: value for value, kind in _KINDS.items()}


class QuotaService:
    """Sets and lists quotas; each change is an event of the audit."""

    def __init__(self, context: AdminContext, observer: Observer | None) -> None:
        self._context = context
        self._observer = observer

    def set_quota(self, call: Call, raw: bytes) -> None:
        """Serve `SetQuota`."""
        request = decode(call, quotas_pb2.SetQuotaRequest, raw)
        if request is None:
            return
        check_level(self._context.state)
        wanted = request.quota
        kind = _KINDS.get(wanted.kind)
        if kind is None:
            raise InvalidRequestError(
                f"kind {wanted.kind} of a quota: must be QUOTA_KIND_PRINCIPAL or QUOTA_KIND_STREAM"
            )
        limits = {limit: getattr(wanted.limits, limit) for limit in Quota._fields}
        command = SetQuota(kind=kind, name=wanted.name, **limits)

        def done(_outcome: object) -> quotas_pb2.SetQuotaResponse:
            self._report(call, command, {name: limit for name, limit in limits.items() if limit})
            return quotas_pb2.SetQuotaResponse()

        self._context.propose(call, command, done)

    def list_quotas(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `ListQuotas`; the page token is the last quota of the previous page."""
        request = decode(call, quotas_pb2.ListQuotasRequest, raw)
        if request is None:
            return
        size = request.page_size or PAGE_SIZE_DEFAULT
        if not 0 < size <= PAGE_SIZE_MAX:
            raise InvalidRequestError(f"page_size {size}: must be 1 to {PAGE_SIZE_MAX}")
        quotas = self._context.state.quotas
        keys = sorted(key for key in quotas if str(key) > request.page_token)
        response = quotas_pb2.ListQuotasResponse()

        def add(key: QuotaKey) -> None:
            if (quota := quotas.get(key)) is not None:
                described = response.quotas.add(kind=_KIND_VALUES[key.kind], name=key.name)
                described.limits.CopyFrom(quotas_pb2.Limits(**quota._asdict()))

        yield from in_steps(keys[:size], add)
        if len(keys) > size:
            response.next_page_token = str(keys[size - 1])
        call.reply(response.SerializeToString())

    def _report(self, call: Call, command: SetQuota, limits: dict[str, int]) -> None:
        if self._observer is not None:
            quota = {"quota": command.kind, "name": command.name, "limits": limits}
            by = {"by": call.principal.name, "peer": call.peer}
            self._observer.transition("quota_set", {**quota, **by})

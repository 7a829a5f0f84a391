"""`WhoAmI`: how this broker sees a caller."""

import ssl
from typing import Final, cast

from liftbridge_broker.access.identities import Proof
from liftbridge_broker.access.quotas import NO_QUOTA, Direction
from liftbridge_broker.api.context import Context
from liftbridge_broker.api.grpc.call import Call, PeerCertificate, attributes_of
from liftbridge_broker.api.streams import decode
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_proto.ext.v1 import data_pb2, quotas_pb2

_PROOFS: Final = {
    Proof.ANONYMOUS: data_pb2.PROOF_ANONYMOUS,
    Proof.CERTIFICATE: data_pb2.PROOF_CERTIFICATE,
    Proof.JWT: data_pb2.PROOF_JWT,
    Proof.TOKEN: data_pb2.PROOF_TOKEN,
}


class CallerService:
    """Reports the address, the verified certificate and the identity of a caller."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def who_am_i(self, call: Call, raw: bytes) -> None:
        """Serve `WhoAmI`."""
        if decode(call, data_pb2.WhoAmIRequest, raw) is None:
            return
        response = data_pb2.WhoAmIResponse(
            broker=self._context.node.context.broker, address=call.peer, listener=call.listener
        )
        identity = call.identity
        response.principal = identity.principal.name
        response.groups.extend(identity.principal.groups)
        response.proof = _PROOFS[identity.proof]
        response.expires_seconds = identity.expires
        self._describe_quota(identity.principal.name, response)
        certificate = call.peer_certificate
        if certificate is not None:
            _describe(certificate, response.certificate)
        call.reply(response.SerializeToString())

    def _describe_quota(self, principal: str, response: data_pb2.WhoAmIResponse) -> None:
        quotas = self._context.quotas
        quota = quotas.quota_of(principal)
        if quota == NO_QUOTA:
            return
        use = response.quota
        use.limits.CopyFrom(quotas_pb2.Limits(**quota._asdict()))
        use.publish_delay_ms = quotas.debt_of(principal, Direction.PUBLISH) // MILLISECOND_NS
        use.read_delay_ms = quotas.debt_of(principal, Direction.READ) // MILLISECOND_NS
        use.subscriptions = quotas.subscriptions_of(principal)


def _describe(certificate: PeerCertificate, target: data_pb2.WhoAmIResponse.Certificate) -> None:
    for kind, value in attributes_of(certificate):
        if kind == "commonName":
            target.common_name = value
    names = cast("tuple[tuple[str, object], ...]", certificate.get("subjectAltName", ()))
    # The name of a directory has parts of its own, and no usual form in one line.
    texts = (f"{kind}:{name}" for kind, name in names if isinstance(name, str))
    target.alternative_names.extend(texts)
    end = cast("str", certificate["notAfter"])
    target.not_after_seconds = ssl.cert_time_to_seconds(end)

"""What a cluster offers to a user: an address, authorities, and certificates of its own CA."""

from typing import Final

from pydantic import ValidationError

from liftbridge_operator.cluster.certificates.port import Known
from liftbridge_operator.kube.port import Object
from liftbridge_operator.model import names
from liftbridge_operator.model.cluster import ClusterSpec
from liftbridge_operator.model.network import ClientAuth, Listener, Tls, TlsMode
from liftbridge_operator.model.user import Authentication, UserSpec
from liftbridge_operator.users.observation import Offer

DEFAULT: Final = "DEFAULT"
"""Rule for certificates by which the common name is the principal."""

SUBJECT_CLAIM: Final = "sub"
"""Claim of tokens of Kubernetes that names the service account."""


def cluster_spec_of(body: Object) -> ClusterSpec | None:
    """Parse the specification of a LiftbridgeCluster; None if it cannot be read."""
    try:
        return ClusterSpec.model_validate(body.get("spec", {}))
    except ValidationError:
        return None


def issues_certificates(tls: Tls) -> bool:
    """Return whether a cluster trusts certificates of the CA that the operator keeps for it."""
    is_own = tls.mode is TlsMode.GENERATED and tls.client_ca is None
    return is_own and tls.client_auth is not ClientAuth.NONE


def offer_of(
    user: UserSpec, cluster: ClusterSpec | None, place: str, ca: bytes, authority: Known | None
) -> Offer:
    """Return what a cluster offers to a user.

    Args:
        user: The specification of the user.
        cluster: That of the cluster; None if it cannot be read.
        place: `namespace/name` of the cluster.
        ca: Authorities that its clients trust, PEM.
        authority: Authority that signs certificates of its clients; None while there is none.
    """
    namespace, name = place.split("/")
    if cluster is None:
        return Offer(wait="its specification cannot be read")
    listener, fault = _listener_of(user, cluster, place)
    if listener is None:
        return Offer(fault=fault)
    fault = _fault_of_proof(user.authentication, cluster, place)
    if fault:
        return Offer(fault=fault)
    if user.authentication.certificate is not None and authority is None:
        return Offer(wait="its CA for clients does not exist yet")
    if not ca and cluster.tls.mode is TlsMode.GENERATED:
        return Offer(wait="its CA does not exist yet")
    address = f"{names.listener(name, listener.name)}.{namespace}.svc:{listener.port}"
    return Offer(address=address, ca=ca, authority=authority)


def _fault_of_proof(proof: Authentication, cluster: ClusterSpec, place: str) -> str:
    """Return why a cluster does not accept a kind of proof, with the remedy; empty if it does."""
    access = cluster.access
    if proof.certificate is not None:
        if not issues_certificates(cluster.tls):
            return (
                f"authentication.certificate: cluster {place} has no CA for clients; set its "
                "`tls.mode: Generated` and `tls.clientAuth` without `tls.clientCA`, or use a token"
            )
        if (
            access is not None
            and access.certificate_rules
            and DEFAULT not in access.certificate_rules
        ):
            return (
                "authentication.certificate: the common name is not the principal in cluster "
                f"{place}; add `{DEFAULT}` to its `access.certificateRules`"
            )
    elif proof.token is not None and (access is None or not access.tokens):
        return (
            f"authentication.token: cluster {place} accepts no tokens; set its "
            "`access.tokens: true`, or use a certificate"
        )
    elif proof.service_account is not None:
        if access is None or access.jwt is None:
            return (
                f"authentication.serviceAccount: cluster {place} accepts no tokens of Kubernetes; "
                "set its `access.jwt`"
            )
        if access.jwt.principal_claim not in (None, SUBJECT_CLAIM):
            return (
                f"authentication.serviceAccount: in cluster {place} the principal is another claim "
                f"than `{SUBJECT_CLAIM}`; remove its `access.jwt.principalClaim`"
            )
    return ""


def _listener_of(user: UserSpec, cluster: ClusterSpec, place: str) -> tuple[Listener | None, str]:
    """Return the listener of a user, or why there is none."""
    found = [one for one in cluster.listeners if user.listener in (None, one.name)]
    if not found:
        known = ", ".join(one.name for one in cluster.listeners) or "none"
        return None, f"listener {user.listener}: cluster {place} has no such one; it has: {known}"
    secure = [one for one in found if one.tls]
    if secure:
        return secure[0], ""
    what = f"listener {user.listener}" if user.listener else f"cluster {place}"
    return None, f"{what} has no TLS, which every credential needs; set `tls: true` of the listener"

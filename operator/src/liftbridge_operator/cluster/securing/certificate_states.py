"""Reports on certificates: their state, Events of rotation steps, and problems."""

from collections.abc import Sequence
from dataclasses import replace

from liftbridge_operator.cluster.acting.context import Trouble
from liftbridge_operator.cluster.certificates.port import Known
from liftbridge_operator.cluster.certificates.rotation import Phase, Terms
from liftbridge_operator.cluster.observing.times import moment_text
from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.cluster.reporting.account import Certificates
from liftbridge_operator.cluster.reporting.events import Happened
from liftbridge_operator.cluster.securing.family import FORMER_CERT, Brought, Files
from liftbridge_operator.model.catalogue.names import EventReason


def trouble_of(refusal: Refusal) -> Trouble:
    """Return the problem to report when the API server refuses a call about a Secret."""
    if refusal.reason == "MissingRights":
        values = {"verb": "keep", "object": f"Secrets of the cluster: {refusal.text}"}
        return Trouble(refusal.reason, values)
    return Trouble(refusal.reason, {"object": "a Secret of the cluster", "detail": refusal.text})


def steps_of(before: Files, after: Brought) -> list[Happened]:
    """Return Events of the completed steps."""
    events = []
    if after.files.issued_s != before.issued_s:
        time = moment_text(after.leaf.not_after_s * 1_000)
        events.append(Happened(EventReason.CERTIFICATE_ISSUED, {"time": time}))
    if FORMER_CERT in before.authority and FORMER_CERT not in after.files.authority:
        values = {"authority": after.authority.fingerprint}
        events.append(Happened(EventReason.CERTIFICATE_ROTATED, values))
    return events


def state_of_family(brought: Brought) -> Certificates:
    """Return the state of a family that the operator maintains."""
    phase = brought.verdict.phase
    return Certificates(
        reason="Valid",
        detail="",
        phase=phase.value,
        authority=brought.authority.fingerprint,
        not_after_ms=brought.leaf.not_after_s * 1_000,
    )


def state_of_known(known: Known, secret: str) -> Certificates:
    """Return the state of a certificate that cert-manager or a user maintains."""
    return Certificates(
        reason="Valid",
        detail="",
        phase=Phase.STEADY.value,
        not_after_ms=known.not_after_s * 1_000,
        secret=secret,
    )


def worst_of(found: Sequence[Certificates], terms: Terms, now_s: int) -> Certificates:
    """Return the worst state, with the end of the certificate that expires first."""
    broken = next((one for one in found if one.reason != "Valid"), None)
    if broken is not None:
        return broken
    first = min(found, key=lambda one: one.not_after_ms)
    busy = next((one.phase for one in found if one.phase != Phase.STEADY), Phase.STEADY.value)
    reason, detail = "Valid", ""
    left_s = first.not_after_ms // 1_000 - now_s
    if left_s <= 0:
        reason = "Expired"
    elif left_s <= terms.renew_before_s // 2:
        # Half of the time that a renewal may take is over.
        reason, detail = "Expiring", first.secret or "it could not be written"
    return replace(first, reason=reason, detail=detail, phase=busy, authority=found[0].authority)

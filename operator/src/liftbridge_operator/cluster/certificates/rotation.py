"""Renew certificates and exchange authorities without a failed call.

A leaf is issued again when it nears its end, or lacks a name. An authority is exchanged in steps,
each started only when all brokers report the one before: the new authority enters every bundle;
all brokers report that bundle and the overlap has passed; the new authority issues the leaf; all
brokers report that leaf; the old authority leaves the bundles. At every moment each party trusts
any certificate that another may present. One step a pass; everything is read again before the
next, so the operator may stop between any two.
"""

from dataclasses import dataclass
from enum import StrEnum

from liftbridge_operator.cluster.certificates.port import Known


class Phase(StrEnum):
    """Phase of a rotation, as reported in the status."""

    STEADY = "Steady"
    MAKING_AUTHORITY = "MakingAuthority"
    INTRODUCING_AUTHORITY = "IntroducingAuthority"
    PUBLISHING_BUNDLE = "PublishingBundle"
    WAITING_FOR_BUNDLE = "WaitingForBundle"
    SWITCHING_AUTHORITY = "SwitchingAuthority"
    ISSUING = "Issuing"
    WAITING_FOR_CERTIFICATE = "WaitingForCertificate"
    REMOVING_AUTHORITY = "RemovingAuthority"


@dataclass(frozen=True, slots=True)
class Terms:
    """Durations of certificates and rotations, in seconds.

    Attributes:
        duration_s: Lifetime of a leaf.
        renew_before_s: Time before its end at which a leaf is issued again.
        overlap_s: Time for which both authorities are trusted before the new one signs.
        authority_duration_s: Lifetime of an authority.
    """

    duration_s: int
    renew_before_s: int
    overlap_s: int
    authority_duration_s: int

    @property
    def authority_renew_before_s(self) -> int:
        """Time before its end at which an authority is exchanged: it outlives all its leaves."""
        return self.duration_s + self.renew_before_s + self.overlap_s


@dataclass(frozen=True, slots=True)
class State:
    """State of the authorities, the bundle and the leaf.

    Attributes:
        authority: Authority that signs; None before the first.
        coming: Authority that will sign next; None without an exchange.
        former: Authority that signed before; None once it is removed.
        leaf: Certificate that is presented.
        bundle: Fingerprints of the published authorities, sorted.
        published_s: When that bundle was published.
        names: Names that the leaf has to be valid for.
        has_bundle_everywhere: Whether all brokers report that bundle.
        has_leaf_everywhere: Whether all brokers report that leaf.
        is_asked: Whether a user requested another authority.
    """

    authority: Known | None
    coming: Known | None
    former: Known | None
    leaf: Known | None
    bundle: tuple[str, ...]
    published_s: int
    names: tuple[str, ...]
    has_bundle_everywhere: bool
    has_leaf_everywhere: bool
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class MakeAuthority:
    """Make the first authority, or with `is_next` the next one."""

    not_before_s: int
    not_after_s: int
    is_next: bool


@dataclass(frozen=True, slots=True)
class PublishBundle:
    """Put exactly these authorities into every bundle."""

    fingerprints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwitchAuthority:
    """Make the coming authority the one that signs, and the present one the former."""


@dataclass(frozen=True, slots=True)
class IssueLeaf:
    """Issue the leaf by the authority that signs."""

    names: tuple[str, ...]
    not_before_s: int
    not_after_s: int


@dataclass(frozen=True, slots=True)
class RemoveAuthority:
    """Forget the former authority; the bundle without it is published next."""


Step = MakeAuthority | PublishBundle | SwitchAuthority | IssueLeaf | RemoveAuthority


@dataclass(frozen=True, slots=True)
class Verdict:
    """Next step of a rotation, and its phase.

    Attributes:
        phase: Phase of the rotation.
        step: Step to do now; None to wait.
        look_s: Latest time of the next check, if no broker reports before.
    """

    phase: Phase
    step: Step | None
    look_s: int


BACKDATED_S = 300
"""Time by which validity starts before issuance, since clocks of clients may be slow."""


def next_step(state: State, terms: Terms, now_s: int) -> Verdict:
    """Decide the next step of the rotation."""
    authority = state.authority
    if authority is None:
        made = _authority(terms, now_s, is_next=False)
        return Verdict(Phase.MAKING_AUTHORITY, made, now_s)
    wanted = tuple(
        sorted(
            one.fingerprint for one in (authority, state.coming, state.former) if one is not None
        )
    )
    if state.bundle != wanted:
        return Verdict(Phase.PUBLISHING_BUNDLE, PublishBundle(wanted), now_s)
    leaf = state.leaf
    if leaf is None or _is_due(leaf, state.names, authority, terms, now_s):
        return Verdict(Phase.ISSUING, _leaf(state, authority, terms, now_s), now_s)
    return _exchange(state, authority, leaf, terms, now_s)


def _exchange(state: State, authority: Known, leaf: Known, terms: Terms, now_s: int) -> Verdict:
    """Continue or start an exchange of the authority; bundle and leaf are as desired."""
    if state.former is not None:
        return _leave(state, now_s)
    if state.coming is not None:
        return _come(state, authority, terms, now_s)
    if state.is_asked or _is_ending(authority, terms, now_s):
        made = _authority(terms, now_s, is_next=True)
        return Verdict(Phase.INTRODUCING_AUTHORITY, made, now_s)
    ends = (
        leaf.not_after_s - terms.renew_before_s,
        authority.not_after_s - terms.authority_renew_before_s,
    )
    return Verdict(Phase.STEADY, None, min(ends))


def _is_ending(authority: Known, terms: Terms, now_s: int) -> bool:
    return authority.not_after_s - now_s < terms.authority_renew_before_s


def _is_due(
    leaf: Known, names: tuple[str, ...], authority: Known, terms: Terms, now_s: int
) -> bool:
    """Return whether a leaf has another issuer, lacks a name, is not valid yet, or ends soon.

    A leaf that ends with its authority cannot be extended until another authority signs.
    """
    if leaf.issuer_key_id != authority.key_id or not set(names) <= set(leaf.names):
        return True
    if is_early(leaf, authority, now_s):
        return True
    is_near = leaf.not_after_s - now_s <= terms.renew_before_s
    return is_near and leaf.not_after_s < min(now_s + terms.duration_s, authority.not_after_s)


def is_early(leaf: Known, authority: Known, now_s: int) -> bool:
    """Return whether a leaf could be valid sooner: the clock was set back after its issue."""
    return leaf.not_before_s > max(now_s, authority.not_before_s)


def _come(state: State, authority: Known, terms: Terms, now_s: int) -> Verdict:
    """Switch to the coming authority once all brokers have trusted it for long enough."""
    due_s = state.published_s + terms.overlap_s
    if authority.not_after_s <= now_s:
        # The present authority has expired and is not trusted; waiting would only prolong that.
        return Verdict(Phase.SWITCHING_AUTHORITY, SwitchAuthority(), now_s)
    if not state.has_bundle_everywhere or now_s < due_s:
        return Verdict(Phase.WAITING_FOR_BUNDLE, None, max(due_s, now_s))
    return Verdict(Phase.SWITCHING_AUTHORITY, SwitchAuthority(), now_s)


def _leave(state: State, now_s: int) -> Verdict:
    """Remove the former authority once all brokers present the leaf of the new one."""
    if not state.has_leaf_everywhere:
        return Verdict(Phase.WAITING_FOR_CERTIFICATE, None, now_s)
    return Verdict(Phase.REMOVING_AUTHORITY, RemoveAuthority(), now_s)


def _authority(terms: Terms, now_s: int, *, is_next: bool) -> MakeAuthority:
    ends_s = now_s + terms.authority_duration_s
    return MakeAuthority(now_s - BACKDATED_S, ends_s, is_next)


def _leaf(state: State, authority: Known, terms: Terms, now_s: int) -> IssueLeaf:
    ends_s = min(now_s + terms.duration_s, authority.not_after_s)
    begins_s = max(now_s - BACKDATED_S, authority.not_before_s)
    return IssueLeaf(tuple(sorted(set(state.names))), begins_s, ends_s)

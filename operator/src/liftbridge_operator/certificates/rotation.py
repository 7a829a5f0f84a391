"""How certificates are renewed and authorities exchanged without a failed call.

A leaf is issued again when it nears its end, or lacks a name. An authority is exchanged in steps,
each begun only when everybody reports the one before: the new authority goes into every bundle;
everybody reports that bundle and the overlap has passed; the leaf is issued by the new authority;
everybody reports that leaf; the old authority leaves the bundles. At every moment everybody trusts
whatever anybody may show. One step a pass; everything is read again before the next, so the
operator may die between any two.
"""

from dataclasses import dataclass
from enum import StrEnum

from liftbridge_operator.certificates.port import Known


class Phase(StrEnum):
    """Where a rotation is, as the status tells it."""

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
    """How long things last, in seconds.

    Attributes:
        duration_s: A leaf.
        renew_before_s: Before its end a leaf is issued again.
        overlap_s: Old and new authority are both trusted before the new one signs.
        authority_duration_s: An authority.
    """

    duration_s: int
    renew_before_s: int
    overlap_s: int
    authority_duration_s: int

    @property
    def authority_renew_before_s(self) -> int:
        """Before its end an authority is exchanged: it outlives every leaf that it may sign."""
        return self.duration_s + self.renew_before_s + self.overlap_s


@dataclass(frozen=True, slots=True)
class State:
    """What is there.

    Attributes:
        authority: Who signs; None before the first.
        coming: Who will sign next; None while none is on its way in.
        former: Who signed before; None once it has left.
        leaf: What is shown.
        bundle: Fingerprints of the authorities that are published, sorted.
        published_s: When that bundle was published.
        names: What the leaf has to be valid for.
        has_bundle_everywhere: Whether everybody reports that bundle.
        has_leaf_everywhere: Whether everybody reports that leaf.
        is_asked: Whether a person asked for another authority.
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
    """Make the first authority, or with `is_next` the one that comes."""

    not_before_s: int
    not_after_s: int
    is_next: bool


@dataclass(frozen=True, slots=True)
class PublishBundle:
    """Put exactly these authorities into every bundle."""

    fingerprints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwitchAuthority:
    """The coming authority signs from now on, and the present one is the former."""


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
    """What to do, and what to say.

    Attributes:
        phase: Where the rotation is.
        step: What to do now; None to wait.
        look_s: When to look again at the latest, when nothing is reported before.
    """

    phase: Phase
    step: Step | None
    look_s: int


BACKDATED_S = 300
"""Clocks of clients may be late; certificates are valid from a little before they are made."""


def next_step(state: State, terms: Terms, now_s: int) -> Verdict:
    """The one thing to do now."""
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
    """Bundle and leaf are as they should be: carry an exchange on, or begin one."""
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
    """Whether a leaf is of another authority, without a name, not valid yet, or near its end.

    A leaf whose end is that of its authority is as long as can be, until another authority signs.
    """
    if leaf.issuer_key_id != authority.key_id or not set(names) <= set(leaf.names):
        return True
    if is_early(leaf, authority, now_s):
        return True
    is_near = leaf.not_after_s - now_s <= terms.renew_before_s
    return is_near and leaf.not_after_s < min(now_s + terms.duration_s, authority.not_after_s)


def is_early(leaf: Known, authority: Known, now_s: int) -> bool:
    """Whether a leaf could be valid sooner: the clock was set back since it was issued."""
    return leaf.not_before_s > max(now_s, authority.not_before_s)


def _come(state: State, authority: Known, terms: Terms, now_s: int) -> Verdict:
    """The coming authority is in the bundle: it signs once everybody has had it for long enough."""
    due_s = state.published_s + terms.overlap_s
    if authority.not_after_s <= now_s:
        # Nobody trusts what the present one signed any more; to wait would only prolong that.
        return Verdict(Phase.SWITCHING_AUTHORITY, SwitchAuthority(), now_s)
    if not state.has_bundle_everywhere or now_s < due_s:
        return Verdict(Phase.WAITING_FOR_BUNDLE, None, max(due_s, now_s))
    return Verdict(Phase.SWITCHING_AUTHORITY, SwitchAuthority(), now_s)


def _leave(state: State, now_s: int) -> Verdict:
    """The leaf is of the new authority: the former one leaves once everybody shows that leaf."""
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

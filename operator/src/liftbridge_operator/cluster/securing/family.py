"""A family: an authority with the leaf it signs, as files of Secrets, rotated in memory.

The caller writes the files of the authority before those of the leaf: a key that signed a
certificate must not be lost.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from liftbridge_operator.cluster.certificates.port import Issuer, Known, Pair
from liftbridge_operator.cluster.certificates.rotation import (
    IssueLeaf,
    MakeAuthority,
    PublishBundle,
    RemoveAuthority,
    State,
    Step,
    SwitchAuthority,
    Terms,
    Verdict,
    next_step,
)
from liftbridge_operator.cluster.x509 import bundle
from liftbridge_operator.model import names

NEXT_CERT: Final = "next.crt"
NEXT_KEY: Final = "next.key"
FORMER_CERT: Final = "former.crt"
SPREAD_S: Final = 120
"""Time after which every kubelet has updated a changed Secret in its pods, and brokers have read
it: kubelets sync every minute, and cache Secrets for at most as long."""

STEPS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Files:
    """Contents of the Secrets of a family.

    Attributes:
        authority: Files of the authority's Secret, including private keys.
        leaf: `tls.crt`, `tls.key` and the bundle as `ca.crt`.
        published_s: When the bundle was last changed; 0 for never.
        issued_s: When the leaf was last changed; 0 for never.
        has_bundle: Whether every broker reports exactly this bundle as loaded.
        has_leaf: Whether every broker reports this leaf as loaded.
    """

    authority: dict[str, bytes] = field(default_factory=dict, repr=False)
    leaf: dict[str, bytes] = field(default_factory=dict, repr=False)
    published_s: int = 0
    issued_s: int = 0
    has_bundle: bool = False
    has_leaf: bool = False


@dataclass(frozen=True, slots=True)
class Brought:
    """A family after all steps that are possible now.

    Attributes:
        files: Files to write.
        verdict: Verdict that ends the steps.
        authority: Authority that signs.
        leaf: Certificate that is presented.
    """

    files: Files
    verdict: Verdict
    authority: Known
    leaf: Known


class Family:
    """Advances the rotation of a family.

    Args:
        issuer: Makes keys.
        name: Common name of the authority and of the leaf.
        names: Names that the leaf is valid for.
        terms: Durations.
    """

    def __init__(self, issuer: Issuer, name: str, names: tuple[str, ...], terms: Terms) -> None:
        self._issuer = issuer
        self._name = name
        self._names = names
        self._terms = terms

    def bring(self, files: Files, now_s: int) -> Brought:
        """Do all steps that are possible now; a second call right after it changes nothing.

        An unusable leaf is issued again, and so is an unusable authority that has signed nothing.

        Raises:
            ValueError: The authority is unusable, and brokers trust certificates that it signed.
        """
        files = self._without_unusable(files)
        for _ in range(STEPS_MAX):
            state = self._state(files, now_s)
            verdict = next_step(state, self._terms, now_s)
            if verdict.step is None:
                assert state.authority is not None
                assert state.leaf is not None
                return Brought(files, verdict, state.authority, state.leaf)
            files = self._do(files, verdict.step, now_s)
        raise AssertionError("certificates are issued repeatedly")

    def _without_unusable(self, files: Files) -> Files:
        """Drop unusable files that can be recreated, because nothing depends on them.

        Raises:
            ValueError: An unusable file is still needed.
        """
        authority, leaf = dict(files.authority), dict(files.leaf)
        has_signed = bool(leaf.get(names.CERT_KEY))
        if not self._fits(leaf, names.CERT_KEY, names.KEY_KEY):
            leaf = {names.CA_KEY: leaf.get(names.CA_KEY, b"")}
        if not self._fits(authority, NEXT_CERT, NEXT_KEY):
            authority = _left(authority, NEXT_CERT, NEXT_KEY)
        has_one = bool(authority.get(names.CA_KEY) or authority.get(names.AUTHORITY_KEY))
        if has_one and not self._fits(authority, names.CA_KEY, names.AUTHORITY_KEY):
            if has_signed:
                raise ValueError(f"{names.CA_KEY} and {names.AUTHORITY_KEY} are not a pair")
            authority = _left(authority, names.CA_KEY, names.AUTHORITY_KEY)
        if not self._described(authority.get(FORMER_CERT, b"")):
            if FORMER_CERT in authority and not files.has_leaf:
                raise ValueError(f"{FORMER_CERT} is not a certificate")
            authority = _left(authority, FORMER_CERT)
        return replace(files, authority=authority, leaf=leaf)

    def _fits(self, held: dict[str, bytes], cert: str, key: str) -> bool:
        return self._issuer.fits(Pair(held.get(cert, b""), held.get(key, b"")))

    def _described(self, pem: bytes) -> tuple[Known, ...]:
        """Parse the certificates of a file; empty for an unreadable one."""
        try:
            return self._issuer.describe(pem)
        except ValueError:
            return ()

    def _state(self, files: Files, now_s: int) -> State:
        known = self._described(files.leaf.get(names.CA_KEY, b""))
        leaf = self._one(files.leaf, names.CERT_KEY)
        return State(
            authority=self._one(files.authority, names.CA_KEY),
            coming=self._one(files.authority, NEXT_CERT),
            former=self._one(files.authority, FORMER_CERT),
            leaf=leaf,
            bundle=tuple(sorted(one.fingerprint for one in known)),
            published_s=files.published_s,
            names=self._names,
            # Brokers report loaded files; their NATS servers do not, and reload after a delay.
            has_bundle_everywhere=files.has_bundle and now_s - files.published_s >= SPREAD_S,
            has_leaf_everywhere=files.has_leaf and now_s - files.issued_s >= SPREAD_S,
        )

    def _one(self, files: dict[str, bytes], key: str) -> Known | None:
        return next(iter(self._described(files.get(key, b""))), None)

    def _do(self, files: Files, step: Step, now_s: int) -> Files:
        match step:
            case MakeAuthority():
                return self._make(files, step)
            case PublishBundle():
                return _published(files, now_s)
            case SwitchAuthority():
                return _switched(files)
            case IssueLeaf():
                return self._issued(files, step, now_s)
            case RemoveAuthority():
                return _without(files, FORMER_CERT)

    def _make(self, files: Files, step: MakeAuthority) -> Files:
        made = self._issuer.make_authority(
            self._name, not_before_s=step.not_before_s, not_after_s=step.not_after_s
        )
        keys = (NEXT_CERT, NEXT_KEY) if step.is_next else (names.CA_KEY, names.AUTHORITY_KEY)
        new = dict(zip(keys, (made.cert, made.key), strict=True))
        return replace(files, authority=files.authority | new)

    def _issued(self, files: Files, step: IssueLeaf, now_s: int) -> Files:
        signer = Pair(files.authority[names.CA_KEY], files.authority[names.AUTHORITY_KEY])
        made = self._issuer.issue(
            signer,
            self._name,
            step.names,
            not_before_s=step.not_before_s,
            not_after_s=step.not_after_s,
        )
        new = {names.CERT_KEY: made.cert, names.KEY_KEY: made.key}
        return replace(files, leaf=files.leaf | new, issued_s=now_s, has_leaf=False)


def _published(files: Files, now_s: int) -> Files:
    held = [files.authority.get(key) for key in (names.CA_KEY, NEXT_CERT, FORMER_CERT)]
    trusted = bundle([one for one in held if one])
    leaf = files.leaf | {names.CA_KEY: trusted}
    return replace(files, leaf=leaf, published_s=now_s, has_bundle=False)


def _switched(files: Files) -> Files:
    held = files.authority
    new = {
        names.CA_KEY: held[NEXT_CERT],
        names.AUTHORITY_KEY: held[NEXT_KEY],
        FORMER_CERT: held[names.CA_KEY],
    }
    return replace(files, authority=new)


def _without(files: Files, key: str) -> Files:
    return replace(files, authority=_left(files.authority, key))


def _left(held: dict[str, bytes], *keys: str) -> dict[str, bytes]:
    return {name: text for name, text in held.items() if name not in keys}

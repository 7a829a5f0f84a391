"""An authority with the leaf it signs, as files of Secrets, brought on step by step in memory.

Whoever calls writes the files of the authority before those of the leaf: a key that signed
something must not be lost.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from liftbridge_operator.certificates.port import Issuer, Known, Pair
from liftbridge_operator.certificates.rotation import (
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
from liftbridge_operator.issuing.x509 import bundle
from liftbridge_operator.rendering import names

AUTHORITY_KEY: Final = "ca.key"
NEXT_CERT: Final = "next.crt"
NEXT_KEY: Final = "next.key"
FORMER_CERT: Final = "former.crt"
SPREAD_S: Final = 120
"""Time after which every node has brought a changed Secret into its pods, and brokers have read it:
nodes look every minute, and keep what they saw for as long at most."""

STEPS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Files:
    """What the Secrets of a family hold.

    Attributes:
        authority: Of the Secret of the authority; private keys too.
        leaf: `tls.crt`, `tls.key` and the bundle as `ca.crt`.
        published_s: When the bundle was last changed; 0 for never.
        issued_s: When the leaf was last changed; 0 for never.
        has_bundle: Whether every broker has said that it loaded the bundle, and no other.
        has_leaf: Whether every broker has said that it shows the leaf.
    """

    authority: dict[str, bytes] = field(default_factory=dict, repr=False)
    leaf: dict[str, bytes] = field(default_factory=dict, repr=False)
    published_s: int = 0
    issued_s: int = 0
    has_bundle: bool = False
    has_leaf: bool = False


@dataclass(frozen=True, slots=True)
class Brought:
    """A family after all steps that could be done now.

    Attributes:
        files: As they are to be.
        verdict: Why nothing more is done.
        authority: Who signs.
        leaf: What is shown.
    """

    files: Files
    verdict: Verdict
    authority: Known
    leaf: Known


class Family:
    """Brings files on.

    Args:
        issuer: Makes keys.
        name: Common name of the authority and of the leaf.
        names: What the leaf is valid for.
        terms: How long things last.
    """

    def __init__(self, issuer: Issuer, name: str, names: tuple[str, ...], terms: Terms) -> None:
        self._issuer = issuer
        self._name = name
        self._names = names
        self._terms = terms

    def bring(self, files: Files, now_s: int) -> Brought:
        """All steps that can be done now; a second call right after it changes nothing.

        Raises:
            ValueError: Files hold something else than certificates and keys.
        """
        for _ in range(STEPS_MAX):
            state = self._state(files, now_s)
            verdict = next_step(state, self._terms, now_s)
            if verdict.step is None:
                assert state.authority is not None
                assert state.leaf is not None
                return Brought(files, verdict, state.authority, state.leaf)
            files = self._do(files, verdict.step, now_s)
        raise AssertionError("certificates are issued again and again")

    def _state(self, files: Files, now_s: int) -> State:
        trusted = files.leaf.get(names.CA_KEY)
        known = self._issuer.describe(trusted) if trusted else ()
        leaf = self._one(files.leaf, names.CERT_KEY)
        return State(
            authority=self._one(files.authority, names.CA_KEY),
            coming=self._one(files.authority, NEXT_CERT),
            former=self._one(files.authority, FORMER_CERT),
            leaf=leaf,
            bundle=tuple(sorted(one.fingerprint for one in known)),
            published_s=files.published_s,
            names=self._names,
            # Brokers say what they loaded; NATS servers beside them do not, and take their time.
            has_bundle_everywhere=files.has_bundle and now_s - files.published_s >= SPREAD_S,
            has_leaf_everywhere=files.has_leaf and now_s - files.issued_s >= SPREAD_S,
        )

    def _one(self, files: dict[str, bytes], key: str) -> Known | None:
        text = files.get(key)
        if not text:
            return None
        found = self._issuer.describe(text)
        if not found:
            raise ValueError(f"{key} holds no certificate")
        return found[0]

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
        keys = (NEXT_CERT, NEXT_KEY) if step.is_next else (names.CA_KEY, AUTHORITY_KEY)
        new = dict(zip(keys, (made.cert, made.key), strict=True))
        return replace(files, authority=files.authority | new)

    def _issued(self, files: Files, step: IssueLeaf, now_s: int) -> Files:
        signer = Pair(files.authority[names.CA_KEY], files.authority[AUTHORITY_KEY])
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
        AUTHORITY_KEY: held[NEXT_KEY],
        FORMER_CERT: held[names.CA_KEY],
    }
    return replace(files, authority=new)


def _without(files: Files, key: str) -> Files:
    left = {name: text for name, text in files.authority.items() if name != key}
    return replace(files, authority=left)

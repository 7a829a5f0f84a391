"""Finds out who a caller is, by the proofs that its listener accepts.

A bearer token decides if the listener accepts any and the call has one; then the certificate of the
connection; then the caller is anonymous, where that is accepted. A wrong proof is refused: it never
turns a caller into an anonymous one.

What is costly is bounded: verified tokens are remembered, failed attempts are limited by address,
and hashes are computed one at a time in a thread.
"""

import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from liftbridge_broker.access.api_tokens import PREFIX, ApiToken, parse_token
from liftbridge_broker.access.attempts import FailedAttempts
from liftbridge_broker.access.bearer import TOKEN_BYTES_MAX, token_of
from liftbridge_broker.access.certificate_rules import principal_of
from liftbridge_broker.access.identities import BEARER, NOBODY, Caller, Identity, Proof
from liftbridge_broker.access.options import IdentityOptions
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.verified import KEY_BYTES, VerifiedTokens
from liftbridge_broker.adapters.identity.hashing import Hasher
from liftbridge_broker.controller.state import TokenState
from liftbridge_broker.errors import LiftbridgeError, LimitError, UnauthenticatedError
from liftbridge_broker.model.units import SECOND_NS
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.observe import Observer

if TYPE_CHECKING:
    from liftbridge_broker.adapters.identity.json_web_tokens import JwtVerifier

Done = Callable[[Identity | LiftbridgeError], None]
"""Gets an identity that took longer to verify, or the refusal; called once."""

_AT: Final = "@"

WAITERS_MAX: Final = 1_000
"""Calls that may wait for the verification of one token."""


class CallerAuthenticator:
    """Who callers are; the authenticator of a gRPC server.

    Attributes:
        generation: Changes with everything that may name another principal for the same proof.
        counts: Verified and refused proofs, and those refused unseen, by proof and outcome.
    """

    def __init__(
        self,
        options: IdentityOptions,
        tokens: Callable[[], Mapping[str, TokenState]],
        clock: Clock,
        observer: Observer,
        hasher: Hasher,
    ) -> None:
        """Read the keys.

        Args:
            options: What is accepted.
            tokens: Returns the API tokens of the cluster.
            clock: Both clocks.
            observer: Is notified of refused proofs.
            hasher: Verifies API tokens.

        Raises:
            ConfigError: The file of keys cannot be used.
        """
        self._tokens = tokens
        self._clock = clock
        self._observer = observer
        self._hasher = hasher
        # By kind: tokens of one kind, of which an issuer makes any number, displace no others.
        self._verified = {one: VerifiedTokens(secrets.token_bytes(KEY_BYTES)) for one in BEARER}
        self._attempts = FailedAttempts()
        self._waiters: dict[bytes, list[tuple[Caller, Done]]] = {}
        self.generation = 0
        self.counts: dict[tuple[str, ...], int] = {}
        self._use(options)

    def set_options(self, options: IdentityOptions) -> None:
        """Accept other identities from now on; after an error nothing changes.

        Raises:
            ConfigError: The file of keys cannot be used.
        """
        self._use(options)
        self._forget_verified()

    def _use(self, options: IdentityOptions) -> None:
        verifier: JwtVerifier | None = None
        if options.jwt is not None:
            from liftbridge_broker.adapters.identity import json_web_tokens  # noqa: PLC0415 - 30 ms

            verifier = json_web_tokens.JwtVerifier(options.jwt)
        self._jwt = verifier
        self._options, self._by_listener = options, dict(options.by_listener)

    def reload_keys(self) -> None:
        """Read the keys again; after an error the old ones stay in use.

        Raises:
            ConfigError: The file of keys cannot be used.
        """
        if self._jwt is not None:
            self._jwt.reload()
            self._forget_verified()

    @property
    def keys_file(self) -> str:
        """File of keys that is read again when it changes; empty for none."""
        return "" if self._options.jwt is None else self._options.jwt.keys_file

    def _forget_verified(self) -> None:
        self.generation += 1
        self._verified[Proof.JWT].clear()

    # Calls of the gRPC server.

    def identify(self, caller: Caller, authorization: bytes, done: Done) -> Identity | None:
        """Return the identity of a call; None if `done` gets it in a later turn.

        Args:
            caller: The connection.
            authorization: Field of the request, empty for none.
            done: Not called if this returns an identity or raises.

        Raises:
            UnauthenticatedError: There is no identity that the listener accepts.
            LimitError: Too many attempts from the address failed.
            UnavailableError: Too many tokens are being verified.
        """
        proofs = self._by_listener.get(caller.listener, self._options.proofs)
        if authorization and not BEARER.isdisjoint(proofs):
            return self._by_token(caller, authorization, proofs, done)
        if Proof.CERTIFICATE in proofs and caller.certificate is not None:
            identity = self._by_certificate(caller, caller.certificate)
            if identity is not None:
                return identity
        if Proof.ANONYMOUS in proofs:
            return NOBODY
        has_none = "has no identity" if caller.certificate is None else "has an unnamed certificate"
        raise UnauthenticatedError(f"the call {has_none}; this port accepts: {', '.join(proofs)}")

    def fault_of(self, identity: Identity) -> str:
        """Return why an identity no longer holds; empty while it does."""
        now_ns = self._clock.wall_ns()
        if identity.expires and identity.expires * SECOND_NS <= now_ns:
            return f"the {identity.proof} has expired"
        if identity.proof is Proof.TOKEN:
            token = self._tokens().get(identity.source.partition(_AT)[0])
            if token is None or _source_of(token) != identity.source:
                return "the token was revoked"
            if token.expires and token.expires <= now_ns:
                return "the token has expired"
        elif identity.proof is Proof.JWT and not (
            self._jwt is not None and self._jwt.knows(identity.source)
        ):
            return "the key of the jwt is no longer accepted"
        return ""

    # Proofs.

    def _by_certificate(self, caller: Caller, certificate: Mapping[str, object]) -> Identity | None:
        principal = principal_of(self._options.rules, certificate)
        if principal is None:
            return None
        end = ssl.cert_time_to_seconds(cast("str", certificate["notAfter"]))
        identity = Identity(principal, Proof.CERTIFICATE, end)
        if fault := self.fault_of(identity):
            raise self._refused(caller, Proof.CERTIFICATE, fault)
        self._count(Proof.CERTIFICATE, "accepted")
        return identity

    def _by_token(
        self, caller: Caller, authorization: bytes, proofs: Sequence[Proof], done: Done
    ) -> Identity | None:
        if not (caller.has_tls or self._options.allows_plain_tokens):
            raise UnauthenticatedError(
                "tokens are refused on a port without TLS, where others can read them: connect to "
                "a port with TLS, and replace the token"
            )
        token = token_of(authorization)
        now = self._clock.now()
        is_own = token is not None and token.startswith(PREFIX)
        proof = Proof.TOKEN if is_own else Proof.JWT
        # Not of the field: written in another way, a token would be verified again.
        digest = self._verified[proof].digest((token or "").encode())
        known = self._verified[proof].find(digest, now)
        if known is not None and proof in proofs and not self.fault_of(known):
            return known
        if not self._attempts.allow(caller.source, now):
            self._count(proof, "limited")
            raise LimitError(
                f"too many wrong tokens came from {caller.source}, or from everywhere: correct the "
                "token, and try again in a minute"
            )
        if token is None:
            text = f"authorization must be `Bearer TOKEN`, of at most {TOKEN_BYTES_MAX} bytes"
            raise self._failed(caller, proof, text)
        if proof not in proofs:
            kind = "API tokens" if is_own else "JSON web tokens"
            raise self._failed(caller, proof, f"this port does not accept {kind}")
        if is_own:
            self._check_api_token(caller, token, digest, done)
            return None
        return self._by_jwt(caller, token, digest)

    def _by_jwt(self, caller: Caller, token: str, digest: bytes) -> Identity:
        if self._jwt is None:
            raise self._failed(caller, Proof.JWT, "the broker has no keys for JSON web tokens")
        try:
            identity = self._jwt.verify(token, self._clock.wall_ns() // SECOND_NS)
        except UnauthenticatedError as error:
            raise self._failed(caller, Proof.JWT, error.text) from None
        return self._accepted(identity, digest)

    def _check_api_token(self, caller: Caller, text: str, digest: bytes, done: Done) -> None:
        """Verify an API token in the thread, once for all calls that wait for it."""
        waiters = self._waiters.get(digest)
        if waiters is not None:
            if len(waiters) >= WAITERS_MAX:
                raise LimitError(f"{WAITERS_MAX} calls wait for the verification of one token")
            waiters.append((caller, done))
            return
        token = parse_token(text)
        if token is None:
            raise self._failed(caller, Proof.TOKEN, "the API token is mistyped or cut off")
        state = self._tokens().get(token.token_id)
        if state is None:
            raise self._failed(caller, Proof.TOKEN, "the API token was revoked, or never existed")
        identity = _identity_of(state)
        if fault := self.fault_of(identity):
            raise self._failed(caller, Proof.TOKEN, fault)
        compared = partial(self._compared, token, state.verifier, digest)
        self._hasher.check(token.secret, state.verifier, compared)
        self._waiters[digest] = [(caller, done)]

    def _compared(self, token: ApiToken, verifier: str, digest: bytes, is_equal: bool) -> None:
        """Answer the calls that wait for a token.

        It may have been revoked in the meantime, and another one of its id created.
        """
        state = self._tokens().get(token.token_id)
        waiters = self._waiters.pop(digest)
        if is_equal and state is not None and state.verifier == verifier:
            identity = self._accepted(_identity_of(state), digest)
            for _, done in waiters:
                done(identity)
            return
        caller, _ = waiters[0]
        error = self._failed(caller, Proof.TOKEN, "the API token was revoked, or never existed")
        for _, done in waiters:
            done(error)

    # Outcomes.

    def _accepted(self, identity: Identity, digest: bytes) -> Identity:
        self._count(identity.proof, "accepted")
        self._verified[identity.proof].add(digest, identity, self._clock.now())
        return identity

    def _failed(self, caller: Caller, proof: Proof, text: str) -> UnauthenticatedError:
        """Count a failed attempt; return the refusal."""
        is_last = self._attempts.note(caller.source, self._clock.now())
        if is_last:
            self._observer.transition("identity_attempts_limited", {"source": caller.source})
        return self._refused(caller, proof, text)

    def _refused(self, caller: Caller, proof: Proof, text: str) -> UnauthenticatedError:
        self._count(proof, "refused")
        fields = {"peer": caller.peer, "listener": caller.listener, "proof": proof, "reason": text}
        self._observer.transition("identity_refused", fields)
        return UnauthenticatedError(text)

    def _count(self, proof: Proof, outcome: str) -> None:
        key = (str(proof), outcome)
        self.counts[key] = self.counts.get(key, 0) + 1


def _identity_of(token: TokenState) -> Identity:
    principal = Principal(token.principal, token.groups)
    return Identity(principal, Proof.TOKEN, _seconds(token.expires), _source_of(token))


def _source_of(token: TokenState) -> str:
    """Return what names a token and no later one of the same id."""
    return f"{token.token_id}{_AT}{token.created}"


def _seconds(nanoseconds: int) -> int:
    """Return whole seconds, rounded up; 0 stays 0, which means never."""
    return -(-nanoseconds // SECOND_NS)

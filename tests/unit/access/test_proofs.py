"""Every kind of proof in every condition, with TLS and without: accepted, or refused with a reason.

The table is generated: `KINDS` have conditions, `REFUSALS` say what a condition must lead to.
"""

import asyncio
import base64
import hmac
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import jwt
import pytest

from liftbridge_broker.access import attempts
from liftbridge_broker.access.identities import NOBODY, Caller, Identity, Proof
from liftbridge_broker.access.principals import Principal
from liftbridge_broker.access.verified import VERIFIED_MAX
from liftbridge_broker.adapters.identity import hashing
from liftbridge_broker.errors import (
    ConfigError,
    LiftbridgeError,
    LimitError,
    UnauthenticatedError,
    UnavailableError,
)
from liftbridge_testkit.fuzzing import Fuzz
from liftbridge_testkit.identities import AUDIENCE, ISSUER, NOW, Guarded, Issuer, forged

ALGORITHMS = ("RS256", "ES256", "EdDSA")
STRANGER = Issuer()


def _changed(token: str) -> str:
    header, claims, signature = token.split(".")
    raw = json.loads(base64.urlsafe_b64decode(claims + "=="))
    changed = json.dumps({**raw, "sub": "admin"}).encode()
    return f"{header}.{base64.urlsafe_b64encode(changed).rstrip(b'=').decode()}.{signature}"


def _claims() -> dict[str, object]:
    return {"iss": ISSUER, "aud": AUDIENCE, "sub": "admin", "exp": NOW + 60}


def _unsigned(algorithm: str) -> str:
    return forged({"alg": algorithm, "typ": "JWT"}, _claims(), b"")


def _as_hmac(guarded: Guarded, algorithm: str) -> str:
    """The public key as the secret of an HMAC: algorithm confusion."""
    secret = guarded.issuer.public_pem(algorithm)
    token = forged({"alg": "HS256", "typ": "JWT"}, _claims(), b"")
    signature = hmac.digest(secret, token.removesuffix(".").encode(), "sha256")
    return forged({"alg": "HS256", "typ": "JWT"}, _claims(), signature)


def _relabelled(guarded: Guarded, algorithm: str) -> str:
    """A token of another kind of key, which is fine; its own algorithm decides."""
    return guarded.issuer.token(ALGORITHMS[ALGORITHMS.index(algorithm) - 1])


def _critical(guarded: Guarded, algorithm: str) -> str:
    key = guarded.issuer.keys[algorithm]
    return jwt.encode(_claims(), key, algorithm, {"crit": ["exp"], "exp": 1})


def _nested() -> str:
    deep = base64.urlsafe_b64encode(b"[" * 6_000).decode()
    return f"{deep}.e30.e30"


def _revoked(guarded: Guarded) -> str:
    token = guarded.add_token()
    guarded.tokens.clear()
    return token


def _with_secret_of_another(guarded: Guarded) -> str:
    token_id = next(iter(guarded.tokens), "") or guarded.add_token().split("_")[1]
    return hashing.new_token()._replace(token_id=token_id).text


JwtCondition = Callable[[Guarded, str], str]
JWT_CONDITIONS: dict[str, tuple[JwtCondition, str]] = {
    "valid": (lambda g, alg: g.issuer.token(alg), ""),
    "valid, in the leeway": (lambda g, alg: g.issuer.token(alg, exp=NOW - 4, nbf=NOW + 5), ""),
    "one audience": (lambda g, alg: g.issuer.token(alg, aud=AUDIENCE), ""),
    "without nbf": (lambda g, alg: g.issuer.token(alg, nbf=None, iat=None), ""),
    "expired": (lambda g, alg: g.issuer.token(alg, exp=NOW - 5), "it expired 5 s ago"),
    "without an end": (lambda g, alg: g.issuer.token(alg, exp=None), '"exp" claim'),
    "not yet valid": (lambda g, alg: g.issuer.token(alg, nbf=NOW + 6), "not valid for another 6 s"),
    "wrong issuer": (lambda g, alg: g.issuer.token(alg, iss=ISSUER + "/"), "Invalid issuer"),
    "without issuer": (lambda g, alg: g.issuer.token(alg, iss=None), '"iss" claim'),
    "wrong audience": (lambda g, alg: g.issuer.token(alg, aud=["x"]), "Audience doesn't match"),
    "without audience": (lambda g, alg: g.issuer.token(alg, aud=None), '"aud" claim'),
    "wrong signature": (lambda _, alg: STRANGER.token(alg), "Signature verification failed"),
    "changed claims": (lambda g, alg: _changed(g.issuer.token(alg)), "Signature verification"),
    "unsigned": (lambda _, __: _unsigned("none"), "no key of the broker is for 'none'"),
    "unsigned, hidden": (lambda _, alg: _unsigned(alg), "Signature verification failed"),
    "wrong algorithm": (_as_hmac, "no key of the broker is for 'HS256'"),
    "another algorithm": (_relabelled, ""),
    "unknown extension": (_critical, "crit"),
    "malformed": (lambda _, __: "ey.x.y", "refused"),
    "nested": (lambda _, __: _nested(), "malformed"),
    "without principal": (lambda g, alg: g.issuer.token(alg, sub=None), "'sub' is missing"),
    "principal no text": (lambda g, alg: g.issuer.token(alg, sub=7), "not a text"),
    "long principal": (lambda g, alg: g.issuer.token(alg, sub="x" * 257), "a name that is not"),
    "groups no list": (lambda g, alg: g.issuer.token(alg, groups="ops"), "not a list of texts"),
    "many groups": (
        lambda g, alg: g.issuer.token(alg, groups=[f"{one}" for one in range(65)]),
        "has 65 groups",
    ),
    "end no number": (lambda g, alg: g.issuer.token(alg, exp=True), "'exp' is not a time"),
    "end infinite": (lambda g, alg: g.issuer.token(alg, exp=float("inf")), "'exp' is not a time"),
    "end far off": (lambda g, alg: g.issuer.token(alg, exp=10**300), "'exp' is out of bounds"),
}

TOKEN_CONDITIONS: dict[str, tuple[Callable[[Guarded], str], str]] = {
    "valid": (lambda g: g.add_token(), ""),
    "valid, with an end": (lambda g: g.add_token(expires=NOW + 1), ""),
    "expired": (lambda g: g.add_token(expires=NOW), "the token has expired"),
    "revoked": (_revoked, "was revoked, or never existed"),
    "wrong secret": (_with_secret_of_another, "was revoked, or never existed"),
    "mistyped": (lambda g: g.add_token()[:-1] + "_", "mistyped or cut off"),
    "cut": (lambda g: g.add_token()[:-1], "mistyped or cut off"),
}

CERTIFICATE_CONDITIONS: dict[str, tuple[dict[str, object], str]] = {
    "valid": ({}, ""),
    "expired": ({"notAfter": "Jan  1 00:00:00 2020 GMT"}, "the certificate has expired"),
    "unnamed": ({"subject": ()}, "the call has an unnamed certificate"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One authenticator for all cases, because keys are costly."""
    guarded = Guarded(tmp_path_factory.mktemp("keys"))
    yield guarded
    guarded.hasher.close()


@pytest.fixture
def guarded(shared: Guarded) -> Guarded:
    shared.clock.seconds = NOW
    shared.tokens.clear()
    shared.seen.events.clear()
    shared.issuer.write_pem(shared.keys_file)
    shared.set_options(proofs=(Proof.CERTIFICATE, Proof.JWT, Proof.TOKEN), by_listener=())
    shared.authenticator._attempts = attempts.FailedAttempts()
    return shared


def caller(
    *, has_tls: bool = True, certificate: Mapping[str, object] | None = None, listener: str = ""
) -> Caller:
    return Caller("10.0.0.1:5", "10.0.0.1", listener, has_tls, certificate)


async def outcome(guarded: Guarded, who: Caller, token: str = "") -> Identity | LiftbridgeError:
    """What an attempt leads to, now or when it was verified."""
    later: asyncio.Future[Identity | LiftbridgeError] = asyncio.get_running_loop().create_future()
    field = f"Bearer {token}".encode() if token else b""
    try:
        identity = guarded.authenticator.identify(who, field, later.set_result)
    except LiftbridgeError as error:
        assert not later.done()
        return error
    return await later if identity is None else identity


def check(found: Identity | LiftbridgeError, refusal: str, expected: Identity) -> None:
    if refusal:
        assert isinstance(found, UnauthenticatedError)
        assert refusal in found.text
        assert len(found.text) < 300
    else:
        assert isinstance(found, Identity), found
        assert replace(found, source="", expires=0).principal == expected.principal
        assert found.proof is expected.proof


@pytest.mark.parametrize("has_tls", [True, False])
@pytest.mark.parametrize("condition", JWT_CONDITIONS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_json_web_token(
    guarded: Guarded, algorithm: str, condition: str, has_tls: bool
) -> None:
    make, refusal = JWT_CONDITIONS[condition]
    token = make(guarded, algorithm)
    found = await outcome(guarded, caller(has_tls=has_tls), token)
    check(
        found,
        refusal if has_tls else "refused on a port without TLS",
        Identity(Principal("billing"), Proof.JWT),
    )
    if isinstance(found, LiftbridgeError) and len(token) > 20:
        assert token not in found.text
        assert token not in str(guarded.seen.events)


@pytest.mark.parametrize("has_tls", [True, False])
@pytest.mark.parametrize("condition", TOKEN_CONDITIONS)
async def test_api_token(guarded: Guarded, condition: str, has_tls: bool) -> None:
    make, refusal = TOKEN_CONDITIONS[condition]
    token = make(guarded)
    found = await outcome(guarded, caller(has_tls=has_tls), token)
    check(
        found,
        refusal if has_tls else "refused on a port without TLS",
        Identity(Principal("billing", ("ops",)), Proof.TOKEN),
    )
    assert token not in str(guarded.seen.events)


@pytest.mark.parametrize("condition", CERTIFICATE_CONDITIONS)
async def test_certificate(guarded: Guarded, condition: str) -> None:
    changes, refusal = CERTIFICATE_CONDITIONS[condition]
    certificate: dict[str, object] = {
        "subject": ((("commonName", "billing"),),),
        "notAfter": "Jan  1 00:00:00 2099 GMT",
        **changes,
    }
    found = await outcome(guarded, caller(certificate=certificate))
    check(found, refusal, Identity(Principal("billing"), Proof.CERTIFICATE))
    if isinstance(found, Identity):
        assert found.expires == ssl.cert_time_to_seconds("Jan  1 00:00:00 2099 GMT")


@pytest.mark.parametrize("proof", Proof)
async def test_a_listener_accepts_only_its_own_proofs(guarded: Guarded, proof: Proof) -> None:
    guarded.set_options(by_listener=(("outside", (proof,)),))
    certificate = {
        "subject": ((("commonName", "c"),),),
        "notAfter": "Jan  1 00:00:00 2099 GMT",
    }
    who = caller(certificate=certificate, listener="outside")
    jwt_found = await outcome(guarded, who, guarded.issuer.token("ES256"))
    api_found = await outcome(guarded, who, guarded.add_token())
    without = await outcome(guarded, who)
    found = {
        Proof.JWT: jwt_found,
        Proof.TOKEN: api_found,
        Proof.CERTIFICATE: without,
        Proof.ANONYMOUS: without,
    }[proof]
    assert isinstance(found, Identity)
    assert found.proof is proof
    if proof in (Proof.JWT, Proof.TOKEN):
        other = api_found if proof is Proof.JWT else jwt_found
        assert isinstance(other, UnauthenticatedError)
        assert "does not accept" in other.text
        assert isinstance(without, UnauthenticatedError)
        assert f"accepts: {proof}" in without.text
    else:  # as before there were tokens: the field is not looked at
        assert isinstance(jwt_found, Identity)
        assert jwt_found.proof is proof


async def test_wrong_token_never_makes_an_anonymous_caller(guarded: Guarded) -> None:
    guarded.set_options(proofs=(Proof.JWT, Proof.ANONYMOUS))
    assert await outcome(guarded, caller()) is NOBODY
    assert isinstance(await outcome(guarded, caller(), "x"), UnauthenticatedError)


async def test_token_decides_over_the_certificate(guarded: Guarded) -> None:
    certificate = {"subject": ((("commonName", "c"),),), "notAfter": "Jan  1 00:00:00 2099 GMT"}
    found = await outcome(guarded, caller(certificate=certificate), guarded.issuer.token("ES256"))
    assert isinstance(found, Identity)
    assert found.principal.name == "billing"


async def test_plain_tokens_are_accepted_where_that_is_allowed(guarded: Guarded) -> None:
    guarded.set_options(allows_plain_tokens=True)
    found = await outcome(guarded, caller(has_tls=False), guarded.issuer.token("ES256"))
    guarded.set_options(allows_plain_tokens=False)
    assert isinstance(found, Identity)


async def test_service_account_token_of_kubernetes(guarded: Guarded, tmp_path: Path) -> None:
    """Its claims as the API server writes them; the key set has a `kid`, and so has the token."""
    guarded.issuer.write_set(guarded.keys_file)
    guarded.authenticator.reload_keys()
    token = guarded.issuer.token(
        "RS256",
        kid="RS256-1",
        sub="system:serviceaccount:shop:billing",
        **{"kubernetes.io": {"namespace": "shop", "serviceaccount": {"name": "billing"}}},
    )
    found = await outcome(guarded, caller(), token)
    assert isinstance(found, Identity)
    assert found.principal == Principal("system:serviceaccount:shop:billing")
    assert found.expires == NOW + 3_600 + 5
    unknown = await outcome(guarded, caller(), guarded.issuer.token("RS256", kid="gone"))
    assert isinstance(unknown, UnauthenticatedError)
    assert "(kid)" in unknown.text


async def test_groups_come_from_their_claim(guarded: Guarded) -> None:
    found = await outcome(guarded, caller(), guarded.issuer.token("ES256", groups=["a", "b"]))
    assert isinstance(found, Identity)
    assert found.principal == Principal("billing", ("a", "b"))


# What follows once an identity is known.


async def test_identities_cease_to_hold_at_their_end(guarded: Guarded) -> None:
    by_jwt = await outcome(guarded, caller(), guarded.issuer.token("ES256", exp=NOW + 10))
    text = guarded.add_token(expires=NOW + 20)
    by_token = await outcome(guarded, caller(), text)
    assert isinstance(by_jwt, Identity)
    assert isinstance(by_token, Identity)
    fault_of = guarded.authenticator.fault_of
    assert (fault_of(by_jwt), fault_of(by_token), fault_of(NOBODY)) == ("", "", "")
    guarded.clock.seconds = NOW + 15
    assert fault_of(by_jwt) == "the jwt has expired"
    guarded.clock.seconds = NOW + 20
    assert fault_of(by_token) == "the token has expired"


async def test_revoked_token_is_refused_at_once_although_it_was_verified(guarded: Guarded) -> None:
    text = guarded.add_token()
    identity = await outcome(guarded, caller(), text)
    assert isinstance(identity, Identity)
    guarded.tokens.clear()
    assert guarded.authenticator.fault_of(identity) == "the token was revoked"
    assert isinstance(await outcome(guarded, caller(), text), UnauthenticatedError)


async def test_a_new_token_of_the_same_id_does_not_revive_the_old_one(guarded: Guarded) -> None:
    text = guarded.add_token("alice")
    identity = await outcome(guarded, caller(), text)
    assert isinstance(identity, Identity)
    (old,) = guarded.tokens.values()
    guarded.clock.seconds += 1
    guarded.add_token("bob")
    (*_, new) = guarded.tokens.values()
    guarded.tokens.clear()
    guarded.tokens[old.token_id] = new._replace(token_id=old.token_id)
    assert guarded.authenticator.fault_of(identity) == "the token was revoked"
    assert isinstance(await outcome(guarded, caller(), text), UnauthenticatedError)


async def test_a_token_replaced_while_it_is_verified_is_refused(guarded: Guarded) -> None:
    text = guarded.add_token("alice")
    async with asyncio.TaskGroup() as tasks:
        attempt = tasks.create_task(outcome(guarded, caller(), text))
        await asyncio.sleep(0)
        (old,) = guarded.tokens.values()
        guarded.clock.seconds += 1
        guarded.add_token("bob")
        (*_, new) = guarded.tokens.values()
        guarded.tokens[old.token_id] = new._replace(token_id=old.token_id)
    assert isinstance(attempt.result(), UnauthenticatedError)


async def test_a_token_is_verified_once_however_its_field_is_written(guarded: Guarded) -> None:
    """Else a client with one valid token could keep the only thread busy for all others."""
    text, before = guarded.add_token(), _verified_count(guarded)
    for field in (f"Bearer {text}", f"bearer {text}", f"Bearer   {text}", f"BEARER {text} "):
        done: asyncio.Future[Identity | LiftbridgeError] = asyncio.Future()
        found = guarded.authenticator.identify(caller(), field.encode(), done.set_result)
        assert isinstance(found if found is not None else await done, Identity)
    assert _verified_count(guarded) == before + 1


def _verified_count(guarded: Guarded) -> int:
    return guarded.authenticator.counts.get(("token", "accepted"), 0)


async def test_web_tokens_displace_no_api_token(guarded: Guarded) -> None:
    text, before = guarded.add_token(), _verified_count(guarded)
    assert isinstance(await outcome(guarded, caller(), text), Identity)
    web = await outcome(guarded, caller(), guarded.issuer.token("ES256"))
    assert isinstance(web, Identity)
    for number in range(VERIFIED_MAX):  # the issuer makes any number
        guarded.authenticator._accepted(web, b"%d" % number)
    assert isinstance(await outcome(guarded, caller(), text), Identity)
    assert _verified_count(guarded) == before + 1


async def test_earlier_end_of_a_token_counts_for_running_calls(guarded: Guarded) -> None:
    text = guarded.add_token()
    identity = await outcome(guarded, caller(), text)
    assert isinstance(identity, Identity)
    (known,) = guarded.tokens.values()
    guarded.tokens[known.token_id] = known._replace(expires=guarded.clock.wall_ns())
    assert guarded.authenticator.fault_of(identity) == "the token has expired"


async def test_token_revoked_while_it_is_verified_is_refused(guarded: Guarded) -> None:
    text = guarded.add_token()
    async with asyncio.TaskGroup() as tasks:
        attempt = tasks.create_task(outcome(guarded, caller(), text))
        await asyncio.sleep(0)
        guarded.tokens.clear()
    assert isinstance(attempt.result(), UnauthenticatedError)


async def test_one_verification_serves_all_calls_that_wait(guarded: Guarded) -> None:
    text = guarded.add_token()
    found = await asyncio.gather(*(outcome(guarded, caller(), text) for _ in range(20)))
    assert all(isinstance(one, Identity) for one in found)
    assert len(set(map(id, found))) == 1
    before = dict(guarded.authenticator.counts)
    assert await outcome(guarded, caller(), text) is found[0]
    assert guarded.authenticator.counts == before


async def test_key_that_leaves_the_file_ends_what_it_signed(guarded: Guarded) -> None:
    text = guarded.issuer.token("ES256")
    identity = await outcome(guarded, caller(), text)
    assert isinstance(identity, Identity)
    generation = guarded.authenticator.generation
    guarded.keys_file.write_bytes(guarded.issuer.public_pem("RS256"))
    guarded.authenticator.reload_keys()
    assert guarded.authenticator.generation != generation
    assert "no longer accepted" in guarded.authenticator.fault_of(identity)
    assert isinstance(await outcome(guarded, caller(), text), UnauthenticatedError)


async def test_damaged_file_of_keys_leaves_the_old_ones(guarded: Guarded) -> None:
    guarded.keys_file.write_text("damaged")
    with pytest.raises(ConfigError, match="neither PEM nor a JWK set"):
        guarded.authenticator.reload_keys()
    assert isinstance(await outcome(guarded, caller(), guarded.issuer.token("ES256")), Identity)


# Bounds.


async def test_failed_attempts_are_limited_by_address(guarded: Guarded) -> None:
    good = guarded.issuer.token("ES256")
    assert isinstance(await outcome(guarded, caller(), good), Identity)
    for number in range(attempts.ADDRESS_MAX):
        assert isinstance(await outcome(guarded, caller(), f"x{number}"), UnauthenticatedError)
    limited = await outcome(guarded, caller(), guarded.issuer.token("RS256"))
    assert isinstance(limited, LimitError)
    assert "too many wrong tokens came from 10.0.0.1" in limited.text
    assert ("identity_attempts_limited", {"source": "10.0.0.1"}) in guarded.seen.events
    assert guarded.authenticator.counts["jwt", "limited"] == 1
    # Who was known before is not locked out, nor are others.
    assert isinstance(await outcome(guarded, caller(), good), Identity)
    other = caller()._replace(source="10.0.0.2")
    assert isinstance(await outcome(guarded, other, guarded.issuer.token("RS256")), Identity)


async def test_few_hashes_wait_for_the_thread() -> None:
    hasher, found = hashing.Hasher(waiting_max=2), list[bool]()
    done = asyncio.Event()

    def compared(is_equal: bool) -> None:
        found.append(is_equal)
        if len(found) == 2:
            done.set()

    verifier = hashing.verifier_of("right")
    hasher.check("right", verifier, compared)
    hasher.check("wrong", verifier, compared)
    with pytest.raises(UnavailableError, match="2 API tokens are being verified"):
        hasher.check("right", verifier, compared)
    await done.wait()
    assert found == [True, False]
    hasher.close()


@pytest.mark.fuzz
def test_no_damage_makes_a_json_web_token_valid_or_a_bug(shared: Guarded, fuzz: Fuzz) -> None:
    shared.clock.seconds = NOW
    verifier = shared.authenticator._jwt
    assert verifier is not None
    good = [shared.issuer.token(one) for one in ALGORITHMS]
    verifier.verify(good[0], NOW)
    for random in fuzz.rounds(seed=3, count=600):
        text = random.choice(good)
        place = random.randrange(len(text))
        damaged = text[:place] + random.choice("aA0-_.=") + text[place + random.randrange(3) :]
        if random.randrange(4) == 0:
            damaged = damaged[: random.randrange(len(damaged))]
        try:
            verifier.verify(damaged, NOW)
        except UnauthenticatedError:
            continue
        # Only the unused bits at the end of a signature may differ.
        assert damaged.rpartition(".")[0] in {one.rpartition(".")[0] for one in good}

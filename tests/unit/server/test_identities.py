"""The files and settings behind identities: read again when they change, kept when they are bad."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from liftbridge_broker.access.identities import Caller, Identity
from liftbridge_broker.errors import ConfigError, LiftbridgeError, UnauthenticatedError
from liftbridge_broker.server.identities import Identities
from liftbridge_testkit.identities import Guarded


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path)
    yield guarded
    guarded.hasher.close()


@pytest.fixture
def identities(guarded: Guarded) -> Iterator[Identities]:
    made = Identities(guarded.options, lambda: guarded.tokens, guarded.clock, guarded.seen)
    yield made
    made.close()


def found_by(identities: Identities, guarded: Guarded, algorithm: str) -> Identity | None:
    caller = Caller("h:1", "h", "", has_tls=True, certificate=None)
    field = f"Bearer {guarded.issuer.token(algorithm)}".encode()
    try:
        return identities.clients.identify(caller, field, print)
    except UnauthenticatedError:
        return None


def kinds(guarded: Guarded) -> list[str]:
    return [kind for kind, _ in guarded.seen.events if kind != "identity_refused"]


def test_keys_are_read_again_when_their_file_changes(
    identities: Identities, guarded: Guarded
) -> None:
    identities.look()
    assert kinds(guarded) == []
    guarded.keys_file.write_bytes(guarded.issuer.public_pem("RS256"))
    identities.look()
    assert kinds(guarded) == ["identity_keys_reloaded"]
    assert found_by(identities, guarded, "RS256")
    assert found_by(identities, guarded, "ES256") is None


def test_bad_file_is_reported_and_the_old_keys_stay(
    identities: Identities, guarded: Guarded
) -> None:
    guarded.keys_file.write_text("")
    identities.look()
    assert kinds(guarded) == ["configuration_reload_refused"]
    assert found_by(identities, guarded, "ES256")
    identities.look()
    assert len(kinds(guarded)) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is empty"),
        ("{}", "neither PEM nor a JWK set"),
        ('{"keys": 5}', "neither PEM nor a JWK set"),
        ('{"keys": []}', "holds no RSA, P-256 or Ed25519 key"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "holds no RSA, P-256 or Ed25519 key"),
        ('{"keys": [{"kty": "EC", "d": "x"}]}', "holds a private key"),
        ("[" * 5_000, "neither PEM nor a JWK set"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "no public key in PEM"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "holds a private key"),
    ],
)
def test_file_of_keys_that_cannot_be_used_is_refused_with_the_reason(
    identities: Identities, guarded: Guarded, content: str, text: str
) -> None:
    guarded.keys_file.write_text(content)
    with pytest.raises(ConfigError, match=text) as refusal:
        identities.set_options(guarded.options)
    assert str(guarded.keys_file) in str(refusal.value)
    assert "auth.jwt.keys.file" in str(refusal.value)
    assert found_by(identities, guarded, "ES256")


def test_keys_for_other_uses_are_left_out(identities: Identities, guarded: Guarded) -> None:
    issuer = guarded.issuer
    members = [
        issuer.jwk("RS256", use="enc"),
        issuer.jwk("ES256", alg="ES384"),
        issuer.jwk("EdDSA", alg="EdDSA"),
    ]
    guarded.write_keys(members)
    identities.set_options(guarded.options)
    assert found_by(identities, guarded, "EdDSA")
    assert not found_by(identities, guarded, "RS256")
    assert not found_by(identities, guarded, "ES256")


async def test_operators_need_no_token(identities: Identities) -> None:
    caller = Caller("h:1", "h", "", has_tls=False, certificate=None)
    done: asyncio.Future[Identity | LiftbridgeError] = asyncio.get_running_loop().create_future()
    identity = identities.operators.identify(caller, b"Bearer x", done.set_result)
    assert identity is not None
    assert identity.principal.name == ""

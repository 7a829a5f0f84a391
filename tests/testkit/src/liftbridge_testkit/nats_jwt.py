"""Operator mode of NATS for tests: keys, JWTs and the files that servers and users need.

    operator = Operator()
    account = operator.account("A")
    config = operator.server_config()               # for nats-server
    path.write_text(account.user("broker").creds()) # a .creds file

Layout of the tokens: NATS documentation, "JWTs". They are signed with Ed25519 nkeys.
"""

import base64
import hashlib
import json
import os
import time

import nkeys  # type: ignore[import-untyped]  # it has none


class KeyPair:
    """An nkey.

    Attributes:
        seed: Its seed, as text.
        public: Its public key, as text.
    """

    def __init__(self, prefix: int) -> None:
        """Make one of a kind (`nkeys.PREFIX_BYTE_*`)."""
        seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
        self.seed = seed.decode()
        self.public: str = nkeys.from_seed(bytearray(seed)).public_key.decode()

    def sign(self, data: bytes) -> bytes:
        """Return the signature of `data`."""
        signature: bytes = nkeys.from_seed(bytearray(self.seed.encode())).sign(data)
        return signature


def user_key() -> KeyPair:
    """Return the key of a user, for authentication by nkey alone."""
    return KeyPair(nkeys.PREFIX_BYTE_USER)


class User:
    """A user of an account."""

    def __init__(self, jwt: str, key: KeyPair) -> None:
        self.jwt = jwt
        self.key = key

    def creds(self) -> str:
        """Return the text of its `.creds` file."""
        return (
            f"-----BEGIN NATS USER JWT-----\n{self.jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "NKEY Seed printed below can be used to sign and prove identity.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self.key.seed}\n------END USER NKEY SEED------\n\n"
            "*************************************************************\n"
        )


class Account:
    """An account, signed by an operator."""

    def __init__(self, name: str, operator_key: KeyPair) -> None:
        self._key = KeyPair(nkeys.PREFIX_BYTE_ACCOUNT)
        limits = dict.fromkeys(
            ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1
        )
        nats = {"limits": {**limits, "wildcards": True}, "type": "account", "version": 2}
        self.public = self._key.public
        self.jwt = _token(operator_key, self.public, name, nats)

    def user(self, name: str, *, expires_in_s: int = 0) -> User:
        """Return a user; 0 never expires."""
        key = user_key()
        nats = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        jwt = _token(
            self._key, key.public, name, {**nats, "type": "user", "version": 2}, expires_in_s
        )
        return User(jwt, key)


class Operator:
    """The root of trust of a server."""

    def __init__(self) -> None:
        self._key = KeyPair(nkeys.PREFIX_BYTE_OPERATOR)
        self._accounts: list[Account] = []

    def account(self, name: str) -> Account:
        """Return a new account, known to servers configured after this call."""
        account = Account(name, self._key)
        self._accounts.append(account)
        return account

    def server_config(self) -> str:
        """Return the configuration of a server that trusts this operator."""
        jwt = _token(self._key, self._key.public, "O", {"type": "operator", "version": 2})
        preload = "\n".join(f"  {account.public}: {account.jwt}" for account in self._accounts)
        return f"operator: {jwt}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"


def _token(
    issuer: KeyPair, subject: str, name: str, nats: dict[str, object], expires_in_s: int = 0
) -> str:
    """Return a signed JWT."""
    now = time.time_ns() // 1_000_000_000
    claims: dict[str, object] = {
        "iat": now,
        "iss": issuer.public,
        "name": name,
        "sub": subject,
        "nats": nats,
    }
    if expires_in_s:
        claims["exp"] = now + expires_in_s
    digest = hashlib.new("sha512_256", json.dumps(claims).encode()).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    head = _part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = head + "." + _part(json.dumps(claims).encode())
    return body + "." + _part(issuer.sign(body.encode()))


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")

"""Credentials for a NATS server, read again for each connection so that they can rotate.

Error texts name files and settings, never their content.
"""

import re
import ssl
from dataclasses import dataclass, field
from typing import Final

from liftbridge_broker.adapters.nats.options import NatsOptions
from liftbridge_broker.adapters.secret_file import read_secret
from liftbridge_broker.errors import ConfigError

_JWT: Final = re.compile(r"-+BEGIN NATS USER JWT-+\s+([A-Za-z0-9_.\-]+)\s+-+END NATS USER JWT-+")
_SEED: Final = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(S[A-Z2-7]+)\s+-+END USER NKEY SEED-+")
_SEED_ALONE: Final = re.compile(r"^(SU[A-Z2-7]+)\s*$", re.MULTILINE)


class CredentialsError(Exception):
    """A file with credentials or certificates is unusable; it may be repaired at any time."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of one connection; empty texts are unset.

    Attributes:
        user: User name, with `password`.
        password: Password.
        token: Token.
        seed: Seed of a user nkey.
        jwt: JWT of the user, with `seed`.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    seed: str = field(default="", repr=False)
    jwt: str = field(default="", repr=False)


def read_credentials(options: NatsOptions) -> Credentials:
    """Read the credentials that the options name.

    Raises:
        CredentialsError: A file cannot be read or has other content.
    """
    if options.credentials_file:
        text = _read(options.credentials_file, "nats.credentials.file")
        jwt, seed = _JWT.search(text), _SEED.search(text)
        if jwt is None or seed is None:
            raise CredentialsError(
                f"nats.credentials.file: {options.credentials_file} lacks a user JWT or a seed"
            )
        return Credentials(jwt=jwt.group(1), seed=seed.group(1))
    if options.nkey_seed_file:
        text = _read(options.nkey_seed_file, "nats.nkey.seed.file")
        alone = _SEED_ALONE.search(text)
        if alone is None:
            raise CredentialsError(
                f"nats.nkey.seed.file: {options.nkey_seed_file} contains no user seed"
            )
        return Credentials(seed=alone.group(1))
    if options.token or options.token_file:
        token = options.token
        if options.token_file:
            token = _read(options.token_file, "nats.token.file").rstrip("\r\n")
        return Credentials(token=token)
    password = options.password
    if options.password_file:
        password = _read(options.password_file, "nats.password.file").rstrip("\r\n")
    return Credentials(user=options.user, password=password)


def tls_context(options: NatsOptions, *, is_demanded: bool) -> ssl.SSLContext | None:
    """Create the TLS context for a connection, `None` if nothing requires TLS.

    Args:
        options: Files.
        is_demanded: Whether the URL requires TLS.

    Raises:
        CredentialsError: A file cannot be read or is invalid.
    """
    if not is_demanded and not options.has_tls_files:
        return None
    try:
        context = ssl.create_default_context(cafile=options.tls_ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if options.tls_cert:
            # The empty password keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(options.tls_cert, options.tls_key, password=bytes)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (options.tls_ca, options.tls_cert, options.tls_key)))
        raise CredentialsError(f"nats.tls: cannot use {files}: {error}") from error
    return context


def _read(path: str, key: str) -> str:
    """Read the text of a small file."""
    try:
        return read_secret(path, key)
    except ConfigError as error:
        raise CredentialsError(error.text) from error

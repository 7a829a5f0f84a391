"""Secrets that live in files: read when they are needed, so that a rotated one is taken over."""

from pathlib import Path
from typing import Final

from liftbridge_broker.config.options import NatsOptions
from liftbridge_broker.errors import ConfigError

SECRET_BYTES_MAX: Final = 65_536


def nats_password(nats: NatsOptions) -> str:
    """Password for NATS, from its file when one is named.

    Raises:
        ConfigError: The file cannot be read; the text never holds what stands in it.
    """
    return _read(nats.password_file, "nats.password.file") if nats.password_file else nats.password


def nats_token(nats: NatsOptions) -> str:
    """Token for NATS, from its file when one is named.

    Raises:
        ConfigError: As `nats_password`.
    """
    return _read(nats.token_file, "nats.token.file") if nats.token_file else nats.token


def _read(path: str, key: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error
    if len(data) > SECRET_BYTES_MAX:
        raise ConfigError(f"{key}: {path} is larger than {SECRET_BYTES_MAX} bytes")
    try:
        secret = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        # Not chained: the error object carries the bytes of the secret.
        raise ConfigError(f"{key}: {path} is not UTF-8") from None
    if not secret:
        raise ConfigError(f"{key}: {path} is empty")
    return secret

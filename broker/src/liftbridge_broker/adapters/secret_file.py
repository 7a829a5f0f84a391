"""Reads a small file that holds a secret: bounded, and never quoted in an error."""

from pathlib import Path
from typing import Final

from liftbridge_broker.errors import ConfigError

SECRET_BYTES_MAX: Final = 65_536


def read_secret(path: str, key: str) -> str:
    """Read the secret in a file.

    Args:
        path: The file.
        key: Setting that names it, for errors.

    Raises:
        ConfigError: The file cannot be read, is too large, not text, or empty.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error
    if len(data) > SECRET_BYTES_MAX:
        raise ConfigError(f"{key}: {path} is larger than {SECRET_BYTES_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # Not chained: the error object contains the bytes of the secret.
        raise ConfigError(f"{key}: {path} is not UTF-8") from None
    if not text.strip():
        raise ConfigError(f"{key}: {path} is empty")
    return text

"""The bearer token of a client: checked, read again when its file changes, put into calls."""

from pathlib import Path
from typing import Final

from liftbridge_client.errors import UsageError
from liftbridge_client.model import Token

TOKEN_BYTES_MAX: Final = 8_192
"""Longest token that brokers take."""

Metadata = tuple[tuple[str, str], ...]


class Bearer:
    """Metadata of calls with a token.

    Args:
        token: The token; `None` for none.
        is_encrypted: Whether the connections use TLS.
    """

    def __init__(self, token: Token | None, *, is_encrypted: bool) -> None:
        self._token = token
        self._is_encrypted = is_encrypted
        self._seen: tuple[int, int] | None = None
        self._metadata: Metadata | None = None

    def open(self) -> None:
        """Read and check the token.

        Raises:
            UsageError: There is no token, it cannot be one, or it would be sent over plaintext.
        """
        token = self._token
        if token is None:
            return
        if bool(token.value) == (token.file is not None):
            raise _refusal("needs either `value` or `file`", "Give one of them.")
        if not (self._is_encrypted or token.allows_plain):
            raise _refusal(
                "is not sent over plaintext, where others can read it",
                "Connect by TLS, or allow it: `allows_plain` of Token, `plain_token` of a profile.",
            )
        if token.file is None:
            self._metadata = _metadata_of(token.value, "value")
        else:
            self._seen = _state(token.file)
            self._metadata = _read(token.file)

    def metadata(self) -> Metadata | None:
        """Return the metadata of the next call.

        While a changed file cannot be read, the token before stays in use: it may still be valid.
        """
        if self._token is not None and self._token.file is not None:
            self._look(self._token.file)
        return self._metadata

    def _look(self, path: Path) -> None:
        try:
            seen = _state(path)
            if seen != self._seen:
                self._metadata, self._seen = _read(path), seen
        except UsageError:
            return


def _state(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise _refusal(f"cannot read {path}: {error.strerror}", _FILE_ADVICE) from error
    return status.st_ino, status.st_mtime_ns


_FILE_ADVICE: Final = "Correct the path, or permit this user to read the file."


def _read(path: Path) -> Metadata:
    try:
        with path.open("rb") as file:
            data = file.read(TOKEN_BYTES_MAX + 2)
    except OSError as error:
        raise _refusal(f"cannot read {path}: {error.strerror}", _FILE_ADVICE) from error
    return _metadata_of(data.decode("latin-1").strip(), f"file {path}")


def _metadata_of(token: str, origin: str) -> Metadata:
    if not token or len(token) > TOKEN_BYTES_MAX or not all("!" <= one <= "~" for one in token):
        raise _refusal(
            f"of its {origin} must be 1 to {TOKEN_BYTES_MAX} printable characters without spaces",
            "Give the token alone, without `Bearer`.",
        )
    return (("authorization", f"Bearer {token}"),)


def _refusal(text: str, advice: str) -> UsageError:
    error = UsageError(f"token: {text}")
    error.advice = advice
    return error

"""API tokens: the text `lbt_<id>_<secret><check>`, which a client presents as a bearer token.

The prefix lets scanners of source code find leaked tokens. The check sum, CRC-32 of all before it
in six digits of base 62, tells a mistyped or cut token from a wrong one without any look-up, as in
GitHub's tokens.
"""

from typing import Final, NamedTuple
from zlib import crc32

PREFIX: Final = "lbt_"
ID_LENGTH: Final = 12
SECRET_LENGTH: Final = 40
"""Length of the secret: 238 random bits."""

CHECK_LENGTH: Final = 6
LENGTH: Final = len(PREFIX) + ID_LENGTH + 1 + SECRET_LENGTH + CHECK_LENGTH

ID_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
SECRET_DIGITS: Final = ID_DIGITS + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ID_DIGITS: Final = frozenset(ID_DIGITS)
_SECRET_DIGITS: Final = frozenset(SECRET_DIGITS)


class ApiToken(NamedTuple):
    """A token with a valid form.

    Attributes:
        token_id: Public part, which names it.
        secret: Secret part; never stored, logged or shown again.
    """

    token_id: str
    secret: str

    def __repr__(self) -> str:
        """Return a text without the secret."""
        return f"ApiToken({self.token_id!r})"

    @property
    def text(self) -> str:
        """The whole token."""
        checked = f"{PREFIX}{self.token_id}_{self.secret}"
        return checked + _check_of(checked)


def parse_token(text: str) -> ApiToken | None:
    """Read a token; None if it is mistyped, cut, or anything else than a token."""
    if len(text) != LENGTH or not text.startswith(PREFIX):
        return None
    checked, check = text[:-CHECK_LENGTH], text[-CHECK_LENGTH:]
    token_id, separator, secret = checked.removeprefix(PREFIX).partition("_")
    if not is_token_id(token_id) or not separator or not _SECRET_DIGITS.issuperset(secret):
        return None
    return ApiToken(token_id, secret) if check == _check_of(checked) else None


def is_token_id(text: str) -> bool:
    """Return whether a text has the form of the id of a token."""
    return len(text) == ID_LENGTH and _ID_DIGITS.issuperset(text)


def _check_of(text: str) -> str:
    """Return the check sum of a text."""
    number, digits = crc32(text.encode()), ""
    for _ in range(CHECK_LENGTH):
        number, digit = divmod(number, len(SECRET_DIGITS))
        digits = SECRET_DIGITS[digit] + digits
    return digits

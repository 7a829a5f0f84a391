"""Keeps secrets out of all log output: by field name, by form, and by value."""

import json
import re
from collections.abc import MutableMapping
from typing import Any, Final

MASK: Final = "***"
SECRETS_MAX: Final = 64
SECRET_LENGTH_MIN: Final = 4

_SECRET_FIELD: Final = re.compile(
    r"passw|passphrase|secret|seed|credential|authorization|nkey|jwt|auth_token|private_key",
    re.IGNORECASE,
)
_FORMS: Final = (
    (re.compile(r"(\w+://)[^/@\s'\"]+@"), r"\1" + MASK + "@"),
    (re.compile(r"\bS[ACNOUX][A-Z2-7]{56}\b"), MASK),  # nkey seeds
    (re.compile(r"\blbt_[0-9a-z]{12}_\w+"), MASK),  # API tokens
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"), MASK),  # JSON web tokens
    (
        re.compile(r"-----BEGIN [A-Z ]*(?:PRIVATE KEY|SEED)-----.*?(?:-----END|$)", re.DOTALL),
        MASK,
    ),
)


class Redactor:
    """Masks secrets in log events.

    A file with a secret may be read again while the broker runs, so values are added when they
    become known; beyond `SECRETS_MAX` values, the oldest are dropped.
    """

    def __init__(self) -> None:
        self._secrets: dict[str, None] = {}

    def add(self, secret: str) -> None:
        """Mask this value wherever it appears; very short values would mask ordinary words."""
        if len(secret) < SECRET_LENGTH_MIN:
            return
        for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]):
            self._secrets[form] = None
        while len(self._secrets) > SECRETS_MAX:
            del self._secrets[next(iter(self._secrets))]

    def mask_fields(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Processor of structlog: mask fields whose names suggest a secret, and known values.

        Values are masked before rendering, because each rendering adds escapes. They are masked
        again in the finished line, which contains tracebacks and the contents of lists.
        """
        del logger, method
        for name, value in event.items():
            if _SECRET_FIELD.search(name):
                event[name] = MASK
            elif isinstance(value, str):
                event[name] = self._without_secrets(value)
        return event

    def mask_text(self, text: str) -> str:
        """Mask known values and forms in a finished line, including tracebacks."""
        text = self._without_secrets(text)
        for form, replacement in _FORMS:
            text = form.sub(replacement, text)
        return text

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

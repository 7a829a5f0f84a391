"""Removal of passwords, tokens, keys, and values that may be one from a bundle.

Secrets are never read. This finds what users wrote elsewhere: variables of pods, settings, texts of
logs. It removes too much rather than too little; names of Secrets and of their keys stay.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

REDACTED: Final = "[redacted]"

_WORDS: Final = (
    r"pass(?:word|wd|phrase)?|secret|token|credentials?|private[_.-]?key|api[_.-]?key|"
    r"access[_.-]?key|authorization|nkey|seed"
)
_SECRET_KEY: Final = re.compile(rf"(?:{_WORDS})", re.IGNORECASE)
_NAMING: Final = re.compile(r"(?:name|namespace|ref|path|version|uid|id)s?$", re.IGNORECASE)
"""Suffixes of keys that hold a name and not the secret, such as `secretName`."""

_OWN_VARIABLES: Final = re.compile(r"(?:LIFTBRIDGE|POD|KUBERNETES)_\w+")
"""Variables that the operator and Kubernetes themselves set."""

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_TEXTS: Final = (
    re.compile(r"-----BEGIN ([A-Z ]*(?:KEY|JWT|SEED))-----.*?(?:-----+END \1-----+|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
    re.compile(r"\bS[A-Z2-7]{57}\b"),
    re.compile(r"(?<=://)[^/\s@\"']+(?=@)"),
    re.compile(r"(?<=bearer )[\w.~+/=-]{6,}|(?<=basic )[\w.~+/=-]{6,}", re.IGNORECASE),
    re.compile(
        rf"(?P<kept>[\"']?(?<![\w.-])[\w.-]*(?:{_WORDS})[\w.-]*[\"']?[ \t]*[:=][ \t]*)"
        r"(?:\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|(?!\[redacted\])[^\s,;}&\]\"'{\[]+)",
        re.IGNORECASE,
    ),
)


class Redactor:
    """Removes secrets from objects and texts.

    Attributes:
        count: Number removed so far.
    """

    def __init__(self) -> None:
        """Start with a count of 0."""
        self.count = 0

    def text(self, text: str) -> str:
        """Return a text without anything that looks like a secret."""
        for pattern in _TEXTS:
            text = pattern.sub(self._instead, text)
        return text

    def _instead(self, found: re.Match[str]) -> str:
        self.count += 1
        return (found.groupdict().get("kept") or "") + REDACTED

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets and without managed fields."""
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return self._string(value) if isinstance(value, str) else value

    def _string(self, text: str) -> str:
        """Redact a text; if it is JSON, redact its content."""
        if text[:1] in ("{", "["):
            try:
                return json.dumps(self.value(json.loads(text)), sort_keys=True)
            except ValueError:
                pass
        return self.text(text)

    def _mapping(self, value: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        is_variable = isinstance(value.get("name"), str) and isinstance(value.get("value"), str)
        for key, one in value.items():
            if key in ("managedFields", _LAST_APPLIED):
                continue
            is_hidden = _is_secret(key) or (is_variable and key == "value" and _hides(value))
            if is_hidden and isinstance(one, str | int | float) and not isinstance(one, bool):
                self.count += 1
                found[key] = REDACTED
            else:
                found[key] = self.value(one)
        return found


def _is_secret(key: str) -> bool:
    return _SECRET_KEY.search(key) is not None and _NAMING.search(key) is None


def _hides(variable: Mapping[str, Any]) -> bool:
    """Return whether an environment variable may hold a secret: any unknown one may."""
    name = str(variable["name"])
    return _SECRET_KEY.search(name) is not None or _OWN_VARIABLES.fullmatch(name) is None

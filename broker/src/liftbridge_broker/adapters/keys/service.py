"""A program that asks a key service: Vault, the service of a cloud, a security module.

It is run for each request, without a shell and without arguments, and gets one JSON object on its
standard input: `{"operation": "list"}`, or, with one item for each data key::

    {"operation": "wrap", "items": [{"key": "main", "purpose": "orders", "data": "c2Vj..."}]}

`data` is base64: the data key for `wrap`, the wrapped key for `unwrap`. It answers with one JSON
object on its standard output and code 0: `{"keys": ["main"]}` with the ids of its master keys, the
preferred one first; or `{"items": [...]}` with an item for each, in order, `{"data": "..."}` or
`{"error": "..."}`. Its standard error is shown in errors, so it must not print keys there. It is
killed after `TIMEOUT_SECONDS`.
"""

import base64
import binascii
import json
import subprocess
from collections.abc import Sequence
from typing import Final, NamedTuple

from liftbridge_broker.errors import KeyUnavailableError
from liftbridge_broker.model.keys import (
    MASTER_KEYS_MAX,
    WRAPPED_BYTES_MAX,
    MasterKey,
    fault_of_masters,
)

SETTING: Final = "encryption.keys.command"
TIMEOUT_SECONDS: Final = 10
ITEMS_MAX: Final = 100
"""Data keys in one request."""
ANSWER_BYTES_MAX: Final = 4 * ITEMS_MAX * WRAPPED_BYTES_MAX
_SHOWN_LENGTH_MAX: Final = 200


class Item(NamedTuple):
    """A data key to wrap or to unwrap."""

    key_id: str
    data: bytes
    purpose: str


Outcome = bytes | KeyUnavailableError


def list_keys(program: str) -> tuple[MasterKey, ...]:
    """Return the master keys of a service; blocking.

    Raises:
        KeyUnavailableError: The program failed, or its answer is invalid.
    """
    return keys_of(program, _run(program, {"operation": "list"}, TIMEOUT_SECONDS))


def keys_of(program: str, answer: bytes) -> tuple[MasterKey, ...]:
    """Return the master keys in an answer; errors as for `list_keys`."""
    ids = _object(program, answer).get("keys")
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise _wrong(program, "`keys` is not a list of texts")
    keys = tuple(MasterKey(key_id, b"") for key_id in ids[: MASTER_KEYS_MAX + 1])
    try:
        fault = fault_of_masters(keys)
    except UnicodeEncodeError:
        fault = "an id is no text"  # a lone surrogate
    if fault:
        raise _wrong(program, f"keys: {fault}")
    return keys


def ask(
    program: str,
    operation: str,
    items: Sequence[Item],
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[Outcome]:
    """Wrap or unwrap at most `ITEMS_MAX` data keys; blocking.

    Returns:
        An outcome for each item, in order.

    Raises:
        KeyUnavailableError: The program failed, or its answer is invalid as a whole.
    """
    request = {
        "operation": operation,
        "items": [
            {"key": key_id, "purpose": purpose, "data": base64.b64encode(data).decode()}
            for key_id, data, purpose in items
        ],
    }
    return outcomes_of(program, _run(program, request, timeout_seconds), len(items))


def outcomes_of(program: str, answer: bytes, count: int) -> list[Outcome]:
    """Return the outcomes in an answer; errors as for `ask`."""
    found = _object(program, answer).get("items")
    if not isinstance(found, list) or len(found) != count:
        raise _wrong(program, f"`items` is not a list of {count}")
    return [_outcome(program, one) for one in found]


def _outcome(program: str, item: object) -> Outcome:
    if not isinstance(item, dict):
        return _wrong(program, "an item is not an object")
    error, data = item.get("error"), item.get("data")
    if error is not None:
        return KeyUnavailableError(f"{program}: {_shown(str(error))}")
    if not isinstance(data, str):
        return _wrong(program, "an item without data")
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not 0 < len(found) <= WRAPPED_BYTES_MAX:
        return _wrong(program, f"data is not base64 of 1 to {WRAPPED_BYTES_MAX} bytes")
    return found


def _run(program: str, request: object, timeout_seconds: float) -> bytes:
    """Run the program with a request; return its answer."""
    try:
        done = subprocess.run(  # noqa: S603 - the program of the setting
            [program],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
    except OSError as error:
        raise KeyUnavailableError(f"{SETTING}: cannot run {program}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        # Not chained: the error holds the output, which may be a key.
        raise KeyUnavailableError(
            f"{SETTING}: {program} did not answer within {timeout_seconds} s"
        ) from None
    if done.returncode:
        reason = _shown(done.stderr.decode(errors="replace"))
        raise KeyUnavailableError(f"{SETTING}: {program} ended with {done.returncode}: {reason}")
    return done.stdout


def _object(program: str, answer: bytes) -> dict[str, object]:
    if len(answer) > ANSWER_BYTES_MAX:
        raise _wrong(program, f"it is larger than {ANSWER_BYTES_MAX} bytes")
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        # Not chained: the error holds the answer.
        raise _wrong(program, "it is not JSON") from None
    if not isinstance(found, dict):
        raise _wrong(program, "it is not an object")
    return found


def _wrong(program: str, reason: str) -> KeyUnavailableError:
    return KeyUnavailableError(f"{SETTING}: the answer of {program} is invalid: {reason}")


def _shown(text: str) -> str:
    """Return a text in one line, cut."""
    return " ".join(text.split())[:_SHOWN_LENGTH_MAX]

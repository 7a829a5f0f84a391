"""Grammar of stream names, NATS subjects and queue groups, and how subjects match.

The original checks subjects little and names not at all (defect D18 in
docs/reference/compatibility.md); here all of them follow one strict grammar, because they become
protocol lines of NATS, keys of cursors and parts of metrics. Where the original refuses, its exact
text is used; our additional rules append a reason to the same words.
"""

from typing import Final

from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.ids import PartitionNumber

NAME_BYTES_MAX: Final = 255
"""Longest stream name or queue group, in bytes of UTF-8."""

SUBJECT_BYTES_MAX: Final = 1_024
"""Longest subject of a stream, in bytes of UTF-8: well below a NATS control line of 4,096."""

CURSOR_ID_BYTES_MAX: Final = 1_024
"""Longest name of a cursor, in bytes of UTF-8."""

INTERNAL_ROOT: Final = "_LIFTBRIDGE"
"""First token of the subjects between brokers, of every cluster (ADR 0015)."""

CURSORS_STREAM: Final = "__cursors"
ACTIVITY_STREAM: Final = "__activity"
RESERVED_STREAMS: Final = (ACTIVITY_STREAM, CURSORS_STREAM)
"""Streams that the broker itself maintains; clients may only read them."""

_ONE: Final = "*"
_REST: Final = ">"


def check_stream_name(name: str) -> None:
    """Refuse a stream name that breaks the grammar.

    A name is 1 to 255 bytes of printable characters without blanks, `*`, `>` and `,` (which
    separates the parts of a cursor key), not starting with `$`, without empty tokens between dots.

    Raises:
        InvalidRequestError: `Name cannot be empty`, or `Name is invalid: <rule>`.
    """
    if not name:
        raise InvalidRequestError("Name cannot be empty")
    fault = _length_fault(name, NAME_BYTES_MAX) or _name_fault(name) or _text_fault(name)
    if fault:
        raise InvalidRequestError(f"Name is invalid: {fault}")


def _name_fault(name: str) -> str:
    """The broken rule that is specific to names; empty when none."""
    if any(character in name for character in "*>,"):
        return "it contains '*', '>' or ','"
    if name.startswith("$"):
        return "it starts with '$'"
    if "" in name.split("."):
        return "it has an empty token"
    return ""


def check_group(group: str) -> None:
    """Refuse a queue group that is not one printable word of at most 255 bytes; empty means none.

    Raises:
        InvalidRequestError: `Group is invalid: <rule>`.
    """
    fault = _length_fault(group, NAME_BYTES_MAX) or _text_fault(group)
    if fault:
        raise InvalidRequestError(f"Group is invalid: {fault}")


def check_subject(subject: str) -> None:
    """Refuse a subject a stream cannot attach to.

    Wildcards are allowed: `*` as a whole token, `>` as the last one.

    Raises:
        InvalidRequestError: `Subject is invalid` for what the original refuses (empty, blanks, an
            empty token), followed by `: <rule>` for a stricter rule of ours.
    """
    fault = _length_fault(subject, SUBJECT_BYTES_MAX)
    if not fault:
        tokens = subject.split(".")
        if "" in tokens or any(blank in subject for blank in " \t\r\n"):
            raise InvalidRequestError("Subject is invalid")
        fault = _subject_fault(tokens) or _text_fault(subject)
    if fault:
        raise InvalidRequestError(f"Subject is invalid: {fault}")


def _subject_fault(tokens: list[str]) -> str:
    """The broken rule that is specific to subjects; empty when none."""
    if tokens[0].startswith("$"):
        return "it starts with '$'"
    for position, token in enumerate(tokens):
        if _ONE in token and token != _ONE:
            return "'*' must be a whole token"
        if _REST in token and (token != _REST or position != len(tokens) - 1):
            return "'>' must be the last token"
    return ""


def _length_fault(text: str, bytes_max: int) -> str:
    """Fault of a text that is too long, checked before its content; empty when it is not."""
    if len(text) > bytes_max or len(text.encode()) > bytes_max:
        return f"it is longer than {bytes_max} bytes"
    return ""


def _text_fault(text: str) -> str:
    """The broken rule common to all texts: printable, no blanks; empty when none."""
    # `isprintable` refuses control, format and separator characters, all blanks but the space.
    if " " in text or not text.isprintable():
        return "it contains a blank or a character that cannot be printed"
    return ""


def internal_subject(namespace: str, *tokens: str) -> str:
    """Subject of the brokers of one cluster, below the root that all clusters share."""
    return ".".join((INTERNAL_ROOT, namespace, *tokens))


def partition_subject(subject: str, number: PartitionNumber) -> str:
    """NATS subject of a partition: the stream's own for number 0, `subject.number` for others."""
    return subject if number == 0 else f"{subject}.{number}"


def is_publishable(subject: str) -> bool:
    """Return whether a subject or inbox given by a client may appear in a `PUB` line.

    Wildcards are allowed: the original publishes to such a subject literally.
    """
    try:
        check_subject(subject)
    except InvalidRequestError:
        return False
    return True


def has_wildcard(subject: str) -> bool:
    """Return whether a subject that passed `check_subject` matches more than itself."""
    return _ONE in subject or subject[-1:] == _REST


def matches(pattern: str, subject: str) -> bool:
    """Return whether NATS delivers a message published to `subject` to a subscription to `pattern`.

    A wildcard in `subject` is an ordinary token, as for a NATS server: it matches the same token
    and wildcards of the pattern only.
    """
    if pattern == subject:
        return True
    wanted = pattern.split(".")
    given = subject.split(".")
    for position, token in enumerate(wanted):
        if token == _REST:
            return len(given) > position
        if position >= len(given) or token not in (_ONE, given[position]):
            return False
    return len(given) == len(wanted)

"""Why the API server refuses a write, told apart by its words, as waits of the catalogue."""

from dataclasses import replace
from typing import Final

from liftbridge_operator.kube.errors import (
    ApplyConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    UnansweredError,
)
from liftbridge_operator.planning.refusals import Refusal

_WORDS: Final = (
    ("exceeded quota", "QuotaExceeded"),
    ("quota", "QuotaExceeded"),
    ("must support resize", "VolumeCannotGrow"),
    ("port is already allocated", "PortTaken"),
    ("not in the valid range", "PortTaken"),
    ("cannot ", "MissingRights"),
)
"""Parts of what it says, in this order; of a missing right: `cannot patch resource "x"`."""

_ADMISSION: Final = (
    "admission webhook",
    "validatingadmissionpolicy",
    "denied the request",
    "failed calling webhook",
)
"""Whoever admits writes may refuse with any status; one that does not answer refuses with 500."""


def refusal_of(error: KubeError) -> Refusal | None:
    """What was said against a write; None for what is no refusal but a change or a silence.

    A write that hangs while reads are answered is one: somebody who has to admit it is silent.
    """
    said = _said(error)
    is_untried = isinstance(error, UnansweredError) and not error.is_sent
    return replace(said, is_tried=False) if said is not None and is_untried else said


def _said(error: KubeError) -> Refusal | None:
    text = error.message.lower()
    if any(words in text for words in _ADMISSION):
        return Refusal("AdmissionDenied", error.message)
    if isinstance(error, UnansweredError):
        return Refusal("NoAnswer", error.message)
    if isinstance(error, ApplyConflictError):
        held = ", ".join(f"{one.field} of {one.manager}" for one in error.fields[:3])
        return Refusal("Conflict", f"{held}: {error.message}")
    if isinstance(error, ForbiddenError):
        found = (reason for words, reason in _WORDS if words in text)
        return Refusal(next(found, "AdmissionDenied"), error.message)
    if isinstance(error, InvalidError):
        found = (reason for words, reason in _WORDS[1:-1] if words in text)
        return Refusal(next(found, "UnsupportedChange"), error.message)
    return None

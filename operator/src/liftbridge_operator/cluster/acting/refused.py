"""Classify refusals of the API server by their text, as waits of the catalogue."""

from dataclasses import replace
from typing import Final

from liftbridge_operator.cluster.planning.refusals import Refusal
from liftbridge_operator.kube.errors import (
    ApplyConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    UnansweredError,
)

_WORDS: Final = (
    ("exceeded quota", "QuotaExceeded"),
    ("quota", "QuotaExceeded"),
    ("must support resize", "VolumeCannotGrow"),
    ("port is already allocated", "PortTaken"),
    ("not in the valid range", "PortTaken"),
    ("cannot ", "MissingRights"),
)
"""Parts of messages, in this order; a missing right reads `cannot patch resource "x"`."""

_ADMISSION: Final = (
    "admission webhook",
    "validatingadmissionpolicy",
    "denied the request",
    "failed calling webhook",
)
"""Admission may refuse with any HTTP status; a webhook that does not answer gives 500."""


def refusal_of(error: KubeError) -> Refusal | None:
    """Classify an error as a refusal; None for a concurrent change or an unanswered call.

    A write that hangs while reads are answered is a refusal: an admission webhook is silent.
    """
    refusal = _refusal(error)
    is_untried = isinstance(error, UnansweredError) and not error.is_sent
    return replace(refusal, is_tried=False) if refusal is not None and is_untried else refusal


def _refusal(error: KubeError) -> Refusal | None:
    text = error.message.lower()
    if any(words in text for words in _ADMISSION):
        return Refusal("AdmissionDenied", error.message)
    if isinstance(error, UnansweredError):
        return Refusal("NoAnswer", error.message)
    if isinstance(error, ApplyConflictError):
        held = ", ".join(f"{field.field} of {field.manager}" for field in error.fields[:3])
        return Refusal("Conflict", f"{held}: {error.message}")
    if isinstance(error, ForbiddenError):
        reasons = (reason for words, reason in _WORDS if words in text)
        return Refusal(next(reasons, "AdmissionDenied"), error.message)
    if isinstance(error, InvalidError):
        reasons = (reason for words, reason in _WORDS[1:-1] if words in text)
        return Refusal(next(reasons, "UnsupportedChange"), error.message)
    return None

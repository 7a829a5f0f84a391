"""The log: structlog on the standard library's handlers, to standard error.

Lines of kopf, aiohttp and asyncio pass the same processors, so all lines have the same form. Fields
with names of secrets are masked, and so is any text that looks like a secret.
"""

import logging
import re
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog

MASK: Final = "***"

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_SECRET_FIELD: Final = re.compile(
    r"passw|passphrase|secret|seed|credential|authorization|nkey|jwt|private_key|bearer",
    re.IGNORECASE,
)
_FORMS: Final = (
    (re.compile(r"(\w+://)[^/@\s'\"]+@"), r"\1" + MASK + "@"),
    (re.compile(r"\bS[ACNOUX][A-Z2-7]{56}\b"), MASK),  # nkey seeds
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"), MASK),  # JSON web tokens
    (re.compile(r"(?i)(bearer )[\w.~+/-]{8,}=*"), r"\1" + MASK),
    (
        re.compile(r"-----BEGIN [A-Z ]*(?:PRIVATE KEY|SEED)-----.*?(?:-----END|$)", re.DOTALL),
        MASK,
    ),
)
_MULTI_LINE_FIELDS: Final = frozenset({"exception", "stack"})
_TEXT_CHARACTERS_MAX: Final = 4_096

# kopf logs every event of every object, at levels of its choice.
_QUIET: Final = {
    "kopf": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "kubernetes": logging.CRITICAL,  # its errors are raised as well
}


def configure_logs(*, level: str, style: str, stream: TextIO) -> None:
    """Send all log events of the process to `stream`; replace any former configuration.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        style: `console` or `json`.
        stream: Usually standard error.
    """
    before: list[structlog.typing.Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        mask_fields,
        escape_controls,
    ]
    if style == "json":
        shown: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        plain = structlog.dev.plain_traceback
        colors = stream.isatty()
        shown = [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        _MaskingFormatter(
            foreign_pre_chain=before,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *shown],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])
    for name, quiet in _QUIET.items():
        logging.getLogger(name).setLevel(max(quiet, _LEVELS[level]))


def mask_fields(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Mask fields with the name of a secret; a structlog processor."""
    del logger, method
    for name in event:
        if _SECRET_FIELD.search(name):
            event[name] = MASK
    return event


def escape_controls(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Escape control characters, so that input starts no new line; a structlog processor."""
    del logger, method
    for name, value in event.items():
        if isinstance(value, str) and name not in _MULTI_LINE_FIELDS:
            text = value[:_TEXT_CHARACTERS_MAX]
            event[name] = text if text.isprintable() else repr(text)[1:-1]
    return event


def mask_text(text: str) -> str:
    """Mask all text that looks like a secret in a finished line, tracebacks included."""
    for form, replacement in _FORMS:
        text = form.sub(replacement, text)
    return text


class _MaskingFormatter(structlog.stdlib.ProcessorFormatter):
    """Masks secrets in the finished line, so that tracebacks are covered too."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a masked line."""
        return mask_text(super().format(record))

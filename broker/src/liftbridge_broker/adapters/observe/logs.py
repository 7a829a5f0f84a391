"""The log: structlog on the standard library's handlers.

Lines of the NATS client, aiohttp and asyncio pass the same processors, so all lines have one
format. Events are names with fields, written to standard error, as console text or as one JSON
object a line.
"""

import logging
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog

from liftbridge_broker.adapters.observe.redaction import Redactor

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
_MULTI_LINE_FIELDS: Final = frozenset({"exception", "stack"})
_COMMON_FIELDS: Final = ("timestamp", "level", "logger", "event")
_TEXT_LENGTH_MAX: Final = 4_096

# Libraries log every step at these levels; the broker has its own events for important steps. hpack
# logs every header with its value, and so the tokens of clients; any other library that sees client
# data may do the same.
_QUIET_LIBRARIES: Final = ("aiohttp", "asyncio", "hpack", "nats")


def configure_logs(*, level: str, style: str, stream: TextIO, redactor: Redactor) -> None:
    """Send all log events of the process to `stream`; replaces any earlier configuration.

    Args:
        level: `debug`, `info`, `warn` or `error`.
        style: `console` or `json`.
        stream: Usually standard error; colours are used when it is a terminal.
        redactor: Masks secrets in all output.
    """
    before: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        redactor.mask_fields,
        escape_controls,
    ]
    renderer: structlog.typing.Processor
    if style == "json":
        renderer = structlog.processors.JSONRenderer()
        formatting: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            put_common_fields_first,
        ]
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        formatting = []
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
    formatter = _RedactingFormatter(
        redactor,
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *before],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *formatting,
            renderer,
        ],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    set_level(level)


def set_level(level: str) -> None:
    """Set the lowest level that is written: `debug`, `info`, `warn` or `error`."""
    logging.getLogger().setLevel(_LEVELS[level])


def escape_controls(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Processor of structlog: no input may start a new line or move the cursor.

    Long texts are cut, since a peer may have sent them.
    """
    del logger, method
    for name, value in event.items():
        if isinstance(value, str) and name not in _MULTI_LINE_FIELDS:
            text = value if len(value) <= _TEXT_LENGTH_MAX else value[:_TEXT_LENGTH_MAX] + "..."
            event[name] = text if text.isprintable() else repr(text)[1:-1]
    return event


def put_common_fields_first(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Processor of structlog: put the fields of every line first."""
    del logger, method
    common = {name: event[name] for name in _COMMON_FIELDS if name in event}
    return {**common, **event}


class _RedactingFormatter(structlog.stdlib.ProcessorFormatter):
    """Masks secrets in the finished line, so that tracebacks are covered too."""

    def __init__(self, redactor: Redactor, **options: Any) -> None:
        super().__init__(**options)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line."""
        return self._redactor.mask_text(super().format(record))

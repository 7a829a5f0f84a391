"""One line and an exit code for an error within Spark.

Spark passes an error of a task or of a data source on as text, between tracebacks of Python and
Java.
"""

import re
import sys
from typing import Final

from liftbridge_client.cli import exits

MISSING: Final = 5
"""Exit code: records are missing."""

_LINE: Final = re.compile(r"^((?:\w+\.)*(\w*(?:Error|Exception))): (.+)$", re.MULTILINE)
"""Last line of a Python traceback."""

_CODES: Final = {
    "DataLossError": MISSING,
    "MissingError": MISSING,
    "OptionError": exits.USAGE,
    "PausedError": exits.REFUSED,
}
_STATEMENT: Final = (
    "AnalysisException",
    "ArithmeticException",
    "ArrayIndexOutOfBoundsException",
    "DateTimeException",
    "IllegalArgumentException",
    "NumberFormatException",
    "ParseException",
    "SparkRuntimeException",
)
"""Errors in a statement."""

_JAVA: Final = ("org.", "java.", "py4j.")
_CHARACTERS_MAX: Final = 1_000


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the errors that Spark raises; none if Spark was not used."""
    if "pyspark" not in sys.modules:
        return ()
    from pyspark.errors import PySparkException  # noqa: PLC0415 - heavy

    # Errors that PySpark does not translate; Spark Connect alone has no py4j.
    py4j = sys.modules.get("py4j.protocol")
    return (PySparkException,) if py4j is None else (PySparkException, py4j.Py4JError)


def failure_of(error: Exception) -> tuple[str, int]:
    """Return a one-line message for an error of Spark, and its exit code."""
    text = str(error)
    _, is_python, trace = text.partition("Traceback (most recent call last)")
    raised = [one for one in _LINE.findall(trace) if not one[0].startswith(_JAVA)]
    if is_python and raised:
        # The last error was caused by the errors before it.
        ours = [one for one in raised if "liftbridge" in one[0]]
        _, name, line = (ours or raised)[-1]
        return _short(line), _CODES.get(name, exits.UNHEALTHY)
    line = next(
        (written.strip() for written in text.splitlines() if written.strip()),
        type(error).__name__,
    )
    is_statement = any(one.__name__ in _STATEMENT for one in type(error).__mro__)
    return _short(line), exits.USAGE if is_statement else exits.UNHEALTHY


def _short(line: str) -> str:
    return line if len(line) <= _CHARACTERS_MAX else f"{line[:_CHARACTERS_MAX]}..."

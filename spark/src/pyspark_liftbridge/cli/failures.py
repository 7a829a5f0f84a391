"""What failed within Spark, in one line, with the exit code of its cause.

Spark carries an error of a task or of a data source as text, with tracebacks of Python and of Java
around it.
"""

import re
import sys
from typing import Final

from liftbridge_client.cli import exits

MISSING: Final = 5
"""Exit code: records are missing."""

_LINE: Final = re.compile(r"^((?:\w+\.)*(\w*(?:Error|Exception))): (.+)$", re.MULTILINE)
"""The last line of a traceback of Python."""

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
"""Errors of what a statement says."""

_JAVA: Final = ("org.", "java.", "py4j.")
_CHARACTERS_MAX: Final = 1_000


def spark_errors() -> tuple[type[Exception], ...]:
    """Errors that Spark raises; none when it was not used."""
    if "pyspark" not in sys.modules:
        return ()
    from pyspark.errors import PySparkException  # noqa: PLC0415 - heavy

    # What PySpark has not translated; it is not there with Spark Connect alone.
    py4j = sys.modules.get("py4j.protocol")
    return (PySparkException,) if py4j is None else (PySparkException, py4j.Py4JError)


def failure_of(error: Exception) -> tuple[str, int]:
    """The one line of an error of Spark, and its exit code."""
    text = str(error)
    _, is_python, trace = text.partition("Traceback (most recent call last)")
    raised = [one for one in _LINE.findall(trace) if not one[0].startswith(_JAVA)]
    if is_python and raised:
        # The last one was raised because of those before it.
        ours = [one for one in raised if "liftbridge" in one[0]]
        _, name, line = (ours or raised)[-1]
        return _short(line), _CODES.get(name, exits.UNHEALTHY)
    line = next((one.strip() for one in text.splitlines() if one.strip()), type(error).__name__)
    is_statement = any(one.__name__ in _STATEMENT for one in type(error).__mro__)
    return _short(line), exits.USAGE if is_statement else exits.UNHEALTHY


def _short(line: str) -> str:
    return line if len(line) <= _CHARACTERS_MAX else f"{line[:_CHARACTERS_MAX]}..."

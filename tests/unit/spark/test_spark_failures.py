"""Errors of Spark in one line, with the exit code of their cause."""

import pytest

from liftbridge_client.cli import exits
from pyspark_liftbridge.cli.failures import failure_of, spark_errors


class PySparkException(Exception):  # noqa: N818 - Spark's name
    pass


class AnalysisException(PySparkException):
    pass


class ParseException(AnalysisException):
    pass


TRACE = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan it: Traceback (most recent call last):
  File "/x/reading.py", line 1, in f
    raise {error}("...")
ValueError: an earlier one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/reading.py", line 2, in g
    raise
{error}: what happened: here
 SQLSTATE: 38000

\tat org.apache.spark.SomeException: java.Error: of Java
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("pyspark_liftbridge.source.reading.DataLossError", 5),
        ("pyspark_liftbridge.plan.options.OptionError", exits.USAGE),
        ("pyspark_liftbridge.source.cluster.PausedError", exits.REFUSED),
        ("pyspark_liftbridge.archive.errors.StoreError", exits.UNHEALTHY),
    ],
)
def test_cause_in_a_task_is_told(error, code):
    text = TRACE.format(error=error)
    assert failure_of(PySparkException(text)) == ("what happened: here", code)


@pytest.mark.parametrize(
    ("error", "told", "code"),
    [
        (
            ParseException("\n[PARSE_SYNTAX_ERROR] Syntax error at 'x'. (line 1)\n\n== SQL ==\nx"),
            "[PARSE_SYNTAX_ERROR] Syntax error at 'x'. (line 1)",
            2,
        ),
        (AnalysisException("[TABLE] no\nSearch path"), "[TABLE] no", 2),
        (PySparkException("Job aborted\n\tat java"), "Job aborted", 3),
        (PySparkException(""), "PySparkException", 3),
        (PySparkException("Traceback (most recent call last):\n  nothing"), "Traceback (most", 3),
        (PySparkException("x" * 5_000), "x" * 1_000 + "...", 3),
    ],
)
def test_other_errors_are_their_first_line(error, told, code):
    line, found = failure_of(error)
    assert line.startswith(told)
    assert len(line) <= 1_003
    assert found == code


def test_last_error_of_a_broker_is_told():
    trace = "Traceback (most recent call last):\nliftbridge_client.errors.RetriableError: away\n"
    assert failure_of(AnalysisException(trace)) == ("away", 3)


def test_without_spark_there_are_no_errors_of_it():
    assert all(issubclass(one, Exception) for one in spark_errors())

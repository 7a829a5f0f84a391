"""Spark sessions for the command, after a check for what Spark needs."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark_liftbridge.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMES: Final = {"spark.sql.session.timeZone": "UTC"}
"""Times are printed in UTC, as by the other commands."""


def session(master: str, conf: Mapping[str, str]) -> "SparkSession":
    """A new or existing session.

    Args:
        master: Where Spark runs, `local[2]` or the address of a cluster.
        conf: Further settings of Spark.

    Raises:
        JavaError: There is no Java that Spark runs on.
    """
    find_java(os.environ)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - heavy

    # Otherwise workers use `python3` from the path, which lacks the packages of this interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        **_TIMES,
        **conf,
    }
    builder = SparkSession.builder.master(master).appName("liftbridge")
    for name, value in settings.items():
        builder = builder.config(name, value)
    _quiet()
    return builder.getOrCreate()


def _quiet() -> None:
    """Keep PySpark from logging errors with their Java traces; they are reported in one line."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - heavy

    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")


def remote_session(address: str, conf: Mapping[str, str]) -> "SparkSession":
    """A session on a server of Spark Connect, where this package must be installed as well.

    Args:
        address: As `sc://host:15002`.
        conf: Settings of the session.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - heavy

    builder = SparkSession.builder.remote(address)
    for name, value in {**_TIMES, **conf}.items():
        builder = builder.config(name, value)
    _quiet()
    return builder.getOrCreate()

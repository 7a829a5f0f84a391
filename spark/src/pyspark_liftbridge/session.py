"""Spark sessions for the command: check for Java, start and stop."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Final

from pyspark_liftbridge.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMES: Final = {"spark.sql.session.timeZone": "UTC"}
"""Times are printed in UTC, as by the other commands."""

STOP_SECONDS: Final = 60.0

_elsewhere: Final[list["SparkSession"]] = []
"""Sessions of this process whose executors run outside its JVM."""


def session(master: str, conf: Mapping[str, str]) -> "SparkSession":
    """Create a session, or return the existing one.

    Args:
        master: Address at which Spark runs: `local[2]` or that of a cluster.
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
    made = builder.getOrCreate()
    if not master.startswith("local"):
        _elsewhere.append(made)
    return made


def stop_elsewhere() -> None:
    """Stop the sessions whose executors would outlive the command, such as pods on Kubernetes."""
    while _elsewhere:
        stop_within(_elsewhere.pop())


def stop_within(session: "SparkSession", seconds: float = STOP_SECONDS) -> bool:
    """Stop a session that this process has started; kill its JVM if it does not stop in time.

    On a busy machine a JVM may take minutes.

    Returns:
        Whether the session stopped without being killed.
    """
    # PySpark exposes its process under no other name.
    gateway = session.sparkContext._gateway  # noqa: SLF001 - see above
    assert gateway is not None, "no session of Spark Connect"

    def stop() -> None:
        with suppress(Exception):  # Py4J raises various errors for a JVM that has already ended
            session.stop()

    stopping = Thread(target=stop, name="stop-spark", daemon=True)
    stopping.start()
    stopping.join(seconds)
    if not stopping.is_alive():
        return True
    gateway.proc.kill()
    gateway.proc.wait()
    return False


def _quiet() -> None:
    """Keep PySpark from logging errors with their Java traces; they are reported in one line."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - heavy

    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")


def remote_session(address: str, conf: Mapping[str, str]) -> "SparkSession":
    """Create a session on a Spark Connect server, on which this package must be installed.

    Args:
        address: Address, such as `sc://host:15002`.
        conf: Settings of the session.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - heavy

    builder = SparkSession.builder.remote(address)
    for name, value in {**_TIMES, **conf}.items():
        builder = builder.config(name, value)
    _quiet()
    return builder.getOrCreate()

"""Entry point of the image of pipelines: `python -m pyspark_liftbridge.container WORD...`.

Without one of the words below, it runs the command `liftbridge`. Spark starts the containers that
it creates on Kubernetes with one of them, and passes the rest in environment variables, as the
script of its own image expects (`kubernetes/dockerfiles/spark/entrypoint.sh`):

    executor            runs tasks for the driver that made the pod
    driver ARGUMENT...  is the driver, in cluster mode
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyspark_liftbridge.java import JavaError, find_java

EXECUTOR: Final = "executor"
DRIVER: Final = "driver"
BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
CONF_DIRECTORY: Final = "/opt/spark/conf"
"""Directory of Spark's settings in the containers that it creates."""

_OPTIONS: Final = (
    ("--driver-url", "SPARK_DRIVER_URL"),
    ("--executor-id", "SPARK_EXECUTOR_ID"),
    ("--cores", "SPARK_EXECUTOR_CORES"),
    ("--app-id", "SPARK_APPLICATION_ID"),
    ("--hostname", "SPARK_EXECUTOR_POD_IP"),
    ("--resourceProfileId", "SPARK_RESOURCE_PROFILE_ID"),
    ("--podName", "SPARK_EXECUTOR_POD_NAME"),
)
_JAVA_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_([0-9]+)")


class StartError(RuntimeError):
    """A container cannot start as requested; the text names the missing part."""


def executor_command(environ: Mapping[str, str], java: str, home: str) -> list[str]:
    """Build the command of an executor.

    Args:
        environ: Variables of the environment, as Spark has set them.
        java: Program.
        home: Folder of Spark.

    Raises:
        StartError: A variable is missing.
    """
    needed = [name for _, name in _OPTIONS] + ["SPARK_EXECUTOR_MEMORY"]
    missing = next((name for name in needed if not environ.get(name)), None)
    if missing is not None:
        raise StartError(f"executor: {missing} is not set; only Spark starts executors")
    numbered = [
        (int(found[1]), value)
        for name, value in environ.items()
        if (found := _JAVA_OPTION.fullmatch(name))
    ]
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    places = [CONF_DIRECTORY, f"{home}/jars/*", environ.get("SPARK_EXTRA_CLASSPATH", "")]
    options = [word for option, name in _OPTIONS for word in (option, environ[name])]
    return [
        java,
        *(value for _, value in sorted(numbered)),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(filter(None, places)),
        BACKEND,
        *options,
    ]


def driver_command(environ: Mapping[str, str], home: str, arguments: Sequence[str]) -> list[str]:
    """Build the command of a driver in cluster mode.

    Args:
        environ: Variables of the environment, as Spark has set them.
        home: Folder of Spark.
        arguments: Arguments of `spark-submit`.

    Raises:
        StartError: The address of the driver is missing.
    """
    address = environ.get("SPARK_DRIVER_BIND_ADDRESS")
    if not address:
        raise StartError("driver: SPARK_DRIVER_BIND_ADDRESS is not set; only Spark starts drivers")
    return [
        f"{home}/bin/spark-submit",
        "--conf",
        f"spark.driver.bindAddress={address}",
        "--conf",
        f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}",
        "--deploy-mode",
        "client",
        *arguments,
    ]


def command(arguments: Sequence[str], environ: Mapping[str, str], home: str) -> list[str]:
    """Build the command that a container executes.

    Raises:
        StartError: A variable of the environment is missing.
        JavaError: There is no Java that Spark runs on.
    """
    if arguments[:1] == [EXECUTOR]:
        return executor_command(environ, find_java(environ), home)
    if arguments[:1] == [DRIVER]:
        find_java(environ)
        return driver_command(environ, home, arguments[1:])
    return [str(Path(sys.executable).with_name("liftbridge")), *arguments]


def spark_home() -> str:
    """Find the folder of Spark in the package of PySpark.

    Raises:
        StartError: PySpark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StartError("PySpark is not installed: pip install pyspark")
    return str(Path(spec.origin).parent)


def main() -> None:
    """Replace this process by the command."""
    try:
        words = command(sys.argv[1:], os.environ, spark_home())
    except (StartError, JavaError) as error:
        sys.exit(str(error))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.execvp(words[0], words)  # noqa: S606 - the purpose of the container


if __name__ == "__main__":
    main()

"""Find the Java that Spark runs on; `python -m pyspark_liftbridge.java` fails if there is none."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

VERSIONS: Final = (17, 21)
"""Versions of Java that Spark 4 supports."""

_WANTED: Final = (
    f"Spark needs Java {' or '.join(map(str, VERSIONS))}, in JAVA_HOME or on PATH; "
    "on Debian: apt-get install openjdk-17-jre-headless"
)
_SECONDS_MAX: Final = 30


class JavaError(RuntimeError):
    """There is no Java that Spark runs on."""


def version_text(program: str) -> str:
    """Return the output of `java -version`, empty if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            (program, "-version"),
            check=False,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr if done.returncode == 0 else ""


def find_java(environ: Mapping[str, str], version_of: Callable[[str], str] = version_text) -> str:
    """Find the Java program that Spark would start.

    Args:
        environ: Variables of the environment.
        version_of: Returns the version text that a program prints.

    Raises:
        JavaError: There is no Java, or its version is not supported.
    """
    return find_version(environ, version_of)[0]


def find_version(
    environ: Mapping[str, str], version_of: Callable[[str], str] = version_text
) -> tuple[str, int]:
    """Find the Java program that Spark would start, and its version.

    Raises:
        JavaError: As for `find_java`.
    """
    home = environ.get("JAVA_HOME")
    program = (
        str(Path(home, "bin", "java"))
        if home
        else shutil.which("java", path=environ.get("PATH", ""))
    )
    if program is None:
        raise JavaError(f"no Java: {_WANTED}")
    match = re.search(r'version "(?:1\.)?(\d+)', version_of(program))
    if match is None:
        raise JavaError(f"{program} does not run: {_WANTED}")
    if int(match[1]) not in VERSIONS:
        raise JavaError(f"{program} is Java {match[1]}: {_WANTED}")
    return program, int(match[1])


if __name__ == "__main__":
    try:
        find_java(os.environ)
    except JavaError as error:
        sys.exit(str(error))

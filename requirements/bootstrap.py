"""Set up the development environment, or pin its dependencies anew.

Runs on nothing but the standard library. pip, as it comes with Python, installs uv from
`requirements/uv.txt`; uv makes the environment equal to `requirements/dev.txt`; both check every
file's hash. The distributions of this repository are then installed editable, without dependencies
and without a build environment of their own. No index is named anywhere: what pip is configured
with (a mirror, a folder of wheels, a certificate) is handed on to uv.
"""

import argparse
import os
import subprocess  # pip and uv have no other interface
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
DISTRIBUTIONS = ("proto", "broker", "client", "operator", "spark", "tests/testkit")
# Each file is pinned under the ones before it, so that all of them agree on versions.
PINNED = ("uv", "broker", "client", "operator", "build", "image", "dev")
# What only one tool needs, in an environment of its own, and may disagree with all others.
ALONE = ("checkov",)
# What is needed beside dev.txt for one part of the repository, in an environment of its own.
BESIDE = ("spark",)
# What an image holds that is in no environment here.
IMAGES = ("image-spark",)
PYTHON_MIN = (3, 11)
# Option of pip -> variable of uv with the same meaning, and what stands between several values.
HANDED_ON = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


def main() -> None:
    """Parse the command line and do one of the two jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv", nargs="?", default=ROOT / ".venv", type=Path)
    parser.add_argument("--lock", action="store_true", help="pin requirements/*.in anew")
    parser.add_argument("--upgrade", action="store_true", help="with --lock: take newer versions")
    parser.add_argument("--only", choices=ALONE, help="install what this one tool needs, no more")
    parser.add_argument(
        "--with", choices=BESIDE, dest="part", help="install what this part needs too"
    )
    options = parser.parse_args()
    try:
        if options.lock:
            lock(options.venv.resolve(), upgrade=options.upgrade)
        else:
            install(options.venv.resolve(), options.only, options.part)
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed (status {error.returncode}): {' '.join(map(str, error.cmd))}")


def install(venv: Path, only: str | None = None, part: str | None = None) -> None:
    """Make `venv` hold exactly the pinned packages and this repository's own.

    Args:
        venv: Where.
        only: One of `ALONE`, to have its packages there and none of this repository.
        part: One of `BESIDE`, to have its packages there too.
    """
    check_prerequisites()
    started = time.monotonic()
    python = venv / "bin" / "python"
    if not python.exists() or not works(python):
        say(f"creating {venv}")
        run(sys.executable, "-m", "venv", "--clear", venv)
    say("installing uv")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--require-hashes", "--requirement", REQUIREMENTS / "uv.txt")
    say("installing the pinned packages")
    uv = venv / "bin" / "uv"
    environment = uv_environment(python)
    target = ("--python", python)
    files = [REQUIREMENTS / f"{name}.txt" for name in (only or "dev", part) if name]
    # Packages that come as sources only are built with what is pinned, too.
    builders = ("--build-constraints", files[-1])
    run(
        *(uv, "pip", "sync", "--quiet", "--require-hashes", *builders, *target),
        *files,
        environment=environment,
    )
    if only is None:
        install_editable(uv, target, environment)
    say(f"ready after {time.monotonic() - started:.0f} s")


def install_editable(uv: Path, target: tuple[str | Path, ...], environment: dict[str, str]) -> None:
    """Have the environment use the distributions of this repository as they lie here."""
    editable = [part for name in DISTRIBUTIONS for part in ("--editable", ROOT / name)]
    flags = ("--quiet", "--no-deps", "--no-build-isolation")
    run(uv, "pip", "install", *flags, *target, *editable, environment=environment)


def lock(venv: Path, *, upgrade: bool) -> None:
    """Write `requirements/*.txt` from `*.in`, for every platform and Python from 3.11 on."""
    flags = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "-q"]
    if upgrade:
        flags.append("--upgrade")
    environment = uv_environment(venv / "bin" / "python")
    earlier: list[str] = []
    for name in (*PINNED, *BESIDE, *IMAGES, *ALONE):
        say(f"pinning requirements/{name}.txt")
        earlier = [] if name in ALONE else earlier
        files = ["--output-file", f"requirements/{name}.txt", f"requirements/{name}.in"]
        compile_pins = [str(venv / "bin" / "uv"), "pip", "compile", *flags, *earlier, *files]
        run(*compile_pins, environment=environment)
        earlier += ["--constraint", f"requirements/{name}.txt"]


def check_prerequisites() -> None:
    """End with a message that says what to install when this Python cannot do the job."""
    found = ".".join(map(str, sys.version_info[:3]))
    needed = ".".join(map(str, PYTHON_MIN))
    if sys.version_info < PYTHON_MIN:
        sys.exit(
            f"Python {needed} or newer is needed; {sys.executable} is {found}.\n"
            "Name another one: make PYTHON=/path/to/python3.11 install"
        )
    try:
        import ensurepip  # noqa: F401, PLC0415 - only asks whether it is there
        import venv  # noqa: F401, PLC0415 - the same
    except ImportError:
        sys.exit(
            f"The venv module of {sys.executable} is missing; "
            "on Debian and Ubuntu: apt install python3-venv"
        )


def works(python: Path) -> bool:
    """Whether the environment's Python starts and has pip; not so after a system upgrade."""
    check = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([python, "-c", check], check=False, capture_output=True).returncode == 0


def uv_environment(python: Path) -> dict[str, str]:
    """Variables for uv: the caller's, completed by what pip is configured with."""
    environment = dict(os.environ)
    listing = subprocess.run(
        [python, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    for line in listing.splitlines():
        option, _, value = line.partition("=")
        variable, separator = HANDED_ON.get(option.rpartition(".")[2], ("", ""))
        values = value.strip("'\"").replace("\\n", " ").split()
        if variable and values:
            environment.setdefault(variable, separator.join(values))
    return environment


def run(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    """Run a command at the repository root; raises `CalledProcessError` when it fails."""
    subprocess.run([*map(str, command)], check=True, cwd=ROOT, env=environment)


def say(line: str) -> None:
    """Show progress at once, also through a pipe."""
    print(f"install: {line}", flush=True)


if __name__ == "__main__":
    main()

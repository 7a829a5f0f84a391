"""What every test shares: the profiles of hypothesis and the flag that rewrites expected files.

`CI` in the environment makes runs repeatable; `HYPOTHESIS_PROFILE` names a profile itself. The
header of a run prints the seed of pytest-randomly; `--randomly-seed=N` repeats its order and
`-p no:randomly` keeps the order of the files.
"""

import asyncio
import os

import pytest
from hypothesis import HealthCheck, settings

# Before Python 3.14 the first look for a loop makes one, which pytest-asyncio (1.5) does between
# async tests and then leaves open, so that a later test fails for its ResourceWarning; a loop that
# was set to None is not made again.
asyncio.set_event_loop(None)

# No deadline: two cores are shared by workers, servers and clients, so wall time proves nothing.
settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.register_profile(
    "night",
    deadline=None,
    print_blob=True,
    max_examples=2_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the code does now into the files of expected results; read the diff",
    )


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether expected files are to be written instead of compared."""
    return bool(request.config.getoption("--rewrite"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests noted by `record_property("note", ...)`: how much a bounded test did."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "note":
                    terminalreporter.write_line(f"{report.nodeid}: {value}")

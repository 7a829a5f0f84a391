"""What every test shares: the profiles of hypothesis and the flag that rewrites expected files.

`CI` in the environment makes runs repeatable; `HYPOTHESIS_PROFILE` names a profile itself. The
header of a run prints the seed of pytest-randomly; `--randomly-seed=N` repeats its order and
`-p no:randomly` keeps the order of the files.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from liftbridge_testkit.fuzzing import Fuzz
from liftbridge_testkit.pages import Shown
from liftbridge_testkit.sim.floors import floors_for
from liftbridge_testkit.sim.total import Sum

FUZZ_SHARE = pytest.StashKey[float]()

# Before Python 3.14 the first look for a loop makes one, which pytest-asyncio (1.5) does between
# async tests and then leaves open, so that a later test fails for its ResourceWarning; a loop that
# was set to None is not made again.
asyncio.set_event_loop(None)

# A run in the background of a script ignores SIGINT, and what tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark fuzz tests, and share `FUZZ_SECONDS` among them when it is set."""
    fuzzed = [item for item in items if "fuzz" in getattr(item, "fixturenames", ())]
    for item in fuzzed:
        item.add_marker("fuzz")
    seconds = float(os.environ.get("FUZZ_SECONDS") or 0)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 1)
    config.stash[FUZZ_SHARE] = seconds * workers / max(1, len(fuzzed))


@pytest.fixture
def fuzz(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Fuzz:
    """Rounds of a fuzz test; a long run tells its seed."""
    seed = os.environ.get("FUZZ_SEED")
    return Fuzz(
        seconds=request.config.stash[FUZZ_SHARE],
        seed=int(seed) if seed else None,
        tell=lambda text: record_property("note", text),
    )


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether expected files are to be written instead of compared."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture
def shown(request: pytest.FixtureRequest) -> Iterator[Shown]:
    """Blocks of a page that the mark `shows` of the test names; the test must take all of them."""
    (mark,) = request.node.iter_markers("shows")
    found = Shown(*mark.args, **mark.kwargs)
    yield found
    assert found.left() == []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Let workers share the chunks of seeds, which are one file; other files stay in one worker."""
    return SharingSeeds(config, log) if config.getvalue("dist") == "loadfile" else None


class SharingSeeds(LoadFileScheduling):  # type: ignore[misc]  # has no types
    """Each chunk of seeds is work of its own."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if "/test_seeds.py::" in nodeid else str(super()._split_scope(nodeid))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests noted by `record_property`: how much a bounded test did.

    A `note` is printed as it is; `seeds` are what simulated seeds met, added up.
    """
    total = Sum()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "note":
                    terminalreporter.write_line(f"{report.nodeid}: {value}")
                elif name == "seeds":
                    total.add_text(str(value))
    if total.seeds:
        terminalreporter.section("simulated seeds")
        for line in total.lines(total.busy_seconds, floors_for(total.by_kind)):
            terminalreporter.write_line(line)
        again = f"SIM_SEEDS={total.first}:{total.last + 1} pytest tests/sim/test_seeds.py"
        terminalreporter.write_line(f"the same seeds again: {again}")

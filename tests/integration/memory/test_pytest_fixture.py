"""The fixture `liftbridge` in somebody else's tests, and the page that tells of it."""

import re
import tomllib

import pytest

from liftbridge_testkit.repository import ROOT

pytest_plugins = "pytester"

PAGE = ROOT / "docs/how-to/test-your-application.md"
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODES = {"auto": "", "strict": "import pytest\npytestmark = pytest.mark.asyncio\n"}
TESTS = """
async def test_message_survives_a_restart(liftbridge):
    async with liftbridge.client() as lb:
        stream = await lb.streams.create("s")
        await stream.publish(b"value")
        await liftbridge.restart()
        (bounds,) = await stream.bounds()
        assert bounds.high_watermark == 1

async def test_every_test_has_a_broker_of_its_own(liftbridge):
    async with liftbridge.client() as lb:
        assert not (await lb.metadata()).streams.get("s")
"""


@pytest.fixture
def outcomes(pytester):
    """Run test files in a pytest of their own, with warnings as errors; what became of them."""

    def run(mode="auto", **texts):
        settings = ("-p", "no:randomly", "-p", "no:cacheprovider", "-W", "error")
        loop = "asyncio_default_fixture_loop_scope = function"
        pytester.makeini(f"[pytest]\nasyncio_mode = {mode}\n{loop}\n")
        pytester.makepyfile(**texts)
        done = pytester.runpytest_subprocess(*settings, timeout=60)
        return done.parseoutcomes(), done.stdout.str()

    return run


@pytest.mark.parametrize("mode", MODES)
def test_fixture_is_a_running_broker_for_each_test(outcomes, mode):
    found, output = outcomes(mode, test_users=MODES[mode] + TESTS)
    assert found == {"passed": 2}, output


def test_settings_come_from_an_overridden_fixture(outcomes):
    text = """
        import pytest

        @pytest.fixture
        def liftbridge_config():
            return {"cursors.stream.partitions": "3"}

        async def test_setting(liftbridge):
            async with liftbridge.client() as lb:
                streams = (await lb.metadata()).streams
                assert len(streams["__cursors"].partitions) == 3
    """
    found, output = outcomes(test_users=text)
    assert found == {"passed": 1}, output


def test_fixture_of_a_client_without_the_broker_says_what_to_install(outcomes):
    text = """
        import sys
        sys.modules["liftbridge_broker"] = None

        async def test_broker(liftbridge):
            assert liftbridge

        def test_without_it():
            assert True
    """
    found, output = outcomes(test_users=text)
    assert found == {"passed": 1, "errors": 1}, output
    assert "pip install 'liftbridge[testing]'" in output


def test_loading_the_plugin_imports_neither_client_nor_broker(outcomes):
    text = """
        import sys

        def test_nothing_is_loaded():
            assert "liftbridge_pytest" in sys.modules
            assert not {"liftbridge_client", "liftbridge_broker", "grpc"} & set(sys.modules)
    """
    found, output = outcomes(test_users=text)
    assert found == {"passed": 1}, output


def test_extra_brings_what_the_fixture_needs():
    project = tomllib.loads((ROOT / "client/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"liftbridge": "liftbridge_pytest"}
    names = {re.split(r"[<>=]", entry)[0] for entry in project["optional-dependencies"]["testing"]}
    assert names == {"liftbridge-broker", "pytest", "pytest-asyncio"}


def test_tests_on_the_page_pass(outcomes):
    """The first block is the application, every other one a file of tests for it."""
    application, *blocks = PYTHON_BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    files = {f"test_{number}": block for number, block in enumerate(blocks)}
    found, output = outcomes(shop=application, **files)
    count = sum(block.count("def test_") for block in blocks)
    assert count >= len(blocks) > 3
    assert set(found) == {"passed"}, output
    assert found["passed"] > count  # one test has two cases

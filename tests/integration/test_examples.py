"""The programs that the documents show, run against a real broker."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from liftbridge_client import StreamSettings, connect_sync
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.repository import ROOT

ADDRESS = "localhost:9292"
NATS_URL = "nats://localhost:4222"
SECONDS_MAX = 60
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path) as running:
        yield running


@pytest.fixture
def placed(broker, tmp_path):
    """Put a program where it can be run, with the address of the test's broker in it."""

    def place(program: str, **changes: str) -> Path:
        for old, new in {ADDRESS: broker.address, **changes}.items():
            assert old in program
            program = program.replace(old, new)
        path: Path = tmp_path / "program.py"
        path.write_text(program, encoding="utf-8")
        return path

    return place


def example(name: str) -> str:
    return (ROOT / "examples" / name).read_text(encoding="utf-8")


def existing_clients() -> list[str]:
    """Programs of the page about existing clients: generated stubs, and JetStream."""
    page = ROOT / "docs/how-to/use-existing-clients.md"
    return PYTHON_BLOCK.findall(page.read_text(encoding="utf-8"))


def run(path: Path) -> list[str]:
    """Lines of standard output of a program that ends well."""
    done = subprocess.run(
        [sys.executable, str(path)],
        check=False,
        timeout=SECONDS_MAX,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_first_program_stores_and_reads_each_time_it_is_run(placed):
    path = placed(example("first.py"))
    stored = "b'42' b'three apples'"
    assert run(path) == ["stored at offset 0", f"0 {stored}"]
    assert run(path) == ["stored at offset 1", f"0 {stored}", f"1 {stored}"]


def test_surviving_program_stores_each_line_once_over_a_kill(placed, broker):
    path = placed(example("survive.py"), **{"5_000_000": "500_000"})
    command = [sys.executable, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "1000 acknowledged\n"
        broker.kill()
        broker.start()
        output, _ = program.communicate(timeout=SECONDS_MAX)
    assert program.returncode == 0
    assert output.splitlines()[-1] == "read back 500000 of 500000, each once and in order"


def test_consuming_program_reads_what_is_published(tmp_path):
    with Broker(tmp_path, config={"cursors.stream.partitions": 1}) as broker:
        path = tmp_path / "program.py"
        program = example("consume.py")
        assert program.count(ADDRESS) == 1
        path.write_text(program.replace(ADDRESS, broker.address), encoding="utf-8")
        command = [sys.executable, str(path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        ) as running:
            assert running.stdout is not None
            told = [running.stdout.readline()]
            with connect_sync(broker.address) as lb:
                lb.streams.get("orders").publish(b"three apples", partition=2)
            told.append(running.stdout.readline())
            running.terminate()
    reads = ", ".join(f"orders/{number}" for number in range(4))
    assert told == [f"reads {reads}\n", "orders/2 0 b'three apples'\n"]


def test_program_with_generated_stubs_gets_its_ack(placed):
    program, _ = existing_clients()
    assert run(placed(program)) == ["0"]


def test_program_with_jetstream_gets_its_ack(broker, tmp_path):
    _, program = existing_clients()
    with connect_sync(broker.address) as lb:
        lb.streams.create("orders", settings=StreamSettings(ack_reply=True))
    assert program.count(NATS_URL) == 1
    path = tmp_path / "program.py"
    path.write_text(program.replace(NATS_URL, broker.nats_url), encoding="utf-8")
    assert run(path) == ["orders 1"]

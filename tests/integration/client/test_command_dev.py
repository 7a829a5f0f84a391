"""`liftbridge dev` and `liftbridge demo` as programs: ready, used, ended, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).parent / "liftbridge")


@pytest.fixture
def environment(tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return {
        **os.environ,
        # Bytecode is cached as on a user's machine: without, half of a start is compiling.
        "PYTHONDONTWRITEBYTECODE": "",
        "LIFTBRIDGE_CONFIG": str(tmp_path / "profiles.toml"),
        "TMPDIR": str(temporary),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


def liftbridge(environment, *arguments):
    return subprocess.run(
        [PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_dev_serves_under_a_profile_until_it_is_told_to_end(environment, tmp_path):
    with subprocess.Popen(
        [PROGRAM, "dev", "--ephemeral", "-o", "jsonl"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as dev:
        try:
            place = json.loads(dev.stdout.readline())
            assert liftbridge(environment, "create", "s").returncode == 0
            assert liftbridge(environment, "publish", "s", "a", "b").returncode == 0
            read = liftbridge(environment, "subscribe", "s", "--format", "%v\\n")
            assert (read.returncode, read.stdout) == (0, "a\nb\n")
        finally:
            dev.terminate()
        assert dev.wait(30) == 0
    assert not Path(place["data_dir"]).exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert liftbridge(environment, "profile", "list", "-o", "json").stdout == "[]\n"


def test_dev_keeps_data_for_the_next_time(environment, tmp_path):
    for number in range(2):
        with subprocess.Popen(
            [PROGRAM, "dev", "--data-dir", str(tmp_path / "data"), "-o", "jsonl"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as dev:
            try:
                dev.stdout.readline()
                create = liftbridge(environment, "create", "s")
                assert create.returncode == number, create.stderr  # the second time it exists
                if number:
                    assert_held(environment, tmp_path / "data")
            finally:
                dev.send_signal(signal.SIGINT)
            assert dev.wait(30) == 0


def assert_held(environment, data):
    """Another `dev` is told in one line that the data is in use."""
    second = liftbridge(environment, "dev", "--data-dir", str(data), "-o", "jsonl")
    assert (second.returncode, second.stdout) == (3, "")
    assert "is in use by process" in second.stderr
    assert second.stderr.count("\n") == 1


def descendants(pid):
    """Processes below one, with how they were called."""
    found = {}
    waiting = [pid]
    for member in waiting:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            waiting.extend(int(child) for child in children.read_text().split())
        found[member] = Path(f"/proc/{member}/cmdline").read_text().split("\0")
    del found[pid]
    return found


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    # A process that nobody reaped is a zombie: it holds nothing any more.
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_killed_dev_leaves_no_orphan_and_the_next_one_takes_its_data(environment, tmp_path):
    call = [PROGRAM, "dev", "--data-dir", str(tmp_path / "data"), "-o", "jsonl"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, env=environment, **pipes) as killed:
        json.loads(killed.stdout.readline())
        assert liftbridge(environment, "create", "s").returncode == 0
        assert liftbridge(environment, "publish", "s", "a", "b").returncode == 0
        children = descendants(killed.pid)
        (broker,) = (p for p, words in children.items() if words[1].endswith("liftbridge-broker"))
        (nats,) = (p for p, words in children.items() if words[0].endswith("nats-server"))
        # Frozen, the broker holds its data for as long as it takes to end.
        os.kill(broker, signal.SIGSTOP)
        killed.kill()
        killed.wait(10)
    with subprocess.Popen(call, env=environment, **pipes) as following:
        try:
            log = tmp_path / "data" / "broker.log"
            while "is in use by process" not in log.read_text():
                assert following.poll() is None, following.stderr.read()
            os.kill(broker, signal.SIGCONT)
            line = following.stdout.readline()
            assert line, following.stderr.read()
            assert not is_running(broker)
            assert not is_running(nats)
            read = liftbridge(environment, "subscribe", "s", "--format", "%v\\n")
            assert (read.returncode, read.stdout) == (0, "a\nb\n")
        finally:
            following.terminate()
            if is_running(broker):
                os.kill(broker, signal.SIGKILL)
        assert following.wait(30) == 0


def test_demo_ends_with_success_and_leaves_nothing(environment, tmp_path):
    result = liftbridge(environment, "demo", "--lines", "20000", "-o", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["is_ok"]
    assert (found["missing"], found["repeated"], found["misplaced"]) == (0, 0, 0)
    assert found["outage_seconds"] > 0
    assert list((tmp_path / "tmp").iterdir()) == []

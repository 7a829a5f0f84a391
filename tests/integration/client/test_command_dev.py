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
            finally:
                dev.send_signal(signal.SIGINT)
            assert dev.wait(30) == 0


def test_demo_ends_with_success_and_leaves_nothing(environment, tmp_path):
    result = liftbridge(environment, "demo", "--lines", "20000", "-o", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["is_ok"]
    assert (found["missing"], found["repeated"], found["misplaced"]) == (0, 0, 0)
    assert found["outage_seconds"] > 0
    assert list((tmp_path / "tmp").iterdir()) == []

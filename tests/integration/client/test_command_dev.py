"""`liftbridge dev` and `liftbridge demo` as programs: ready, used, ended, nothing left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from liftbridge_client import UsageError
from liftbridge_client.cli import profiles
from liftbridge_client.cli.app import run
from liftbridge_client.cli.local.broker import LocalBroker, free_port

PROGRAM = str(Path(sys.executable).parent / "liftbridge")


class Result(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def liftbridge(tmp_path, monkeypatch, capsys):
    """Run a command in this process, which is what the program does in its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    # Bytecode is cached as on a user's machine: without, half of a start is compiling.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    monkeypatch.setenv("LIFTBRIDGE_CONFIG", str(tmp_path / "profiles.toml"))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(*arguments):
        capsys.readouterr()
        code = run(arguments)
        return Result(code, *capsys.readouterr())

    return call


def test_dev_serves_under_a_profile_until_it_is_told_to_end(liftbridge, tmp_path):
    with subprocess.Popen(
        [PROGRAM, "dev", "--ephemeral", "-o", "jsonl"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as dev:
        try:
            place = json.loads(dev.stdout.readline())
            assert liftbridge("create", "s").returncode == 0
            assert liftbridge("publish", "s", "a", "b").returncode == 0
            read = liftbridge("subscribe", "s", "--format", "%v\\n")
            assert (read.returncode, read.stdout) == (0, "a\nb\n")
        finally:
            dev.terminate()
        assert dev.wait(30) == 0
    assert not Path(place["data_dir"]).exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert liftbridge("profile", "list", "-o", "json").stdout == "[]\n"


def test_second_dev_says_who_has_the_port_and_each_restores_what_it_replaced(liftbridge):
    """One that runs keeps its profile; what it replaced is back when it ends."""
    liftbridge("profile", "add", "dev", "--servers", "127.0.0.1:1")
    before = profiles.load()
    call = [PROGRAM, "dev", "--ephemeral", "-o", "jsonl"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, **pipes) as first:
        try:
            place = json.loads(first.stdout.readline())
            held = profiles.load()
            assert f"liftbridge://{held.by_name['dev'].servers}" == place["servers"]
            assert liftbridge("cluster", "brokers", "--profile", "dev").returncode == 0
            with subprocess.Popen(call, **pipes) as second:
                try:
                    other = json.loads(second.stdout.readline())
                    assert other["profile"] == ""
                    assert profiles.load() == held
                    if place["servers"].endswith(":9292"):
                        said = second.stderr.readline()
                        assert "port 9292 is taken by the `liftbridge dev` of profile dev" in said
                finally:
                    second.terminate()
                assert second.wait(30) == 0
            assert profiles.load() == held
        finally:
            first.terminate()
        assert first.wait(30) == 0
    assert profiles.load() == before


def test_dev_keeps_data_for_the_next_time(liftbridge, tmp_path):
    for number in range(2):
        with subprocess.Popen(
            [PROGRAM, "dev", "--data-dir", str(tmp_path / "data"), "-o", "jsonl"],
            stdout=subprocess.PIPE,
            text=True,
        ) as dev:
            try:
                dev.stdout.readline()
                create = liftbridge("create", "s")
                assert create.returncode == number, create.stderr  # the second time it exists
                second = LocalBroker(
                    tmp_path / "data",
                    **ports(),
                    secret_file=tmp_path / "data" / "cluster.keys",
                    held_seconds=0.1,
                )
                with pytest.raises(UsageError, match="in use by process") as told:
                    asyncio.run(second.start())
                assert "--data-dir" in str(told.value)
                assert "\n" not in str(told.value)
            finally:
                dev.send_signal(signal.SIGINT)
            assert dev.wait(30) == 0


def ports():
    return {name: free_port() for name in ("port", "nats_port", "metrics_port")}


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


def test_log_that_an_error_points_to_is_kept(liftbridge):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([PROGRAM, "dev", "--ephemeral", "-o", "jsonl"], **pipes) as dev:
        os.kill(int(json.loads(dev.stdout.readline())["processes"]), signal.SIGKILL)
        told = dev.stderr.read()
        assert dev.wait(30) == 3
    log = Path(told.partition("its log is ")[2].partition(" (")[0])
    assert log.stat().st_size > 0


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    # A process that nobody reaped is a zombie: it holds nothing any more.
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_killed_dev_leaves_no_orphan_and_the_next_one_takes_its_data(liftbridge, tmp_path):
    call = [PROGRAM, "dev", "--data-dir", str(tmp_path / "data"), "-o", "jsonl"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, **pipes) as killed:
        json.loads(killed.stdout.readline())
        assert liftbridge("create", "s").returncode == 0
        assert liftbridge("publish", "s", "a", "b").returncode == 0
        children = descendants(killed.pid)
        (broker,) = (p for p, words in children.items() if words[1].endswith("liftbridge-broker"))
        (nats,) = (p for p, words in children.items() if words[0].endswith("nats-server"))
        # Frozen, the broker holds its data for as long as it takes to end.
        os.kill(broker, signal.SIGSTOP)
        killed.kill()
        killed.wait(10)
    with subprocess.Popen(call, **pipes) as following:
        try:
            assert "port 9292 is taken" in following.stderr.readline()
            said = following.stderr.readline()
            assert f"for process {broker}" in said
            os.kill(broker, signal.SIGCONT)
            line = following.stdout.readline()
            assert line, following.stderr.read()
            assert not is_running(broker)
            assert not is_running(nats)
            read = liftbridge("subscribe", "s", "--format", "%v\\n")
            assert (read.returncode, read.stdout) == (0, "a\nb\n")
        finally:
            following.terminate()
            if is_running(broker):
                os.kill(broker, signal.SIGKILL)
        assert following.wait(30) == 0


def test_demo_ends_with_success_and_leaves_nothing(liftbridge, tmp_path):
    result = subprocess.run(
        [PROGRAM, "demo", "--lines", "20000", "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["is_ok"]
    assert (found["missing"], found["repeated"], found["misplaced"]) == (0, 0, 0)
    assert found["kill_stall_seconds"] > 0
    for told in ("kill -9", "SIGSTOP", "found the damage"):
        assert told in result.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_dev_of_several_brokers_replicates_and_keeps_data_for_the_next_time(liftbridge, tmp_path):
    call = [PROGRAM, "dev", "--brokers", "3", "--data-dir", str(tmp_path / "data"), "-o", "jsonl"]
    for number in range(2):
        with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as dev:
            try:
                place = json.loads(dev.stdout.readline())
                assert len(place["servers"].split(",")) == len(place["metrics"].split(",")) == 3
                create = liftbridge("create", "s", "--replication", "3")
                assert create.returncode == number, create.stderr  # the second time it exists
                assert liftbridge("publish", "s", "a", "b", "--ack", "all").returncode == 0
                shown = liftbridge("metadata", "-o", "json").stdout
                assert {row["id"] for row in json.loads(shown)} == {
                    "broker-1",
                    "broker-2",
                    "broker-3",
                }
                read = liftbridge("subscribe", "s", "--format", "%v\\n")
                assert (read.returncode, read.stdout) == (0, "a\nb\n" * (number + 1))
            finally:
                dev.terminate()
            assert dev.wait(30) == 0
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "broker-1",
        "broker-2",
        "broker-3",
        "cluster.keys",
        "nats.password",
    ]
    keys = tmp_path / "data" / "cluster.keys"
    assert (len(keys.read_text()), keys.stat().st_mode & 0o777) == (64, 0o600)

"""`inspect` and `verify`: what they say of whole, damaged, used and foreign directories."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from liftbridge_testkit.processes import Broker, program
from liftbridge_testkit.world import World

RECORDS = 50


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(program("liftbridge-broker")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that was stopped in order, with one stream of `RECORDS` records."""
    with Broker(tmp_path_factory.mktemp("offline")) as running:
        with running.channel() as channel:
            world = World(channel)
            world.create()
            world.publish_many([b"value %d" % number for number in range(RECORDS)])
        assert running.stop() == 0
        yield running


def test_whole_directory_is_described_and_found_whole(broker: Broker) -> None:
    shown = run("inspect", broker.data_dir)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "last stop  clean" in shown.stdout
    assert f" {RECORDS} " in shown.stdout
    assert "streams    1 with 1 partitions" in shown.stdout
    found = run("verify", broker.data_dir)
    assert (found.returncode, found.stderr) == (0, "")
    assert f"whole: 1 logs, 1 segments, {RECORDS} records" in found.stdout


def test_both_write_json(broker: Broker) -> None:
    report = json.loads(run("inspect", broker.data_dir, "-o", "json").stdout)
    assert report["is_clean"] is True
    (log,) = report["logs"]
    metadata = report["metadata"]
    assert (metadata["streams"], metadata["partitions"], metadata["damage"]) == (1, 1, "")
    assert metadata["last_index"] >= metadata["first_index"] == 1
    assert (log["log_start_offset"], log["log_end_offset"]) == (0, RECORDS)
    lines = run("verify", "-o", "json", broker.data_dir).stdout.splitlines()
    summary = json.loads(lines[-1])
    assert (summary["kind"], summary["records"], summary["errors"]) == ("summary", RECORDS, 0)
    assert summary["metadata_entries"] == metadata["last_index"]


def test_damage_is_named_and_ends_with_code_3(broker: Broker, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(broker.data_dir), str(copy)], check=True)
    (segment,) = copy.glob("streams/*/*/*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    found = run("verify", copy)
    assert found.returncode == 3
    assert found.stdout.startswith("error: ")
    assert segment.name in found.stdout
    assert found.stderr == ""


def test_directory_of_a_running_broker_is_refused(tmp_path: Path) -> None:
    with Broker(tmp_path) as running:
        for command in ("inspect", "verify"):
            refused = run(command, running.data_dir)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert refused.stderr.startswith("liftbridge-broker: ")
            assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_is_no_data_directory_is_refused(command: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        refused = run(command, path)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert str(path) in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []

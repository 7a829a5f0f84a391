"""The commands of the how-to archive to S3, and publish to Iceberg, as it says."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from runpy import run_path

import pytest

from liftbridge_client import SyncClient
from liftbridge_testkit.object_store import ENVIRONMENT, ObjectStore
from liftbridge_testkit.pages import Shown, commands, commands_of
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.jobs.archive import Job, archive_once, do


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(Path(tmp_path_factory.mktemp("objects"))) as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that keeps cursors, as `retention_cursor` needs it."""
    config = {"cursors.stream.partitions": 1}
    with Broker(Path(tmp_path_factory.mktemp("how-to")), config=config) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def orders(lb: SyncClient) -> None:
    stream = lb.streams.create("orders", partitions=2)
    for number in range(6):
        stream.publish(b"%d apples" % number, key=b"%d" % number)


def run(lines: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Run command lines; what each prints."""
    printed = []
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "liftbridge"
        done = subprocess.run(
            [Path(sys.executable).parent / program, *words, "-o", "json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, **environment},
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        printed.append(done.stdout)
    return printed


def changed(lines: list[str], places: dict[str, str]) -> list[str]:
    """Command lines with the places of this test instead of those of the page."""
    for place, here in places.items():
        assert any(place in line for line in lines), place
        lines = [line.replace(place, here) for line in lines]
    return lines


@pytest.mark.shows("how-to/archive-streams.md", "Keep records until they are archived")
def test_retention_waits_for_a_cursor(shown: Shown, broker: Broker) -> None:
    lines = commands_of(shown, "Keep records until they are archived")
    (settings,) = run(changed(lines, {"localhost:9292": broker.address}), {})
    found = json.loads(settings)
    assert found["retention_cursor"] == "archive/3f9c0a1b2d4e"
    assert found["retention_cursor_max_bytes"] == 200 * 10**9


@pytest.mark.timeout(300)  # Spark starts twice, once for the tests and once for the command
@pytest.mark.shows("how-to/archive-streams.md", "Archive to S3")
def test_commands_archive_to_s3(shown: Shown, broker: Broker, object_store: ObjectStore) -> None:
    places = {"localhost:9292": broker.address, "http://localhost:8333": object_store.url}
    export, *lines = changed(commands_of(shown, "Archive to S3"), places)
    variables = [word.partition("=")[0] for word in shlex.split(export)[1:]]
    environment = {name: ENVIRONMENT[name] for name in variables}
    archived, verified = run(lines, environment)
    assert '"records": 6' in archived
    assert verified.strip() == "[]"


@pytest.mark.shows("how-to/archive-streams.md", "Publish to Iceberg")
def test_commands_publish_to_iceberg(
    shown: Shown, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def in_turn(works: Sequence[str]) -> list[str]:
        return [do(one) for one in works]

    root = tmp_path / "archive"
    job = Job("orders", str(root), {"servers": broker.address}, {}, fails_on_loss=True)
    assert archive_once(job, in_turn).records == 6
    command, program = shown.take("Publish to Iceberg")
    (tmp_path / "catalog").mkdir()
    places = {"/archive": str(root), "/catalog/": f"{tmp_path}/catalog/"}
    places["file:///catalog"] = f"file://{tmp_path}/catalog"
    (published,) = run(changed(commands(command), places), {})
    assert '"added": ' in published
    path = tmp_path / "program.py"
    path.write_text(program.text.replace("/catalog/", f"{tmp_path}/catalog/"), encoding="utf-8")
    run_path(str(path))
    assert capsys.readouterr().out.strip() == "6"

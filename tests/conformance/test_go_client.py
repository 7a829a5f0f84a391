"""The Go client (go-liftbridge v2.4.0) works against the broker.

Where no Go toolchain is there is nothing to run and so no test; `test_grpcio_stubs.py` makes the
same calls then and always.
"""

import subprocess
from pathlib import Path

import pytest

from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.go_client import GO, SOURCE, build_go_client
from liftbridge_testkit.processes import Broker

# The checks that the program must report, so that one that vanishes is noticed.
CHECKS_MIN = 36


if GO is not None:

    @pytest.mark.timeout(300)
    def test_every_check_of_the_go_client_passes(broker: Broker, tmp_path: Path) -> None:
        program = build_go_client(tmp_path / "goclient")
        done = subprocess.run(
            [program, broker.address], check=False, capture_output=True, text=True, timeout=240
        )
        lines = done.stdout.splitlines()
        assert [line for line in lines if not line.startswith("ok ")] == [], done.stderr
        assert done.returncode == 0
        assert len(lines) >= CHECKS_MIN

    @pytest.mark.timeout(300)
    def test_consumers_of_the_go_client_go_on_when_their_coordinator_is_killed(
        tmp_path: Path,
    ) -> None:
        program = build_go_client(tmp_path / "goclient")
        config = {
            "cursors.stream.partitions": 1,
            "groups.consumer.timeout": "4s",
            "groups.coordinator.timeout": "4s",
        }
        with ClusterKit(tmp_path, config=config, has_proxies=False) as cluster:
            addresses = [broker.address for broker in cluster.brokers.values()]
            running = subprocess.Popen(
                [program, "group", *addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                assert running.stdout is not None
                word, _, coordinator = running.stdout.readline().strip().partition(" ")
                assert word == "coordinator", coordinator
                cluster[coordinator].kill()
                told, errors = running.communicate("killed\n", timeout=90)
            finally:
                running.kill()
        assert told.startswith("ok "), f"{told} {errors}"


def test_go_client_is_pinned() -> None:
    text = (SOURCE / "go.mod").read_text()
    assert "github.com/liftbridge-io/go-liftbridge/v2 v2.4.0" in text
    assert "h1:" in (SOURCE / "go.sum").read_text()

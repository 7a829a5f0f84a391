"""Programs of NATS and JetStream (nats.go v1.55.0) publish to streams with `ack_reply`.

Where no Go toolchain is there is nothing to run and so no test; nats-py does the same in
`tests/integration/nats/test_ack_replies.py` then and always.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from liftbridge_client import StreamSettings, connect_sync
from liftbridge_testkit.processes import Broker

SOURCE = Path(__file__).parent / "natsclient"
GO = shutil.which("go")
CHECKS_COUNT = 10


if GO is not None:

    @pytest.mark.timeout(300)
    def test_every_check_of_the_nats_client_passes(broker: Broker, tmp_path: Path) -> None:
        program = tmp_path / "natsclient"
        made = subprocess.run(
            [str(GO), "build", "-o", str(program), "."],
            check=False,
            cwd=SOURCE,
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        settings = StreamSettings(ack_reply=True)
        with connect_sync(broker.address) as lb:
            lb.streams.create("answering", settings=settings)
            lb.streams.create("readonly", settings=settings).set_readonly()
            done = subprocess.run(
                [program, broker.nats_url, "answering", "readonly"],
                check=False,
                capture_output=True,
                text=True,
                timeout=240,
            )
            (bounds,) = lb.streams.get("answering").bounds()
        lines = done.stdout.splitlines()
        assert [line for line in lines if not line.startswith("ok ")] == [], done.stderr
        assert (done.returncode, len(lines)) == (0, CHECKS_COUNT)
        assert bounds.log_end == 506


def test_nats_client_is_pinned() -> None:
    text = (SOURCE / "go.mod").read_text()
    assert "github.com/nats-io/nats.go v1.55.0" in text
    assert "h1:" in (SOURCE / "go.sum").read_text()

"""A broker with a key file (docs/how-to/encrypt-streams.md): compaction, kills, rotation."""

import signal
import subprocess
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc import StatusCode

from liftbridge_client import connect_admin_sync
from liftbridge_client.errors import FailedPreconditionError
from liftbridge_proto import api_pb2
from liftbridge_testkit.processes import Broker, program
from liftbridge_testkit.world import World

TRUE = api_pb2.NullableBool(value=True)
SECRETS = (b"secret-value", b"secret-key", b"secret-header")
OLD, NEW = "a1" * 32, "b2" * 32
QUICK = {
    "segmentMaxBytes": api_pb2.NullableInt64(value=4_096),
    "cleanerInterval": api_pb2.NullableInt64(value=100),
}


class Bed:
    """A broker whose key file a test replaces."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "master.keys"
        self.file.write_text(f"old {OLD}\n")
        config = {"encryption.keys.file": str(self.file), "streams.fsync.interval": "50ms"}
        self.broker = Broker(folder, config=config)

    def give(self, *lines: str) -> None:
        """Replace the key file, and wait until the broker has read it."""
        ids = [line.partition(" ")[0] for line in lines]
        count = self.told("master_keys_read")
        self.file.write_text("\n".join(lines) + "\n")
        self.broker.signal(signal.SIGHUP)
        self.broker.wait_until(lambda: self.told("master_keys_read") > count, f"keys {ids}")

    def told(self, event: str) -> int:
        return self.broker.log_text().count(event)

    def files_with_plain_text(self) -> list[Path]:
        return [
            path
            for path in self.broker.data_dir.rglob("*")
            if path.is_file() and any(secret in path.read_bytes() for secret in SECRETS)
        ]


def publish(world: World, numbers: range) -> None:
    for number in numbers:
        world.publish(
            value=SECRETS[0] + b"%d" % number + b"." * 500,
            key=SECRETS[1] + b"%d" % (number % 5),
            headers={"h": SECRETS[2]},
        )


def values(world: World) -> list[bytes]:
    messages, code, _ = world.read(startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_LATEST)
    assert code is StatusCode.RESOURCE_EXHAUSTED
    return [message.value.rstrip(b".") for message in messages]


def test_records_stay_secret_through_compaction_kills_and_rotation(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    with bed.broker as broker, broker.channel() as channel:
        world = World(channel)
        world.create(encryption=TRUE, compactEnabled=TRUE, **QUICK)
        publish(world, range(60))
        broker.wait_until(lambda: bed.told("log_compacted") > 0, "a compaction")
        kept = values(world)
        assert len(kept) < 60
        assert kept[-5:] == [SECRETS[0] + b"%d" % number for number in range(55, 60)]
        assert bed.files_with_plain_text() == []

        broker.kill()
        broker.start()
        broker.wait_until(partial(is_served, world), "the stream")
        assert values(world)[-5:] == kept[-5:]

        bed.give(f"old {OLD}", f"new {NEW}")
        with connect_admin_sync(broker.admin_address) as admin:
            with pytest.raises(FailedPreconditionError, match="has not reported master key 'gone'"):
                admin.keys.rotate("gone")
            broker.wait_until(lambda: len(admin.keys.status()) == 2, "the report of both keys")
            assert admin.keys.rotate("new") == 1
            assert admin.keys.rewrap() == (1, 0)
            found = {one.key_id: (one.is_current, one.streams) for one in admin.keys.status()}
            assert found == {"old": (False, 0), "new": (True, 1)}
        bed.give(f"new {NEW}")
        assert values(world)[-5:] == kept[-5:]

        bed.give(f"other {OLD}")
        broker.wait_until(lambda: broker.metric("liftbridge_streams_locked") == 1, "the lock")
        text = "master key 'new' is not configured on this broker"
        for use in (lambda: world.read(startPosition=api_pb2.EARLIEST), world.publish):
            with pytest.raises(grpc.RpcError, match=text) as caught:
                use()
            assert caught.value.code() is StatusCode.UNAVAILABLE
        bed.give(f"new {NEW}")
        broker.wait_until(lambda: broker.metric("liftbridge_streams_locked") == 0, "the key")
        publish(world, range(60, 70))
        assert values(world)[-1] == SECRETS[0] + b"69"
        assert bed.files_with_plain_text() == []
        log = broker.log_text()
        assert OLD not in log
        assert NEW not in log
        assert broker.stop() == 0
    # Verification needs no key.
    command = [str(program("liftbridge-broker")), "verify", str(bed.broker.data_dir)]
    verified = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert "whole: 1 logs" in verified.stdout


def is_served(world: World) -> bool:
    return bool(values(world))

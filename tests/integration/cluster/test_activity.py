"""The activity stream on real brokers: metadata leaders are killed while streams are created."""

from pathlib import Path

import pytest

from liftbridge_client import ActivityEvent, Start, Stop, SyncClient, connect_sync
from liftbridge_client.cli.app import run
from liftbridge_client.errors import AlreadyExistsError, RetriableError, ServerError
from liftbridge_testkit.cluster import ClusterKit

STREAMS, KILLS = 12, (4,)


def metadata_leader(cluster: ClusterKit) -> str:
    """Name of the broker that leads the metadata, once there is one."""
    leads: list[str] = []

    def is_led() -> bool:
        leads[:] = [
            name
            for name, broker in cluster.brokers.items()
            if broker.is_alive() and cluster.metric("raft_leader", name)
        ]
        return len(leads) == 1

    cluster.until(is_led, "a metadata leader")
    return leads[0]


def create(cluster: ClusterKit, lb: SyncClient, name: str) -> None:
    """Create a stream; the outcome is open when the broker that makes the change is killed."""

    def is_made() -> bool:
        try:
            lb.streams.create(name)
        except AlreadyExistsError:
            return True
        except (RetriableError, ServerError):
            return False
        return True

    cluster.until(is_made, f"created {name}")


def events(lb: SyncClient) -> list[ActivityEvent]:
    """All events so far."""
    return [one.value for one in lb.activity(start=Start.earliest(), stop=Stop.latest())]


def test_each_change_is_stored_once_while_metadata_leaders_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"activity.stream.enabled": True}
    with ClusterKit(tmp_path, config=config, has_proxies=False) as cluster:
        servers = ",".join(broker.address for broker in cluster.brokers.values())
        with connect_sync(servers) as lb:
            cluster.await_leader("__activity")
            victim = ""
            for number in range(STREAMS):
                if number in KILLS:
                    victim = metadata_leader(cluster)
                    cluster[victim].kill()
                create(cluster, lb, f"s{number}")
                if number - 2 in KILLS:
                    cluster.start(victim)
            lb.streams.get("s0").pause()
            lb.streams.delete("s1")

            def are_stored() -> bool:
                return len(events(lb)) >= STREAMS + 3

            cluster.until(are_stored, "all events")
            found = events(lb)
        ids = [event.event_id for event in found]
        assert ids == sorted(set(ids))
        assert [(event.operation, event.stream) for event in found] == [
            ("CREATE_STREAM", "__activity"),
            *(("CREATE_STREAM", f"s{number}") for number in range(STREAMS)),
            ("PAUSE_STREAM", "s0"),
            ("DELETE_STREAM", "s1"),
        ]
        monkeypatch.setenv("LIFTBRIDGE_SERVERS", servers)
        assert run(["activity", "--from", "1", "-n", "2"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition("  create stream ")[2] for line in lines] == [
            "s0 partitions 0",
            "s1 partitions 0",
        ]

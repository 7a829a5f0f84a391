"""What `liftbridge cluster check` finds, field by field."""

from datetime import UTC, datetime

import pytest

from liftbridge_client.admin_model import BrokerStatus
from liftbridge_client.cli import cluster_check
from liftbridge_client.cli.cluster_check import ERROR, WARNING

WELL = BrokerStatus(
    broker="a",
    version="1",
    time=datetime(2026, 1, 1, tzinfo=UTC),
    configuration_hash="",
    restart_needed=(),
    is_nats_connected=True,
    are_peers_connected=True,
    is_disk_full=False,
    free_bytes=1,
    log_bytes=1,
    replicas=1,
    leaders=1,
    offline={},
    certificates={},
    nats_server="",
    nats_cluster=(),
    peer_keys=("01020304",),
)


def of_status(**changed):
    return list(cluster_check._of_status(WELL._replace(**changed)))


def test_nothing_is_said_of_a_broker_that_is_well():
    assert of_status() == []


@pytest.mark.parametrize(
    ("changed", "level"),
    [
        ({"is_nats_connected": False}, ERROR),
        ({"are_peers_connected": False}, ERROR),
        ({"is_disk_full": True}, ERROR),
        ({"offline": {"s/0": "damaged"}}, ERROR),
        ({"restart_needed": ("nats.servers",)}, WARNING),
        ({"peer_keys": ("open",)}, WARNING),
        ({"peer_keys": ("01020304", "open")}, WARNING),
        ({"peer_keys": ("open", "01020304")}, WARNING),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(changed, level):
    (row,) = of_status(**changed)
    assert (row.level, row.subject) == (level, "broker a")
    assert row.finding
    assert row.remedy


def test_a_key_that_another_broker_lacks_is_an_error():
    one, other = WELL, WELL._replace(broker="b", peer_keys=("05060708", "01020304"))
    (row,) = cluster_check._of_keys([one, other])
    assert (row.level, row.subject) == (ERROR, "broker b")
    assert "05060708" in row.finding
    assert list(cluster_check._of_keys([one, one._replace(broker="b")])) == []

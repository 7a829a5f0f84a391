"""What a broker tells of the replicas that its system carries."""

import os
import resource
import sys
from types import SimpleNamespace

import pytest

from liftbridge_broker.adapters.observe.http import CONNECTIONS_MAX
from liftbridge_broker.server.limits import (
    OPERATOR_FILES,
    REPLICA_DISK_BYTES,
    REPLICA_INODES,
    SPARE_FILES,
    client_files_max,
    replicas_max,
)


def disk(monkeypatch: pytest.MonkeyPatch, *, replicas: int, inodes: int) -> None:
    """A disk on which so many empty replicas take half."""
    blocks = 2 * replicas * REPLICA_DISK_BYTES // 4096
    found = SimpleNamespace(f_blocks=blocks, f_frsize=4096, f_files=inodes)
    monkeypatch.setattr(os, "statvfs", lambda _path: found)


def test_a_small_disk_carries_few_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, replicas=7, inodes=0)
    assert replicas_max("/data") == 7


def test_a_disk_with_few_inodes_carries_few_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, replicas=1_000, inodes=2 * 5 * REPLICA_INODES)
    assert replicas_max("/data") == 5


@pytest.mark.parametrize("limit", [256, 1_024, 4_096, 20_000, 1 << 20])
def test_clients_have_room_beside_all_replicas_and_leave_some(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (limit, limit))
    disk(monkeypatch, replicas=1 << 30, inodes=0)
    replicas = min(replicas_max("/data"), (limit - SPARE_FILES) * 3 // 4)
    assert replicas < client_files_max()
    assert client_files_max() + OPERATOR_FILES + CONNECTIONS_MAX < limit


def test_without_a_limit_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: unlimited)
    assert client_files_max() == sys.maxsize


def test_data_in_memory_are_not_bound_by_a_disk() -> None:
    assert replicas_max("/no/such/directory") > 7

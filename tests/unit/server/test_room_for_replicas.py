"""What a broker tells of the replicas that its system carries."""

import os
from types import SimpleNamespace

import pytest

from liftbridge_broker.server.limits import (
    REPLICA_DISK_BYTES,
    REPLICA_INODES,
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


def test_data_in_memory_are_not_bound_by_a_disk() -> None:
    assert replicas_max("/no/such/directory") > 7

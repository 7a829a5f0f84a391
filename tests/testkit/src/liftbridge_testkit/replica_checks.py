"""Invariants I1 to I22 of a `ReplicaCluster`, as far as they concern the cores."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from liftbridge_broker.model.ids import BrokerId, Offset, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_testkit.controller_world import ControllerWorld
from liftbridge_testkit.replica_brokers import Broker, Fetch, require
from liftbridge_testkit.replica_logs import Record, ReplicaLog

MIN_ISR: Final = 2


class Checks:
    """Compares a run with the promises of the protocol."""

    def __init__(
        self,
        world: ControllerWorld,
        partition: PartitionId,
        brokers: Mapping[BrokerId, Broker],
        committed: Sequence[Record],
        counts: Counter[str],
    ) -> None:
        """Observe state that the run changes continuously.

        Args:
            world: The controller.
            partition: The partition.
            brokers: All brokers.
            committed: Committed records.
            counts: Counts of events.
        """
        self._world = world
        self._partition = partition
        self._brokers = brokers
        self._committed = committed
        self._counts = counts
        self._hwm: dict[tuple[BrokerId, int, int], int] = {}

    def run(self) -> None:
        """Check the invariants of the whole state."""
        truth = self._world.get(self._partition)
        for broker in self._brokers.values():
            log = broker.log
            require("I7: high watermark in the log", holds=log.high_watermark <= log.log_end_offset)
            if broker.broker in truth.isr and broker.is_running:
                broker.is_clean = True  # but no broker that is gone: its loss may be unknown
            if broker.is_running and broker.leader is not None:
                self._leader(broker, broker.leader, truth)
            if broker.is_clean and broker.broker in (*truth.isr, *truth.elr):
                self.complete("I2", broker)
        self.matching()

    def _leader(self, one: Broker, core: LeaderCore, truth: PartitionState) -> None:
        members = set(core.maximal_isr)
        known = core.state
        require("I20: maximal covers the committed set", holds=members >= set(known.isr))
        key = (one.broker, one.run, core.leader_epoch)
        before = self._hwm.get(key, 0)
        require("I7: high watermark rises", holds=one.log.high_watermark >= before)
        self._hwm[key] = one.log.high_watermark
        is_stale = (
            truth.leader != one.broker
            or truth.leader_epoch != core.leader_epoch
            or self._world.epoch(one.broker) != one.broker_epoch
        )
        if is_stale:
            return
        self.complete("I1", one)
        if len(known.isr) >= MIN_ISR:
            pool = {*truth.isr, *truth.elr}
            require(f"I3: {members} covers {pool}", holds=members >= pool)

    def complete(self, name: str, one: Broker) -> None:
        """Check that the log has all committed records, unless retention removed them."""
        log = one.log
        end = len(self._committed)
        require(name, holds=log.log_end_offset >= end)
        held = log.slice(log.log_start_offset, end)
        committed = self._committed[log.log_start_offset : end]
        require(name, holds=held == committed)

    def matching(self) -> None:
        """Check I5: two logs agree below both high watermarks."""
        self.compare([broker.log for broker in self._brokers.values()])

    def compare(self, logs: Sequence[ReplicaLog]) -> None:
        """Check I5 for some logs."""
        for place, first in enumerate(logs):
            for second in logs[place + 1 :]:
                start = max(first.log_start_offset, second.log_start_offset)
                end = min(first.high_watermark, second.high_watermark)
                same = first.slice(start, end) == second.slice(start, end)
                require("I5: two histories", holds=same)

    def prefix(self, one: Broker, fetch: Fetch) -> None:
        """Check I21: the records of an accepted follower equal those of the leader."""
        base, records = fetch.held
        start = max(base, one.log.log_start_offset)
        same = list(records[start - base :]) == one.log.slice(start, base + len(records))
        require(f"I21: {fetch.follower} was accepted with other records", holds=same)

    def floor(self, one: Broker, end: Offset, *, is_below: bool) -> None:
        """Check I22: no committed record, and none below the high watermark, is truncated."""
        require("no truncation below the high watermark", holds=not is_below)
        log = one.log
        if log.log_end_offset > end:
            self._counts["truncation"] += 1
        for offset in range(end, log.log_end_offset):
            is_committed = offset < len(self._committed)
            lost = is_committed and self._committed[offset] == log.at(offset)
            require(f"I22: {one.broker} removes {offset}", holds=not lost)

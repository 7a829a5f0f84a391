"""What the metadata of many partitions cost: memory, snapshots, and the commands of a lost broker.

Run: `python tests/bench/bench_metadata.py [brokers] [partitions]`, by default 30 and 100,000 with
three replicas. Each figure is processor time of real commands on a real state, in one process
without a log or network. The constants of `liftbridge_testkit.scale_model` come from it.
"""

import gc
import sys
from collections.abc import Generator
from pathlib import Path
from time import process_time

from liftbridge_broker.controller.commands import (
    FEATURE_LEVEL,
    MEMBER_ALREADY,
    AlterPartition,
    Bootstrap,
    Command,
    CreateStream,
    FenceBroker,
    IsrMember,
    RegisterBroker,
    UnfenceBroker,
)
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, StreamName
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.wire.snapshots import decode_state_in_steps, encode_state_in_steps

STREAM_PARTITIONS = 1_000
CHANGES = 2_000
PAGE_BYTES = 4_096


def memory_bytes() -> int:
    """Return the resident memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def timed(state: ClusterState, command: Command) -> float:
    """Apply a command; return the seconds."""
    began = process_time()
    decision = apply(state, MetadataIndex(state.applied_index + 1), command)
    passed = process_time() - began
    assert not isinstance(decision.answer, LiftbridgeError), decision.answer
    return passed


def register(state: ClusterState, broker: BrokerId, start: int) -> float:
    """Register a broker and unfence it; return the seconds of the registration."""
    command = RegisterBroker(
        broker=broker,
        incarnation_id=f"{start:032}",
        data_dir_id=f"{broker:.>32}",
        host=f"{broker}.default.svc",
        port=9292,
        feature_level=FEATURE_LEVEL,
    )
    passed = timed(state, command)
    epoch, index = state.brokers[broker].broker_epoch, state.applied_index
    timed(
        state,
        UnfenceBroker(broker=broker, broker_epoch=epoch, applied_index=index, want_fence=False),
    )
    return passed


def create(state: ClusterState, partitions: int) -> float:
    """Create streams; return the seconds."""
    return sum(
        timed(
            state,
            CreateStream(
                name=StreamName(f"stream-{first}"),
                subject=f"stream-{first}",
                partitions=min(STREAM_PARTITIONS, partitions - first),
                replication_factor=3,
                overrides=StreamOverrides(),
                creation_timestamp=1_700_000_000_000_000_000,
            ),
        )
        for first in range(0, partitions, STREAM_PARTITIONS)
    )


def join_in_sync(state: ClusterState, broker: BrokerId) -> list[float]:
    """Add a broker to in-sync sets, one after the other; return the seconds of each."""
    waiting = [
        partition
        for _, partition in state.partitions()
        if broker in partition.replicas and broker not in partition.isr
    ]
    times = []
    for partition in waiting[:CHANGES]:
        assert partition.leader is not None
        epoch = partition.replica_epoch(broker)
        assert epoch is not None
        command = AlterPartition(
            broker=partition.leader,
            broker_epoch=state.brokers[partition.leader].broker_epoch,
            partition_id=partition.partition_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=(
                *(IsrMember(member, MEMBER_ALREADY) for member in partition.isr),
                IsrMember(broker, epoch),
            ),
            is_recovering=False,
        )
        times.append(timed(state, command))
    return times


def in_steps(steps: Generator[None, None, object]) -> tuple[object, float, float]:
    """Run steps; return the result, the seconds, and those of the longest step."""
    total = longest = 0.0
    while True:
        began = process_time()
        try:
            next(steps)
        except StopIteration as end:
            passed = process_time() - began
            return end.value, total + passed, max(longest, passed)
        passed = process_time() - began
        total, longest = total + passed, max(longest, passed)


def say(what: str, value: float, unit: str) -> None:
    """Print a figure."""
    sys.stdout.write(f"{what:44} {value:10,.2f} {unit}\n")


def main() -> None:
    """Measure and print."""
    brokers, partitions = (
        int(word) for word in (*sys.argv[1:3], *("30", "100000")[len(sys.argv) - 1 :])
    )
    state = ClusterState()
    timed(state, Bootstrap(cluster_id="c" * 32, feature_level=FEATURE_LEVEL))
    names = [BrokerId(f"broker-{number}") for number in range(brokers)]
    for name in names:
        register(state, name, 1)
    before = memory_bytes()
    say("creation", create(state, partitions) / partitions * 1e6, "us a partition")
    say("memory", (memory_bytes() - before) / partitions, "bytes a partition")
    gc.disable()  # its passes over a growing state would count as those of each step
    data, total, longest = in_steps(encode_state_in_steps(state))
    assert isinstance(data, bytes)
    say("snapshot", len(data) / partitions, "bytes a partition")
    say("snapshot written", total / partitions * 1e6, "us a partition")
    say("snapshot written, longest step", longest * 1e3, "ms")
    _, total, longest = in_steps(decode_state_in_steps(data))
    say("snapshot read", total / partitions * 1e6, "us a partition")
    say("snapshot read, longest step", longest * 1e3, "ms")
    gc.enable()
    lost = names[1]
    say("replicas of the lost broker", state.replica_counts[lost], "")
    fence = FenceBroker(broker=lost, broker_epoch=state.brokers[lost].broker_epoch)
    say("fence", timed(state, fence) * 1e3, "ms")
    say("registration when it comes back", register(state, lost, 2) * 1e3, "ms")
    times = join_in_sync(state, lost)
    say("change of an in-sync set", sum(times) / len(times) * 1e6, "us")


if __name__ == "__main__":
    main()

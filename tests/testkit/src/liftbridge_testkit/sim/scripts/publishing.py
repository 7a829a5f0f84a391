"""Verbs of clients: create, publish, change, delete."""

from collections.abc import Callable, Sequence

from liftbridge_broker.controller.commands import (
    CancelReassignment,
    Command,
    CreateStream,
    DeleteStream,
    ElectPreferred,
    StartReassignment,
)
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, Instant, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode
from liftbridge_broker.node.partition.runs import (
    POLICY_ALL,
    POLICY_LEADER,
    POLICY_NONE,
    PendingAck,
    PublishRun,
    Stored,
)
from liftbridge_testkit.sim.clients.calls import Answer, Lost, Serving
from liftbridge_testkit.sim.clients.publishers import Sink, is_refused
from liftbridge_testkit.sim.history import Outcome, Write
from liftbridge_testkit.sim.scripts.stage import Stage, split_options

POLICIES = {"all": POLICY_ALL, "leader": POLICY_LEADER, "none": POLICY_NONE}


def propose(stage: Stage, command: Command, at: str = "") -> object:
    """Propose a command at a broker, any that serves by default, and wait for the outcome."""
    outcomes: list[object] = []
    serving = stage.life.directory.serving()
    assert serving, "no broker serves"
    machine = stage.machine(at) if at else serving[0]

    def serve(broker: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
        broker.node.propose(command, now, answer)

    stage.life.calls.call("client", machine, serve, outcomes.append)
    stage.wait_until(type(command).__name__, lambda: bool(outcomes))
    return outcomes[0]


def ask(stage: Stage, name: str, serve: Callable[[Serving, Instant, int, Answer], None]) -> object:
    """Call a broker and wait for its answer."""
    outcomes: list[object] = []
    stage.life.calls.call("client", stage.machine(name), serve, outcomes.append)
    stage.wait_until(f"answer of {name}", lambda: bool(outcomes))
    return outcomes[0]


def leader_of(stage: Stage, place: str, options: dict[str, str]) -> str:
    """Return the leader of a partition, unless `at` names a broker."""
    leader = options.get("at") or stage.newest(place).leader
    assert leader is not None, f"nobody leads {place}"
    return leader


def told(outcome: object) -> list[str]:
    """Return the output of a change: nothing if it was made."""
    if isinstance(outcome, LiftbridgeError):
        return [f"refused: {outcome.text}"]
    return [f"lost: {outcome.reason}"] if isinstance(outcome, Lost) else []


def create(stage: Stage, words: Sequence[str]) -> list[str]:
    """`create s rf=3 min-isr=2 [on=A,B,C] [partitions=] [fsync=] [unclean=] [segment=] ...`.

    Also `[retention=] [cleaner=ms] [compact=on] [tombstones=ms] [cursor=c] [cursor-bytes=]`.
    """
    (name,), options = split_options(words)
    overrides = StreamOverrides(
        min_isr=int(options["min-isr"]) if "min-isr" in options else None,
        fsync_policy=FsyncPolicy(options["fsync"]) if "fsync" in options else None,
        unclean_mode=UncleanMode(options["unclean"]) if "unclean" in options else None,
        segment_bytes_max=int(options["segment"]) if "segment" in options else None,
        retention_messages_max=int(options["retention"]) if "retention" in options else None,
        cleaner_interval_ms=int(options["cleaner"]) if "cleaner" in options else None,
        compact_enabled=True if "compact" in options else None,
        tombstone_retention_ms=int(options["tombstones"]) if "tombstones" in options else None,
        retention_cursor=options.get("cursor"),
        retention_cursor_bytes_max=(
            int(options["cursor-bytes"]) if "cursor-bytes" in options else None
        ),
    )
    if "cursor" in options:
        stage.hold_back(name, int(options.get("cursor-bytes", "0")))
    command = CreateStream(
        name=StreamName(name),
        subject=f"sub.{name}",
        replication_factor=int(options.get("rf", "1")),
        partitions=int(options.get("partitions", "1")),
        overrides=overrides,
    )
    outcome = propose(stage, command)
    if isinstance(outcome, LiftbridgeError | Lost):
        return told(outcome)
    if "on" in options:
        settle_on(stage, name, tuple(map(BrokerId, options["on"].split(","))))
    stage.wait_until(f"{name}/0 serves", lambda: _serves(stage, f"{name}/0"))
    # The story begins here: epochs of the placement have no name.
    state = stage.newest(f"{name}/0")
    stage.epochs.known[state.partition_id] = [state.leader_epoch]
    stage.commands.told[state.partition_id] = len(stage.commands.asked)
    stage.changes.known[state.partition_id] = []
    stage.fetching.clear()
    stage.fetching_seen.clear()
    return []


def _serves(stage: Stage, place: str) -> bool:
    """Return whether the leader serves and all replicas are in sync."""
    state = stage.newest(place)
    if state.leader is None or set(state.isr) != set(state.replicas):
        return False
    partition = stage.broker(state.leader).node.partitions.get(state.partition_id)
    return partition is not None and partition.role == "leader"


def settle_on(stage: Stage, name: str, target: tuple[BrokerId, ...]) -> None:
    """Move the replicas of partition 0 to this order, led by the first."""
    place = f"{name}/0"
    stage.wait_until(f"{place} serves", lambda: _serves(stage, place))
    partition = stage.newest(place).partition_id
    if stage.newest(place).replicas != target:
        propose(stage, StartReassignment(partition_id=partition, target=target))
    stage.wait_until(f"{place} on {target}", lambda: stage.newest(place).replicas == target)
    stage.wait_until(f"{place} serves", lambda: _serves(stage, place))
    if stage.newest(place).leader != target[0]:
        propose(stage, ElectPreferred(partitions=(partition,)))
        stage.wait_until(
            f"{place} led by {target[0]}", lambda: stage.newest(place).leader == target[0]
        )


def publish(stage: Stage, words: Sequence[str]) -> list[str]:
    """`publish s v1 [all|leader|none] [at=] [key=] [size=] [expect=N] [later]`: and its outcome.

    With `tombstone` it deletes its key.
    """
    plain, options = split_options(words)
    place, name = plain[:2]
    policy = next((POLICIES[word] for word in plain[2:] if word in POLICIES), POLICY_ALL)
    state = stage.newest(place)
    leader = options.get("at") or state.leader
    assert leader is not None, f"nobody leads {place}"
    assert name not in stage.writes, f"{name} was published before"
    history, now = stage.life.history, stage.world.now
    publisher = history.new_publisher()
    expected = int(options.get("expect", "-1"))
    write = history.invoke(
        publisher,
        state.partition_id,
        now,
        policy=policy,
        size=int(options.get("size", "64")),
        key=options.get("key", "").encode(),
        expected_offset=expected,
        is_tombstone="tombstone" in plain,
    )
    stage.writes[name] = write

    def serve(broker: Serving, now: Instant, wall_ns: int, answer: Answer) -> None:
        partition = broker.node.partitions[state.partition_id]
        pending_acks = () if policy == POLICY_NONE else (PendingAck(policy, Sink(answer)),)
        run = PublishRun(
            [write.value],
            partition.subject,
            "grpc",
            pending_acks,
            [write.key] if write.key else None,
            [write.headers] if write.headers else None,
            policy=policy,
            expected_offsets=[expected] if "expect" in options else None,
        )
        broker.node.publish(partition, run, now, wall_ns)
        if policy == POLICY_NONE:
            answer(None)

    def done(outcome: object) -> None:
        stage.outcomes[name] = note_outcome(stage, write, outcome)

    stage.life.calls.call("client", stage.machine(leader), serve, done)
    return [] if "later" in plain else outcome_of(stage, (name,))


def note_outcome(stage: Stage, write: Write, outcome: object, *, is_retry: bool = False) -> str:
    """Note and return the outcome of a write; a refusal of a retry does not count for the first."""
    history, now = stage.life.history, stage.world.now
    is_open = write.outcome is Outcome.UNKNOWN
    if isinstance(outcome, Stored):
        is_committed = write.policy == POLICY_ALL
        if is_open:
            history.acked(
                write,
                now,
                offset=outcome.base_offset,
                leader_epoch=outcome.leader_epoch,
                is_committed=is_committed,
            )
        assert write.offset == outcome.base_offset, f"was stored at {write.offset} before"
        epoch = stage.epochs.name(write.partition, outcome.leader_epoch)
        return f"acked {outcome.base_offset}@{epoch}"
    text = outcome.text if isinstance(outcome, LiftbridgeError) else ""
    if isinstance(outcome, Lost):
        text = outcome.reason
    if is_refused(outcome):
        if is_open and not is_retry:
            history.refused(write, now)
        return f"refused: {text}"
    if is_open:
        history.unknown(write)
    return f"unknown: {text}" if text else "no ack"


def outcome_of(stage: Stage, words: Sequence[str]) -> list[str]:
    """`outcome v1`: wait for what becomes of a message that was published `later`."""
    (name,) = words
    stage.wait_until(f"outcome of {name}", lambda: name in stage.outcomes)
    return [stage.outcomes[name]]


def delete(stage: Stage, words: Sequence[str]) -> list[str]:
    """`delete s`."""
    return told(propose(stage, DeleteStream(name=StreamName(words[0]))))


def reassign(stage: Stage, words: Sequence[str]) -> list[str]:
    """`reassign s/0 A,B,C [at=A]`: begin it; `until replicas` waits for its end."""
    (place, target), options = split_options(words)
    brokers = tuple(map(BrokerId, target.split(",")))
    command = StartReassignment(partition_id=stage.newest(place).partition_id, target=brokers)
    return told(propose(stage, command, options.get("at", "")))


def cancel(stage: Stage, words: Sequence[str]) -> list[str]:
    """`cancel s/0`: give a reassignment up."""
    command = CancelReassignment(partition_id=stage.newest(words[0]).partition_id)
    return told(propose(stage, command))


def prefer(stage: Stage, words: Sequence[str]) -> list[str]:
    """`prefer s/0`: elect the first replica."""
    command = ElectPreferred(partitions=(stage.newest(words[0]).partition_id,))
    outcome = propose(stage, command)
    return told(outcome)

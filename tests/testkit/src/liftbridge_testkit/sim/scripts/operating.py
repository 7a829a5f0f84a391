"""Verbs of operators and of clients with more than one message: settings, loads, readers."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from liftbridge_broker.controller.commands import (
    AlterStream,
    Command,
    CordonBroker,
    CreateStream,
    DeleteStream,
    ElectPreferred,
    InitPublisher,
    PauseStream,
    RemoveBroker,
    ResumeStream,
    StartReassignment,
)
from liftbridge_broker.errors import FailedPreconditionError, LiftbridgeError
from liftbridge_broker.groups.cursors import Cursor, CursorPosition, stamp
from liftbridge_broker.logformat.frames import decode_frame, iter_frames
from liftbridge_broker.model.ids import BrokerId, Instant, StreamName, stream_of
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.streams import FsyncPolicy, StreamOverrides, UncleanMode
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.partition.runs import POLICY_ALL, PendingAck, PublishRun, Stored
from liftbridge_broker.node.reading.subscription import (
    Position,
    StartPosition,
    StopPosition,
    Subscription,
)
from liftbridge_broker.wire.cursors import encode_cursor
from liftbridge_testkit.sim.clients.calls import Answer, Lost, Serving
from liftbridge_testkit.sim.clients.publishers import Sink
from liftbridge_testkit.sim.disk import LOG_FILES
from liftbridge_testkit.sim.history import Record, record_of
from liftbridge_testkit.sim.network import PPM
from liftbridge_testkit.sim.scripts import over_nats, senders
from liftbridge_testkit.sim.scripts.publishing import (
    ask,
    leader_of,
    outcome_of,
    propose,
    publish,
    settle_on,
    told,
)
from liftbridge_testkit.sim.scripts.stage import Stage, duration_ns, split_options

PULL_BYTES = 1 << 20
NEVER = Position(StopPosition.ON_CANCEL, 0, 0)
CURSORS = f"{CURSORS_STREAM}/0"


# -- brokers --------------------------------------------------------------------------------------


def _term(stage: Stage, words: Sequence[str]) -> list[str]:
    """`term A...`: SIGTERM, without waiting for the end."""
    for name in words:
        stage.machine(name).stop()
    return []


def _drain(stage: Stage, words: Sequence[str]) -> list[str]:
    """`drain A`: place nothing more on a broker, and move its replicas away."""
    return told(propose(stage, CordonBroker(broker=BrokerId(words[0]), draining=True)))


def _remove(stage: Stage, words: Sequence[str]) -> list[str]:
    """`remove A`: a stopped broker leaves permanently."""
    known = stage.metadata().brokers[BrokerId(words[0])]
    command = RemoveBroker(broker=known.broker, broker_epoch=known.broker_epoch)
    return told(propose(stage, command))


def _forget(stage: Stage, words: Sequence[str]) -> list[str]:
    """`forget A`: a machine that is removed is no part of what `settle` waits for."""
    stage.machine(words[0]).kill()
    del stage.world.machines[BrokerId(words[0])]
    return []


def _slow(stage: Stage, words: Sequence[str]) -> list[str]:
    """`slow A 5s`: each sync takes that long until `mend-disk A`."""
    speed = stage.machine(words[0]).files.speed
    speed.factor = max(1, duration_ns(words[1]) // speed.sync_ns_min)
    return []


def _spoil(stage: Stage, words: Sequence[str]) -> list[str]:
    """`spoil A pattern bit=N|empty|zero`: change every file of a stopped machine that matches."""
    (name, pattern, *how), options = split_options(words)
    files = stage.machine(name).files
    paths = [path for path in files.paths() if fnmatchcase(path, pattern)]
    assert paths, f"no file matches {pattern}: {' '.join(files.paths())}"
    for path in paths:
        if "bit" in options:
            files.spoil(path, int(options["bit"]))
        else:
            content = b"" if how == ["empty"] else bytes(len(files.content(path)))
            files.put(path, content)
    return []


def _zero(stage: Stage, words: Sequence[str]) -> list[str]:
    """`zero A pattern 400 600`: these bytes of every file that matches are zeros."""
    name, pattern, start, end = words
    files = stage.machine(name).files
    for path in files.paths():
        if fnmatchcase(path, pattern):
            content = files.content(path)
            zeros = bytes(int(end) - int(start))
            files.put(path, content[: int(start)] + zeros + content[int(end) :])
    return []


def _misdirect(stage: Stage, words: Sequence[str]) -> list[str]:
    """`misdirect A`: the next write to a log lands in another log, and zeros in its place."""
    stage.machine(words[0]).files.misdirected = LOG_FILES
    return []


def _weather(stage: Stage, words: Sequence[str]) -> list[str]:
    """`weather [lose=5%] [double=] [reorder=] [change=]`: what happens to messages by chance."""
    _, options = split_options(words)
    conditions = stage.world.network.conditions

    def ppm(name: str) -> int:
        return int(options.get(name, "0%").rstrip("%")) * PPM // 100

    conditions.loss_ppm, conditions.duplicate_ppm = ppm("lose"), ppm("double")
    conditions.reorder_ppm, conditions.corrupt_ppm = ppm("reorder"), ppm("change")
    return []


# -- streams --------------------------------------------------------------------------------------


def _tune(stage: Stage, words: Sequence[str]) -> list[str]:
    """`tune s [retention=3] [cleaner=200ms] [compact=on] [expect=on] [segment=200] [rf=3] ...`.

    Also `[min-isr=2] [unclean=manual] [fsync=commit] [cursor-bytes=1000]`.
    """
    (name,), options = split_options(words)
    if "cursor-bytes" in options:
        stage.hold_back(name, int(options["cursor-bytes"]))
    overrides = StreamOverrides(
        retention_messages_max=int(options["retention"]) if "retention" in options else None,
        cleaner_interval_ms=(
            duration_ns(options["cleaner"]) // 1_000_000 if "cleaner" in options else None
        ),
        compact_enabled=options["compact"] == "on" if "compact" in options else None,
        optimistic_concurrency=options["expect"] == "on" if "expect" in options else None,
        segment_bytes_max=int(options["segment"]) if "segment" in options else None,
        min_isr=int(options["min-isr"]) if "min-isr" in options else None,
        unclean_mode=UncleanMode(options["unclean"]) if "unclean" in options else None,
        fsync_policy=FsyncPolicy(options["fsync"]) if "fsync" in options else None,
        retention_cursor_bytes_max=(
            int(options["cursor-bytes"]) if "cursor-bytes" in options else None
        ),
    )
    command = AlterStream(
        name=StreamName(name),
        overrides=overrides,
        replication_factor=int(options.get("rf", "0")),
    )
    return told(propose(stage, command))


def _pause_stream(stage: Stage, words: Sequence[str]) -> list[str]:
    """`pause-stream s`: stop the intake; the next publish resumes it."""
    return told(propose(stage, PauseStream(name=StreamName(words[0]))))


def _resume_stream(stage: Stage, words: Sequence[str]) -> list[str]:
    return told(propose(stage, ResumeStream(name=StreamName(words[0]))))


def _trail(stage: Stage, words: Sequence[str]) -> list[str]:
    """`trail s/0`: each change of a partition since the last `trail`, or since `create`."""
    partition = stage.newest(words[0]).partition_id
    changes, stage.changes.known[partition] = stage.changes.known[partition], []
    return [
        f"{stage.epochs.name(partition, change.leader_epoch)} {change.leader or 'none'}"
        f" isr={','.join(change.isr) or 'none'} of {','.join(change.replicas)}"
        + (f" adding {','.join(change.adding)}" if change.adding else "")
        for change in changes
    ]


def _churn(stage: Stage, words: Sequence[str]) -> list[str]:
    """`churn s 80`: so many commands that change nothing but the publishers of a stream."""
    stream, count = words
    life, outcomes = stage.life, list[object]()
    machine = life.directory.serving()[0]
    for number in range(int(count)):
        command = InitPublisher(stream=StreamName(stream), publisher=f"churn-{number}")
        serve = partial(_propose, command)
        life.calls.call("client", machine, serve, outcomes.append)
    stage.wait_until("churn", lambda: len(outcomes) == int(count))
    return []


def _propose(
    command: Command, broker: Serving, now: Instant, _wall_ns: int, answer: Answer
) -> None:
    broker.node.propose(command, now, answer)


def _request(stage: Stage, words: Sequence[str]) -> list[str]:
    """`request q delete s|reassign s/0 A,B|prefer s/0 [at=A]`: ask, and go on; see `answer`."""
    (name, what, place, *rest), options = split_options(words)
    command: Command
    if what == "delete":
        command = DeleteStream(name=StreamName(place))
    elif what == "reassign":
        target = tuple(map(BrokerId, rest[0].split(",")))
        command = StartReassignment(partition_id=stage.newest(place).partition_id, target=target)
    else:
        command = ElectPreferred(partitions=(stage.newest(place).partition_id,))

    def answered(outcome: object) -> None:
        stage.outcomes[name] = " ".join(told(outcome)) or "done"

    at = options.get("at") or stage.life.directory.serving()[0].name
    stage.life.calls.call("client", stage.machine(at), partial(_propose, command), answered)
    return []


# -- clients --------------------------------------------------------------------------------------


def _burst(stage: Stage, words: Sequence[str]) -> list[str]:
    """`burst s v 10 [all|leader] [at=A]`: v1 to v10 at once; how many ended in which way."""
    place, prefix, count, *rest = words
    names = [f"{prefix}{number}" for number in range(1, int(count) + 1)]
    for name in names:
        publish(stage, (place, name, *rest, "later"))
    stage.wait_until("outcomes", lambda: all(name in stage.outcomes for name in names))
    ways = Counter(
        stage.outcomes[name].split()[0]
        if stage.outcomes[name].startswith("acked")
        else stage.outcomes[name]
        for name in names
    )
    return [f"{count} {way}" for way, count in sorted(ways.items())]


def _race(stage: Stage, words: Sequence[str]) -> list[str]:
    """`race s v 50 [expect=3]`: v1 to v50 at once, all for one offset; what became of them."""
    (place, prefix, count), options = split_options(words)
    expected = options["expect"]
    names = [f"{prefix}{number}" for number in range(1, int(count) + 1)]
    for name in names:
        publish(stage, (place, name, f"expect={expected}", "later"))
    stage.wait_until("outcomes", lambda: all(name in stage.outcomes for name in names))
    ways = Counter(stage.outcomes[name] for name in names)
    return [f"{count} {way}" for way, count in sorted(ways.items())]


def _read(stage: Stage, words: Sequence[str]) -> list[str]:
    """`read r s/0 [at=A] [from=N|latest]`: what `r` gets next, by the names of its messages."""
    (reader, place), options = split_options(words)
    partition_id = stage.newest(place).partition_id
    key = (reader, partition_id)
    begin = options.get("from", "")
    position = Position(StartPosition.EARLIEST, 0, 0)
    if begin == "latest":
        position = Position(StartPosition.LATEST, 0, 0)
    elif begin or key in stage.positions:
        position = Position(StartPosition.OFFSET, int(begin or stage.positions[key]), 0)

    def serve(broker: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
        partition = broker.node.partitions[partition_id]
        subscription = Subscription.open(
            partition,
            broker.node.client_reads,
            lambda: None,
            start=position,
            stop=NEVER,
            is_reverse=False,
            reads_replica=not partition.is_led,
        )
        records: list[tuple[Record, int]] = []
        while slices := subscription.pull(PULL_BYTES).slices:
            for piece in slices:
                for at, stop, _ in iter_frames(piece, 0, len(piece)):
                    record = record_of(decode_frame(piece, at, stop))
                    records.append((record, int(partition.log.log_start_offset)))
        subscription.close(now)
        answer(records)

    outcome = ask(stage, leader_of(stage, place, options), serve)
    if not isinstance(outcome, list):
        return told(outcome)
    names = {write.name: name for name, write in stage.writes.items()}
    for record, log_start in outcome:
        stage.life.history.seen(partition_id, reader, record, log_start)
        stage.positions[key] = record.offset + 1
    return [f"[{' '.join(names.get(record.name, '?') for record, _ in outcome)}]"]


# -- cursors --------------------------------------------------------------------------------------


def _cursors(stage: Stage, words: Sequence[str]) -> list[str]:
    """`cursors on=A,B,C`: make the stream of cursors with these replicas."""
    _, options = split_options(words)
    brokers = tuple(map(BrokerId, options["on"].split(",")))
    command = CreateStream(
        name=StreamName(CURSORS_STREAM),
        subject=f"lb.{CURSORS_STREAM}",
        replication_factor=len(brokers),
        overrides=StreamOverrides(compact_enabled=True, min_isr=2),
        is_internal=True,
    )
    outcome = propose(stage, command)
    settle_on(stage, CURSORS_STREAM, brokers)
    return [] if not isinstance(outcome, LiftbridgeError | Lost) else told(outcome)


def _set_cursor(stage: Stage, words: Sequence[str]) -> list[str]:
    """`set-cursor c 5 [at=A] [former] [read-in=none|current] [later]`: store a cursor, with ALL.

    With `former` it is meant for a stream that the present one of the name has taken the place of,
    with `read-in` for what was read before any unclean election, or after the last one.
    """
    (name, offset, *rest), options = split_options(words)
    partition_id = stage.newest(CURSORS).partition_id
    meant, read_in, is_present = 0, None, True
    if "read-in" in options:
        current = int(stage.newest("s/0").unclean_epoch)
        read_in = {"none": 0, "current": current}[options["read-in"]]
        is_present = read_in == current
    if "former" in rest:
        meant = stream_of(stage.newest("s/0").partition_id) - 1
    elif is_present:
        stage.note_cursor(int(offset))

    def serve(broker: Serving, now: Instant, wall_ns: int, answer: Answer) -> None:
        partition = broker.node.partitions[partition_id]
        stream = broker.node.state.stream("s")
        stream_id = 0 if stream is None else stream.stream_id
        unclean_epoch = 0 if stream is None else stream.partitions[0].unclean_epoch
        try:
            cursor = Cursor("s", 0, name, int(offset), meant)
            cursor = stamp(cursor, stream_id, unclean_epoch, read_in=read_in)
        except LiftbridgeError as error:
            answer(error)
            return
        run = PublishRun(
            [encode_cursor(cursor)],
            partition.subject,
            "grpc",
            (PendingAck(POLICY_ALL, Sink(answer)),),
            [cursor.key],
            policy=POLICY_ALL,
        )
        broker.node.publish(partition, run, now, wall_ns)

    leader = leader_of(stage, CURSORS, options)
    if "later" in rest:
        stage.life.calls.call("client", stage.machine(leader), serve, lambda _outcome: None)
        return []
    outcome = ask(stage, leader, serve)
    if isinstance(outcome, FailedPreconditionError):
        is_former = "history" not in outcome.text
        return [f"refused: of {'a former stream' if is_former else 'another history'}"]
    return ["set"] if isinstance(outcome, Stored) else told(outcome)


def _get_cursor(stage: Stage, words: Sequence[str]) -> list[str]:
    """`get-cursor c [at=A] [later]`: its offset, or why it cannot be had; see `answer`."""
    (name, *rest), options = split_options(words)
    partition_id = stage.newest(CURSORS).partition_id
    key = Cursor("s", 0, name, 0).key
    stage.outcomes.pop(name, None)

    def serve(broker: Serving, _now: Instant, _wall_ns: int, answer: Answer) -> None:
        broker.node.cursors.look_up(broker.node.partitions[partition_id], key, answer)

    def answered(outcome: object) -> None:
        if isinstance(outcome, CursorPosition):
            stage.outcomes[name] = str(outcome.offset)
        else:
            stage.outcomes[name] = " ".join(told(outcome))

    machine = stage.machine(leader_of(stage, CURSORS, options))
    stage.life.calls.call("client", machine, serve, answered)
    return [] if "later" in rest else outcome_of(stage, (name,))


# -- questions ------------------------------------------------------------------------------------


def _controls(stage: Stage, words: Sequence[str]) -> str:
    """`controls A`: whether a broker believes to lead the metadata group."""
    return "yes" if stage.broker(words[0]).consensus.is_leader else "no"


def _members(stage: Stage, which: Callable[[RaftConsensus], Sequence[Peer]]) -> str:
    """Return the brokers of the metadata group from its leader, `A.1` on the second disk of A."""
    found = [
        stage.broker(name).consensus
        for name, machine in stage.world.machines.items()
        if machine.program is not None and machine.program.is_ready
    ]
    leading = max(found, key=lambda one: (one.is_leader, one.term))
    names = [peer.data_dir_id.removesuffix(".0") for peer in which(leading)]
    return ",".join(sorted(names)) or "none"


def _voters(stage: Stage, words: Sequence[str]) -> str:
    """`voters`: members of the metadata group with a vote."""
    del words
    return _members(stage, lambda one: one.voters)


def _learners(stage: Stage, words: Sequence[str]) -> str:
    """`learners`: those without."""
    del words
    return _members(stage, lambda one: one.learners)


def _begins(stage: Stage, words: Sequence[str]) -> str:
    """`begins A s/0`: log start offset."""
    return str(stage.replica(*words).log.log_start_offset)


def _holds(stage: Stage, words: Sequence[str]) -> str:
    """`holds A s/0`: whether a broker has files of a partition that are not in the trash."""
    name, place = words
    stream, _, number = place.partition("/")
    known = stage.metadata().stream(stream)
    assert known is not None, f"no stream {stream}"
    folder = f"streams/{known.stream_id:010x}-{stream}/{number}/"
    files = stage.machine(name).files
    return "yes" if any(path.startswith(folder) for path in files.paths()) else "no"


def _defaults(stage: Stage, words: Sequence[str]) -> list[str]:
    """`defaults A,B fsync=commit`: write it into their configuration and have them reload it."""
    (names,), options = split_options(words)
    for name in names.split(","):
        broker = stage.broker(name)
        fresh = replace(
            stage.settings_of(name).broker.defaults, fsync_policy=FsyncPolicy(options["fsync"])
        )
        stage.defaults[name] = fresh
        broker.node.set_defaults(fresh, stage.machine(name).now())
    return []


VERBS: dict[str, Callable[[Stage, Sequence[str]], list[str]]] = {
    "term": _term,
    "drain": _drain,
    "remove": _remove,
    "forget": _forget,
    "slow": _slow,
    "spoil": _spoil,
    "zero": _zero,
    "misdirect": _misdirect,
    "weather": _weather,
    "tune": _tune,
    "defaults": _defaults,
    "pause-stream": _pause_stream,
    "resume-stream": _resume_stream,
    "trail": _trail,
    "churn": _churn,
    "request": _request,
    "answer": outcome_of,
    "burst": _burst,
    "race": _race,
    "read": _read,
    "cursors": _cursors,
    "set-cursor": _set_cursor,
    "get-cursor": _get_cursor,
    **over_nats.VERBS,
    **senders.VERBS,
}

QUESTIONS: dict[str, tuple[int, Callable[[Stage, Sequence[str]], str]]] = {
    "controls": (1, _controls),
    "voters": (0, _voters),
    "learners": (0, _learners),
    "begins": (2, _begins),
    "holds": (2, _holds),
}

"""Verbs of logs: replicas with given records, and answers of leaders to followers.

A separate store writes a log into the files of a stopped machine. The next start then runs the real
recovery on files that a broker could have left.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import count
from typing import NamedTuple

from liftbridge_broker.controller.commands import Leadership, Resign
from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import WireError
from liftbridge_broker.logformat.batch import read_header, seal
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.model.fetching import FetchBody, FetchedHead, FetchPosition, FetchReplyBody
from liftbridge_broker.model.ids import BrokerId, Instant, LeaderEpoch, MetadataIndex, Offset
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.partition.runs import POLICY_LEADER
from liftbridge_broker.ports.files import Token
from liftbridge_broker.storage.directory import CLEAN, Identity
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.smallfile import remove_small_file
from liftbridge_broker.storage.start import open_store
from liftbridge_broker.storage.store import LogStore, StoreOptions
from liftbridge_broker.wire.peer.frame import read_open
from liftbridge_broker.wire.peer.messages import decode
from liftbridge_testkit.sim.clock import WALL_START_NS
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.scripts.publishing import propose, told
from liftbridge_testkit.sim.scripts.stage import Stage, split_options

# -- logs as the script has them ------------------------------------------------------------------


class _Run(NamedTuple):
    """Records [first, end) of one epoch as one batch, or only the epoch without records."""

    first: int
    end: int
    epoch: int


def _run(word: str) -> _Run:
    """Parse `0@e1`, `0-3@e1` for one batch, or `e2` for an epoch without records."""
    place, _, epoch = word.rpartition("@")
    number = int(epoch.removeprefix("e"))
    if not place:
        return _Run(0, 0, number)
    first, _, last = place.partition("-")
    return _Run(int(first), int(last or first) + 1, number)


def _log(stage: Stage, words: Sequence[str]) -> list[str]:
    """`log A s/0 [start=N] 0@e1 1-3@e1 e2 4@e3 [hidden=N] [hw=N] [unclean]`: what A held.

    The machine stands still. Epochs are those the script gives; later ones are elected. Records
    below `hidden` were deleted by retention; with `unclean` the broker did not stop in order.
    """
    (name, place, *plain), options = split_options(words)
    runs = [_run(word) for word in plain if word != "unclean"]
    machine, state = stage.machine(name), stage.newest(place)
    assert not machine.is_running, f"{name} runs"
    stream = stage.metadata().stream(place.partition("/")[0])
    assert stream is not None, f"no stream of {place}"
    _name_epochs(stage, state, [run.epoch for run in runs])
    store, log = _open(stage, machine, stream, state)
    log.restart_at(Offset(int(options.get("start", log.log_start_offset))))
    writer = _Writer(stage, log, RecordEncoder(stream.name, state.number), f"sub.{stream.name}")
    for run in runs:
        writer.write(run)
    log.set_log_start(Offset(int(options.get("hidden", log.log_start_offset))))
    high_watermark = int(options.get("hw", log.log_start_offset))
    assert log.log_start_offset <= high_watermark <= log.log_end_offset, "no high watermark"
    log.high_watermark = Offset(high_watermark)
    store.close(stage.metadata().brokers[machine.name].broker_epoch)
    if "unclean" in plain:
        remove_small_file(machine.files, CLEAN)
    machine.files.kill()
    # Earlier answers are not part of the story.
    stage.fetching.clear()
    stage.fetching_seen.clear()
    return []


def _name_epochs(stage: Stage, state: PartitionState, given: Sequence[int]) -> None:
    """Keep the numbers of epochs that the script gives; those elected so far have no name."""
    epochs, partition = stage.epochs, state.partition_id
    is_first = partition not in epochs.before
    before = 0 if is_first else len(epochs.known[partition])
    last = max(before, *given, 0)
    assert last < state.leader_epoch, f"e{last} is not in the past"
    epochs.known[partition] = list(range(1, last + 1))
    if is_first:
        epochs.before[partition] = state.leader_epoch


class _Nobody:
    """An observer that ignores all events."""

    def transition(self, kind: str, fields: Mapping[str, object]) -> None:
        """No-op."""


def _open(
    stage: Stage, machine: Machine, stream: StreamState, state: PartitionState
) -> tuple[LogStore, PartitionLog]:
    """Return the store of a machine and the log of a partition in it."""
    tokens = count(1)
    store = open_store(
        machine.files,
        Identity(f"{machine.name}.{machine.disk_number}", machine.name),
        StoreOptions(known_names=("metadata",)),
        observer=_Nobody(),
        new_token=lambda: Token(next(tokens)),
        now=Instant(0),
        wall_ns=machine.wall_ns(),
    )
    options = stage.settings.broker.defaults.overridden(stream.overrides)
    log, reason = store.open(state.partition_id, stream.name, options, Instant(0))
    assert not reason, reason
    store.begin(MetadataIndex(0), Instant(0))
    return store, log


class _Writer:
    """Appends to a log; a record of one offset and epoch is the same at every replica."""

    def __init__(
        self, stage: Stage, log: PartitionLog, encoder: RecordEncoder, subject: str
    ) -> None:
        self._stage = stage
        self._log = log
        self._encoder = encoder
        self._subject = subject

    def write(self, run: _Run) -> None:
        """Append one batch, or note an epoch that begins at the end and has no records."""
        log, epoch = self._log, LeaderEpoch(run.epoch)
        if run.first == run.end:
            log.epochs.assign(epoch, log.log_end_offset)
            return
        assert run.first == log.log_end_offset, f"{run.first} is not at {log.log_end_offset}"
        timestamps = [WALL_START_NS + offset for offset in range(run.first, run.end)]
        frames = [
            self._encoder.encode_record(
                offset=offset,
                timestamp=timestamp,
                subject=self._subject,
                reply="",
                value=self._value(f"{offset}@e{run.epoch}"),
            )
            for offset, timestamp in enumerate(timestamps, run.first)
        ]
        batch = seal(
            frames=frames,
            partition_id=log.partition_id,
            leader_epoch=epoch,
            base_offset=Offset(run.first),
            last_offset=Offset(run.end - 1),
            count=len(frames),
            first_timestamp=timestamps[0],
            largest_timestamp=timestamps[-1],
        )
        log.append(batch, read_header(batch, 0), timestamps[-1])

    def _value(self, name: str) -> bytes:
        """Return the value of the message with this name, which was sent without an answer."""
        stage = self._stage
        if name not in stage.writes:
            history = stage.life.history
            stage.writes[name] = history.invoke(
                history.new_publisher(),
                self._log.partition_id,
                stage.world.now,
                policy=POLICY_LEADER,
            )
        return stage.writes[name].value


def _shorten(stage: Stage, words: Sequence[str]) -> list[str]:
    """`shorten A pattern 7`: these files lack their last bytes; the machine stands still."""
    name, pattern, size = words
    machine, files = stage.machine(name), stage.machine(name).files
    assert not machine.is_running, f"{name} runs"
    paths = [path for path in files.paths() if fnmatchcase(path, pattern)]
    assert paths, f"no file matches {pattern}: {' '.join(files.paths())}"
    for path in paths:
        files.put(path, files.content(path)[: -int(size)])
    return []


# -- leaders --------------------------------------------------------------------------------------


def _hand_over(stage: Stage, words: Sequence[str]) -> list[str]:
    """`hand-over s/0 B`: the leader transfers its leadership, and stays in sync."""
    place, successor = words
    state = stage.newest(place)
    assert state.leader is not None, f"nobody leads {place}"
    command = Resign(
        broker=state.leader,
        broker_epoch=stage.metadata().brokers[state.leader].broker_epoch,
        partitions=(Leadership(state.partition_id, state.leader_epoch),),
        successor=BrokerId(successor),
    )
    return told(propose(stage, command))


# -- what leaders answer --------------------------------------------------------------------------


def _answers(stage: Stage, words: Sequence[str]) -> list[str]:
    """`answers A>B s/0`: what A told B, since the last `answers` of the two.

    Each line begins with what was asked: the end of the follower's log and its last epoch. Answers
    without news, and those that repeat the one before, are left out.
    """
    way, place = words
    leader, _, follower = way.partition(">")
    partition = stage.newest(place).partition_id
    asked: dict[int, FetchPosition] = {}
    lines: list[str] = []
    start = stage.fetching_seen.get((way, partition), 0)
    stage.fetching_seen[way, partition] = len(stage.fetching)
    for number, (source, target, payload) in enumerate(stage.fetching):
        body = _body(payload)
        if isinstance(body, FetchBody) and (source, target) == (follower, leader):
            asked.update({one.fetch_offset: one for one in body.partitions if one[0] == partition})
        if isinstance(body, FetchReplyBody) and (source, target) == (leader, follower):
            for head in body.partitions:
                line = _line(stage, asked.get(head.fetch_offset), head)
                is_new = number >= start and head.partition == partition
                if is_new and line and line not in lines[-1:]:
                    lines.append(line)
    return lines


def _body(payload: bytes) -> object:
    try:
        return decode(read_open(payload))[0].body
    except WireError:
        return None


def _line(stage: Stage, asked: FetchPosition | None, head: FetchedHead) -> str:
    """Return the question and the answer, empty when there is none."""
    partition = head.partition

    def name(epoch: int | None) -> str:
        return "none" if epoch is None else stage.epochs.name(partition, epoch)

    if head.error is not None:
        said = head.error.name.lower()
    elif head.diverging is not None:
        said = f"diverging {name(head.diverging[0])}:{head.diverging[1]}"
    elif head.data_bytes:
        said = "records"
    else:
        return ""
    return f"{head.fetch_offset}@{name(asked and asked.last_fetched_epoch)} {said}"


def _knows(stage: Stage, words: Sequence[str]) -> str:
    """`knows A s/0 B`: where leader A believes the log of B to end, `unknown` before it asked."""
    name, place, follower = words
    cluster = stage.broker(name).node.cluster
    assert cluster is not None
    core = cluster.replicas.leading[stage.newest(place).partition_id].core
    known = core.known(BrokerId(follower))
    return "unknown" if known is None or known.log_end_offset is None else str(known.log_end_offset)


VERBS: dict[str, Callable[[Stage, Sequence[str]], list[str]]] = {
    "log": _log,
    "shorten": _shorten,
    "hand-over": _hand_over,
    "answers": _answers,
}

QUESTIONS: dict[str, tuple[int, Callable[[Stage, Sequence[str]], str]]] = {
    "knows": (3, _knows),
}

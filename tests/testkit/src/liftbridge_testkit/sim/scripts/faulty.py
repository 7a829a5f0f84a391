"""Verbs for faults around in-sync sets and elections: late messages, old disks, loss."""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from liftbridge_broker.controller.commands import AlterPartition, IsrMember, RecoverUnclean
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import BrokerId, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.replication.isr import MEMBER_ALREADY
from liftbridge_broker.replication.leader import LeaderCore
from liftbridge_testkit.sim.clients.calls import Lost
from liftbridge_testkit.sim.history import Outcome
from liftbridge_testkit.sim.kinds import kinds_of
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.network import Endpoint, Held, Verdict
from liftbridge_testkit.sim.scripts import looking
from liftbridge_testkit.sim.scripts.commands import Asked
from liftbridge_testkit.sim.scripts.publishing import propose
from liftbridge_testkit.sim.scripts.stage import Rule, Stage, duration_ns, split_options

# -- messages -------------------------------------------------------------------------------------


def _way(words: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    """Return source, target and kinds of `A>B kind...`."""
    way, *kinds = words
    source, _, target = way.partition(">")
    return source, target or "*", kinds or ["*"]


def _copy(stage: Stage, words: Sequence[str]) -> list[str]:
    """`copy A>B kind...`: let them pass and hold a copy of each."""
    source, target, kinds = _way(words)
    stage.rules += [Rule(source, target, kind, Verdict.PASS, is_copied=True) for kind in kinds]
    return []


def _deliver(stage: Stage, words: Sequence[str]) -> list[str]:
    """`deliver [A>B kind... [last-first] [count=N]]`: what was held arrives; hold it no more.

    Without words that is so of everything, and of what is dropped. With a count only the first of
    them arrive and the rest is held on. Messages go to the present owner of the name.
    """
    words, options = split_options(words)
    plain = [word for word in words if word != "last-first"]
    source, target, kinds = _way(plain) if plain else ("*", "*", ["*"])
    wanted = [Rule(source, target, kind, Verdict.PASS) for kind in kinds]

    def is_meant(rule: Rule) -> bool:
        return not plain or ((rule.source, rule.target) == (source, target) and rule.kind in kinds)

    if "count" not in options:
        stage.rules[:] = [rule for rule in stage.rules if not is_meant(rule)]
    network = stage.world.network
    left = int(options.get("count", len(network.held)))
    held, network.held = network.held, []
    letters: list[Held] = []
    for one in held:
        ends = one.source.name, one.target.name
        is_wanted = any(rule.fits(*ends, kinds_of(one.payload)) for rule in wanted)
        if is_wanted and len(letters) < left:
            letters.append(one)
        else:
            network.held.append(one)
    for letter in reversed(letters) if "last-first" in words else letters:
        _post(stage, letter)
    return []


def _post(stage: Stage, letter: Held) -> None:
    """Deliver a message although its sender or its former receiver is gone."""
    network = stage.world.network
    sender = Endpoint(letter.source.name, letter.source.receiver, takes_peers=True, is_up=True)
    network.filter, keep = None, network.filter
    network.send(sender, letter.target.name, letter.channel, letter.payload)
    network.filter = keep


def _pulse(stage: Stage, words: Sequence[str]) -> list[str]:
    """`pulse A>B 800ms 300ms for=60s`: lose everything on this way for a time, again and again."""
    (way, off, on), options = split_options(words)
    until = stage.world.now + duration_ns(options["for"])
    ways = stage.ways(way)
    while stage.world.now < until:
        for one in ways:
            stage.world.network.cut(*one)
        stage.run_for(duration_ns(off))
        for one in ways:
            stage.world.network.mend(*one)
        stage.run_for(duration_ns(on))
    return []


# -- what is asked of the metadata ----------------------------------------------------------------


def _answer(answer: object) -> str:
    """Return `done`, or the code of a refusal: its text has epochs, which stories do not show."""
    if isinstance(answer, Lost):
        return f"lost: {answer.reason}"
    return answer.code if isinstance(answer, LiftbridgeError) else "done"


def _former(states: Sequence[PartitionState], name: BrokerId) -> int:
    """Return the session of a replica before the present one."""
    present = states[-1].replica_epoch(name)
    known = [state.replica_epoch(name) for state in states]
    return next(one for one in reversed(known) if one is not None and one != present)


def _alter(stage: Stage, words: Sequence[str]) -> list[str]:
    """`alter s/0 A,B,C [by=A] [epoch=former] [session=former] [state=recovering]`: forge a request.

    As a leader would send it to change the in-sync set, decided on the present state or on the one
    before, and with the present sessions of those that are added or with the ones before.
    """
    (place, members), options = split_options(words)
    state = stage.newest(place)
    states = stage.commands.states[state.partition_id]
    epoch = states[-2].partition_epoch if "epoch" in options else state.partition_epoch
    leader = BrokerId(options.get("by", state.leader or ""))

    def session(name: BrokerId) -> int:
        if name in state.isr:
            return MEMBER_ALREADY
        return _former(states, name) if "session" in options else state.replica_epoch(name) or 0

    command = AlterPartition(
        broker=leader,
        broker_epoch=stage.metadata().brokers[leader].broker_epoch,
        partition_id=state.partition_id,
        leader_epoch=state.leader_epoch,
        partition_epoch=epoch,
        isr=tuple(IsrMember(one, session(one)) for one in map(BrokerId, members.split(","))),
        is_recovering=options.get("state") == "recovering",
    )
    return [_answer(propose(stage, command, at=looking.metadata(stage, ())))]


def _elect(stage: Stage, words: Sequence[str]) -> list[str]:
    """`elect s/0 B [epoch=former]`: an operator names the leader of an unclean election."""
    (place, name), options = split_options(words)
    state = stage.newest(place)
    states = stage.commands.states[state.partition_id]
    epoch = states[-2].partition_epoch if "epoch" in options else state.partition_epoch
    command = RecoverUnclean(
        partition_id=state.partition_id, chosen=BrokerId(name), partition_epoch=epoch
    )
    return [_answer(propose(stage, command, at=looking.metadata(stage, ())))]


def _asked(stage: Stage, words: Sequence[str]) -> list[str]:
    """`asked s/0`: what the log was asked about the leader or in-sync set since the last `asked`.

    Each has its answer, refused ones too. Equal ones in a row are one line.
    """
    partition = stage.newest(words[0]).partition_id
    commands = stage.commands
    start, commands.told[partition] = commands.told.get(partition, 0), len(commands.asked)
    lines: list[tuple[str, int]] = []
    for line in _lines(commands.asked[start:], partition):
        if lines and lines[-1][0] == line:
            lines[-1] = (line, lines[-1][1] + 1)
        else:
            lines.append((line, 1))
    return [line if count == 1 else f"{line} {count} times" for line, count in lines]


def _lines(asked: Sequence[Asked], partition: PartitionId) -> Iterator[str]:
    for _, command, answer in asked:
        if isinstance(command, AlterPartition) and command.partition_id == partition:
            members = ",".join(member.broker for member in command.isr)
            yield f"{command.broker} wants isr={members}: {_answer(answer)}"
        if isinstance(command, RecoverUnclean) and command.partition_id == partition:
            ends = [f"{one.broker}={one.log_end_offset}" for one in command.answers]
            heard = f" of {','.join(ends)}" if ends else ""
            yield f"{command.mode.value} recovery by {command.chosen}{heard}: {_answer(answer)}"


def _isr_changes(stage: Stage, words: Sequence[str]) -> list[str]:
    """`isr-changes s/0 most=8`: no leader changed the in-sync set more often so far."""
    (place,), options = split_options(words)
    count = stage.commands.changes_of_isr(stage.newest(place).partition_id)
    assert count <= int(options["most"]), f"{count} changes"
    return []


# -- disks and loss -------------------------------------------------------------------------------


def _save_disk(stage: Stage, words: Sequence[str]) -> list[str]:
    """`save-disk A`: keep a copy of all files of a machine, which does not run."""
    machine = _stopped(stage, words[0])
    files = machine.files
    stage.disks[machine.name] = {path: files.content(path) for path in files.paths()}
    return []


def _restore_disk(stage: Stage, words: Sequence[str]) -> list[str]:
    """`restore-disk A [from=B] [but=metadata/*]`: all files are what they were in the copy.

    Those that `but` names stay as they are.
    """
    (name,), options = split_options(words)
    machine = _stopped(stage, name)
    files, but = machine.files, options.get("but", "")
    copy = stage.disks[BrokerId(options.get("from", name))]
    copy = {path: content for path, content in copy.items() if not fnmatchcase(path, but)}
    kept = {path: files.content(path) for path in files.paths() if fnmatchcase(path, but)}
    files.wipe()
    for path, content in (copy | kept).items():
        files.put(path, content)
    return []


def _stopped(stage: Stage, name: str) -> Machine:
    machine = stage.machine(name)
    assert not machine.is_running, f"{name} runs"
    return machine


def _lost(stage: Stage, words: Sequence[str]) -> list[str]:
    """`lost s/0`: more was lost than the promise covers; what acknowledged messages are gone.

    Those that the leader of the last unclean election does not have; `settle` lets it pass.
    """
    state = stage.newest(words[0])
    assert state.leader is not None
    assert state.leader_epoch == state.unclean_epoch, "no unclean election"
    end = stage.replica(state.leader, words[0]).log.log_end_offset
    gone = [
        name
        for name, write in stage.writes.items()
        if write.partition == state.partition_id
        and write.outcome is Outcome.ACKED
        and write.is_committed
        and write.offset >= end
    ]
    stage.life.history.may_lose(state.partition_id, end)
    return [f"[{' '.join(gone)}]"]


# -- questions ------------------------------------------------------------------------------------


def _core(stage: Stage, name: str, place: str) -> LeaderCore:
    cluster = stage.broker(name).node.cluster
    assert cluster is not None
    return cluster.replicas.leading[stage.newest(place).partition_id].core


def _maximal(stage: Stage, words: Sequence[str]) -> str:
    """`maximal A s/0`: brokers that count for a commit at a leader, also during a change."""
    return ",".join(_core(stage, *words).maximal_isr)


VERBS: dict[str, Callable[[Stage, Sequence[str]], list[str]]] = {
    "copy": _copy,
    "deliver": _deliver,
    "pulse": _pulse,
    "alter": _alter,
    "elect": _elect,
    "asked": _asked,
    "isr-changes": _isr_changes,
    "save-disk": _save_disk,
    "restore-disk": _restore_disk,
    "lost": _lost,
}

QUESTIONS: dict[str, tuple[int, Callable[[Stage, Sequence[str]], str]]] = {
    "maximal": (2, _maximal),
}

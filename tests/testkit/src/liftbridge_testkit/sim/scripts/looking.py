"""Verbs that query state: `show` prints it, `expect` checks it at once, `until` waits for it."""

from collections.abc import Callable, Iterable, Sequence

from liftbridge_broker.model.ids import Offset
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_testkit.sim.history import Record
from liftbridge_testkit.sim.scripts.stage import Stage


def leader(stage: Stage, words: Sequence[str]) -> str:
    """`leader s/0`: the leader, `none` without one."""
    return str(stage.newest(words[0]).leader or "none")


def epoch(stage: Stage, words: Sequence[str]) -> str:
    """`epoch s/0`: name of the leader epoch."""
    state = stage.newest(words[0])
    return stage.epochs.name(state.partition_id, state.leader_epoch)


def _brokers(names: Sequence[str]) -> str:
    return ",".join(names) or "none"


def isr(stage: Stage, words: Sequence[str]) -> str:
    """`isr s/0`: the in-sync set, in the order of replicas."""
    return _brokers(stage.newest(words[0]).isr)


def elr(stage: Stage, words: Sequence[str]) -> str:
    """`elr s/0`: eligible leaders."""
    return _brokers(stage.newest(words[0]).elr)


def last_known(stage: Stage, words: Sequence[str]) -> str:
    """`last-known s/0`: replicas that were eligible and stopped uncleanly."""
    return _brokers(stage.newest(words[0]).last_known_elr)


def replicas(stage: Stage, words: Sequence[str]) -> str:
    """`replicas s/0`: assigned brokers."""
    return _brokers(stage.newest(words[0]).replicas)


def recovering(stage: Stage, words: Sequence[str]) -> str:
    """`recovering s/0`: whether the leader of an unclean election has not begun."""
    return "yes" if stage.newest(words[0]).is_recovering else "no"


def log(stage: Stage, words: Sequence[str]) -> str:
    """`log A s/0`: offset and leader epoch of every record of a replica."""
    partition = stage.replica(*words)
    found, name = partition.log, stage.epochs.name
    return _list(
        f"{at}@{name(partition.partition_id, found.epochs.epoch_at(Offset(at)))}"
        for at in range(found.log_start_offset, found.log_end_offset)
    )


def values(stage: Stage, words: Sequence[str]) -> str:
    """`values A s/0`: records of a replica, by the names they were published under."""
    names = {write: name for name, write in stage.writes.items()}
    history, partition = stage.life.history, stage.replica(*words)
    found = (history.find(record) for record in _records(stage, partition))
    return _list("?" if write is None else names.get(write, "?") for write in found)


def _records(stage: Stage, partition: Partition) -> list[Record]:
    """Return all records, committed or not."""
    reader = partition.log.reader(partition.log.log_start_offset)
    found: list[Record] = []
    while slices := reader.read(1 << 20, partition.log.log_end_offset).slices:
        for piece in slices:
            found += stage.life.history.frames.records(piece)
    reader.close()
    return found


def _list(items: Iterable[str]) -> str:
    return f"[{' '.join(items)}]"


def epochs(stage: Stage, words: Sequence[str]) -> str:
    """`epochs A s/0`: the leader-epoch cache of a replica."""
    partition = stage.replica(*words)
    return _list(
        f"{stage.epochs.name(partition.partition_id, one)}:{start}"
        for one, start in partition.log.epochs.entries
    )


def end(stage: Stage, words: Sequence[str]) -> str:
    """`end A s/0`: log end offset."""
    return str(stage.replica(*words).log.log_end_offset)


def high_watermark(stage: Stage, words: Sequence[str]) -> str:
    """`hw A s/0`: high watermark, exclusive."""
    return str(stage.replica(*words).log.high_watermark)


def role(stage: Stage, words: Sequence[str]) -> str:
    """`role A s/0`: what a broker is to a partition."""
    return str(stage.replica(*words).role)


def offline(stage: Stage, words: Sequence[str]) -> str:
    """`offline A s/0`: whether its files cannot be used."""
    return "yes" if stage.replica(*words).offline_reason else "no"


def metadata(stage: Stage, words: Sequence[str]) -> str:
    """`metadata`: leader of the metadata group in the highest term; `none` without one."""
    del words
    leading = []
    for name in stage.world.machines:
        program = stage.machine(name).program
        if program is not None and program.is_ready:
            consensus = stage.broker(name).consensus
            if consensus.is_leader:
                leading.append((consensus.term, name))
    return str(max(leading)[1]) if leading else "none"


def fenced(stage: Stage, words: Sequence[str]) -> str:
    """`fenced A`: whether the cluster counts a broker as gone."""
    states = [
        stage.broker(name).node.state
        for name in stage.world.machines
        if (program := stage.machine(name).program) is not None and program.is_ready
    ]
    newest = max(states, key=lambda state: state.applied_index)
    known = next((broker for broker in newest.brokers.values() if broker.broker == words[0]), None)
    return "unknown" if known is None else "yes" if known.fenced else "no"


def running(stage: Stage, words: Sequence[str]) -> str:
    """`running A`: whether a process runs."""
    return "yes" if stage.machine(words[0]).is_running else "no"


def told(stage: Stage, words: Sequence[str]) -> str:
    """`told A log_truncated`: how often a broker told a transition."""
    name, kind = words
    return str(stage.told.get((name, kind), 0))


def fate(stage: Stage, words: Sequence[str]) -> str:
    """`fate v1`: what is known of a message at present: acked, refused or unknown."""
    return stage.writes[words[0]].outcome.value


QUESTIONS: dict[str, tuple[int, Callable[[Stage, Sequence[str]], str]]] = {
    "leader": (1, leader),
    "epoch": (1, epoch),
    "isr": (1, isr),
    "elr": (1, elr),
    "last-known": (1, last_known),
    "replicas": (1, replicas),
    "recovering": (1, recovering),
    "log": (2, log),
    "values": (2, values),
    "epochs": (2, epochs),
    "end": (2, end),
    "hw": (2, high_watermark),
    "role": (2, role),
    "offline": (2, offline),
    "metadata": (0, metadata),
    "fenced": (1, fenced),
    "running": (1, running),
    "told": (2, told),
    "fate": (1, fate),
}
"""Questions by name: their number of words, and their functions; `play` adds more."""


def answer(stage: Stage, words: Sequence[str]) -> tuple[str, str]:
    """Return the actual and the expected state, the latter empty when the script has none."""
    count, look = QUESTIONS[words[0]]
    return look(stage, words[1 : 1 + count]), " ".join(words[1 + count :])


def show(stage: Stage, words: Sequence[str]) -> list[str]:
    """`show leader s/0`: print it."""
    return [answer(stage, words)[0]]


def expect(stage: Stage, words: Sequence[str]) -> list[str]:
    """`expect leader s/0 B`: fail if it differs."""
    found, wanted = answer(stage, words)
    assert found == wanted, f"is {found}"
    return []


def until(stage: Stage, words: Sequence[str]) -> list[str]:
    """`until leader s/0 B`: wait for it."""
    if words[0] == "ready":
        stage.ready(words[1])
        return []

    def happens() -> bool:
        found, wanted = answer(stage, words)
        return found == wanted

    stage.wait_until(" ".join(words), happens)
    return []

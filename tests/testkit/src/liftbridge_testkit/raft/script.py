"""Scripts of a group: commands, `----`, output; block after block (etcd's `datadriven`).

A block ends with an empty line; lines with `#` belong to the reader. `rewrite` puts what happens
now in the place of what is expected. The commands:

    reset                      forget everything and start again
    options NAME=VALUE...      bounds of all peers, before `group`
    group 1 2 3 [learners=4]   disks of a bootstrapped group, no member up
    spare 4...                 empty disks that belong to no group; `2'` is broker 2 with a new disk
    disk N TERMS [term=T] [vote=M] [commit=I]   a log with entries of these terms
    start N...                 start processes; `start all`
    campaign N                 its election timeout runs out now
    timeout N                  the same, but the leader was just heard by the others
    beat N                     the leader's heartbeats are due now
    propose N DATA...          at this peer
    change N learner|promote|remove M
    transfer N M · abandon N M · read N TOKEN · compact N [keep=K]
    hold N · sync N            writes wait for `sync` · they become durable
    crash N [keep=K]           keeping K steps of what was being written (snapshot, entries, state)
    run · trace                deliver everything, in order · and print each message
    queue                      print what is on its way, numbered
    deliver F · drop F · copy F   messages by number, or by words of their text
    forge KIND from=N to=M ... [at=K]   deliver a message that was never sent (to K)
    elapse MS · sleep MS · tick N   healthy time · time nobody notices · look at the clock
    cut 1 2 | 3 · cut 1>2 · heal
    show [N...]                what the peers are and hold
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from liftbridge_broker.model.metadata_log import Configuration, Entry, EntryKind, HardState
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.raft.core import RaftCore
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.raft.types import AddLearner, Message, Promote, RaftRefusalError, Remove
from liftbridge_testkit.raft.cluster import Host, RaftCluster, name_of, peer_of
from liftbridge_testkit.raft.texts import (
    host_text,
    message_text,
    milliseconds,
    parse_message,
    peers_of,
)

CHANGES: dict[str, type[AddLearner] | type[Promote] | type[Remove]] = {
    "learner": AddLearner,
    "promote": Promote,
    "remove": Remove,
}


class Block:
    """Commands and their expected output; `before` is kept as it is."""

    def __init__(self, before: list[str], commands: list[str], expected: list[str]) -> None:
        self.before = before
        self.commands = commands
        self.expected = expected

    def text(self, output: list[str]) -> str:
        """Return the block with this output."""
        return "\n".join([*self.before, *self.commands, "----", *output])


def read_blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a script."""
    before: list[str] = []
    commands: list[str] = []
    expected: list[str] | None = None
    for line in [*text.splitlines(), ""]:
        if expected is not None:
            if line:
                expected.append(line)
                continue
            yield Block(before, commands, expected)
            before, commands, expected = [], [], None
        elif line == "----":
            expected = []
        elif not line or line.startswith("#"):
            before.append(line)
        else:
            commands.append(line)
    if commands:
        raise ValueError(f"no ---- behind {commands[-1]}")


def play(path: Path, *, rewrite: bool) -> tuple[str, str]:
    """Run a script.

    Returns:
        The text of the file, and the text with actual output; equal when the script passes.
    """
    text = path.read_text(encoding="utf-8")
    script = Script()
    parts = [block.text(script.run(block.commands)) for block in read_blocks(text)]
    played = "\n\n".join(parts) + "\n"
    if rewrite:
        path.write_text(played, encoding="utf-8")
        return played, played
    return text, played


class Script:
    """Runs commands on one group."""

    def __init__(self) -> None:
        self._options = RaftOptions()
        self._cluster = RaftCluster(self._options)
        self._lines: list[str] = []
        self._told: dict[Host, tuple[int, int]] = {}

    def run(self, commands: list[str]) -> list[str]:
        """Return the output of the commands."""
        self._lines = []
        self._cluster.report = self._lines.append
        for command in commands:
            name, *words = command.split()
            handler: Callable[[list[str]], None] = getattr(self, f"_do_{name}")
            try:
                handler(words)
            except RaftRefusalError as error:
                self._lines.append(f"refused: {error}")
            self._tell_reads()
        return self._lines

    def _tell_reads(self) -> None:
        for host in self._cluster.hosts.values():
            served, failed = self._told.get(host, (0, 0))
            name = name_of(host.peer)
            self._lines += [f"{name} serves read {t} at {i}" for t, i in host.reads[served:]]
            self._lines += [f"{name} fails read {t}" for t in host.reads_failed[failed:]]
            self._told[host] = (len(host.reads), len(host.reads_failed))

    def _act(self, name: str, action: Callable[[RaftCore], object]) -> None:
        def void(core: RaftCore) -> None:
            action(core)

        self._cluster.act(peer_of(name), void)

    # --- Making a group -------------------------------------------------------------------------

    def _do_reset(self, _: list[str]) -> None:
        self._options = RaftOptions()
        self._cluster = RaftCluster(self._options)
        self._cluster.report = self._lines.append

    def _do_options(self, words: list[str]) -> None:
        bounds = {name: int(value) for name, _, value in (word.partition("=") for word in words)}
        self._options = replace(self._options, **bounds)
        self._cluster = RaftCluster(self._options)
        self._cluster.report = self._lines.append

    def _do_group(self, words: list[str]) -> None:
        voters = [word for word in words if "=" not in word]
        learners = [n for w in words if "=" in w for n in w.partition("=")[2].split(",")]
        configuration = Configuration(
            tuple(sorted(peers_of(voters))), tuple(sorted(peers_of(learners)))
        )
        for peer in configuration.voters + configuration.learners:
            self._cluster.add(peer, configuration)

    def _do_spare(self, words: list[str]) -> None:
        for peer in peers_of(words):
            self._cluster.add(peer, EMPTY)

    def _do_disk(self, words: list[str]) -> None:
        terms = [int(term) for term in words[1].split(",")] if words[1] != "-" else []
        fields = dict(word.partition("=")[::2] for word in words[2:])
        vote = peer_of(fields["vote"]) if "vote" in fields else None
        state = HardState(
            int(fields.get("term", max(terms, default=0))), vote, int(fields.get("commit", "0"))
        )
        entries = [
            Entry(index, term, EntryKind.COMMAND, b"%d/%d" % (index, term))
            for index, term in enumerate(terms, 1)
        ]
        self._cluster.hosts[peer_of(words[0])].storage.load(entries, state)

    def _do_start(self, words: list[str]) -> None:
        hosts = self._cluster.hosts
        for peer in (
            [p for p in hosts if hosts[p].core is None] if words == ["all"] else peers_of(words)
        ):
            self._cluster.start(peer)

    # --- Requests to peers ----------------------------------------------------------------------

    def _do_campaign(self, words: list[str]) -> None:
        """Expire every lease, and let this peer notice first."""
        for host in self._cluster.running():
            if host.core is not None and not host.core.is_leader:
                host.core._timers.leader_heard_at -= self._options.election_ns
        self._do_timeout(words)

    def _do_timeout(self, words: list[str]) -> None:
        def expire(core: RaftCore) -> None:
            core._timers.election_deadline = self._cluster.now
            core.tick(self._cluster.now)

        self._act(words[0], expire)

    def _do_beat(self, words: list[str]) -> None:
        def expire(core: RaftCore) -> None:
            core._timers.heartbeat_due = self._cluster.now
            core.tick(self._cluster.now)

        self._act(words[0], expire)

    def _do_propose(self, words: list[str]) -> None:
        def propose(core: RaftCore) -> None:
            for data in words[1:]:
                core.propose(data.encode())

        self._act(words[0], propose)

    def _do_change(self, words: list[str]) -> None:
        change = CHANGES[words[1]](peer_of(words[2]))
        self._act(words[0], lambda core: core.propose_config(change))

    def _do_abandon(self, words: list[str]) -> None:
        peer = peer_of(words[1])
        self._act(words[0], lambda core: core.abandon(peer, 0, self._cluster.now))

    def _do_transfer(self, words: list[str]) -> None:
        peer = peer_of(words[1])
        self._act(words[0], lambda core: core.transfer(peer, self._cluster.now))

    def _do_read(self, words: list[str]) -> None:
        self._act(words[0], lambda core: core.read(int(words[1]), self._cluster.now))

    def _do_compact(self, words: list[str]) -> None:
        kept = int(words[1].partition("=")[2]) if len(words) > 1 else 0
        assert self._cluster.hosts[peer_of(words[0])].compact(kept)

    # --- Disk and process -----------------------------------------------------------------------

    def _do_hold(self, words: list[str]) -> None:
        for peer in peers_of(words):
            self._cluster.hosts[peer].is_holding = True

    def _do_sync(self, words: list[str]) -> None:
        for peer in peers_of(words):
            self._cluster.hosts[peer].is_holding = False
            self._cluster.sync(peer)

    def _do_crash(self, words: list[str]) -> None:
        host = self._cluster.hosts[peer_of(words[0])]
        host.crash(int(words[1].partition("=")[2]) if len(words) > 1 else 0)
        host.is_holding = False

    # --- Network --------------------------------------------------------------------------------

    def _do_run(self, _: list[str]) -> None:
        self._cluster.settle()

    def _do_trace(self, _: list[str]) -> None:
        while self._cluster.network:
            self._deliver(self._cluster.network.pop(0))

    def _deliver(self, message: Message) -> None:
        self._lines.append(message_text(message))
        self._cluster.deliver(message)

    def _do_queue(self, _: list[str]) -> None:
        for number, message in enumerate(self._cluster.network, 1):
            self._lines.append(f"{number}: {message_text(message)}")

    def _chosen(self, words: list[str]) -> list[Message]:
        """Return messages in flight by number, or those with all the words in their text."""
        network = self._cluster.network
        if words and words[0].isdigit():
            return [network[int(word) - 1] for word in words]
        return [m for m in network if all(word in message_text(m) for word in words)]

    def _do_deliver(self, words: list[str]) -> None:
        chosen = self._chosen(words)
        self._remove(chosen)
        for message in chosen:
            self._deliver(message)

    def _do_drop(self, words: list[str]) -> None:
        self._remove(self._chosen(words))

    def _do_copy(self, words: list[str]) -> None:
        self._cluster.network += [message._replace() for message in self._chosen(words)]

    def _remove(self, chosen: list[Message]) -> None:
        gone = {id(message) for message in chosen}
        self._cluster.network = [m for m in self._cluster.network if id(m) not in gone]

    def _do_forge(self, words: list[str]) -> None:
        message = parse_message([word for word in words if not word.startswith("at=")])
        at = [peer_of(word[3:]) for word in words if word.startswith("at=")]
        self._cluster.act(
            at[0] if at else message.target, lambda core: core.step(message, self._cluster.now)
        )

    def _do_cut(self, words: list[str]) -> None:
        if ">" in words[0]:
            sender, _, target = words[0].partition(">")
            self._cluster.cut.add((peer_of(sender), peer_of(target)))
            return
        groups = " ".join(words).split("|")
        self._cluster.partition([peers_of(group.split()) for group in groups])

    def _do_heal(self, _: list[str]) -> None:
        self._cluster.cut.clear()

    # --- Time -----------------------------------------------------------------------------------

    def _do_elapse(self, words: list[str]) -> None:
        self._cluster.elapse(milliseconds(words[0]))

    def _do_sleep(self, words: list[str]) -> None:
        self._cluster.now += milliseconds(words[0])

    def _do_tick(self, words: list[str]) -> None:
        for peer in peers_of(words):
            self._cluster.tick(peer)

    def _do_show(self, words: list[str]) -> None:
        chosen = peers_of(words) or list(self._cluster.hosts)
        self._lines += [host_text(self._cluster.hosts[peer]) for peer in chosen]

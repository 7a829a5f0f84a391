"""Verbs of idempotent publishers, and of those that publish continuously."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from liftbridge_broker.controller.commands import InitPublisher
from liftbridge_broker.controller.state import PublisherState
from liftbridge_broker.model.ids import Instant, StreamName
from liftbridge_broker.node.partition.runs import POLICY_ALL, PendingAck, PublishRun, Stored
from liftbridge_broker.replication.publishers import PublisherStamp
from liftbridge_testkit.sim.clients.calls import Answer, Serving
from liftbridge_testkit.sim.clients.publishers import Publisher, PublisherPlan, Sink
from liftbridge_testkit.sim.history import Outcome
from liftbridge_testkit.sim.scripts.publishing import ask, leader_of, note_outcome, propose, told
from liftbridge_testkit.sim.scripts.stage import Sender, Stage, duration_ns, split_options


def _publisher(stage: Stage, words: Sequence[str]) -> list[str]:
    """`publisher p s`: an idempotent publisher begins, or begins again; its epoch."""
    name, stream = words
    command = InitPublisher(stream=StreamName(stream), publisher=name)
    outcome = propose(stage, command)
    if not isinstance(outcome, PublisherState):
        return told(outcome)
    former = stage.senders.get(name)
    number = stage.life.history.new_publisher() if former is None else former.number
    next_sequence = 0 if former is None else former.next_sequence
    stage.senders[name] = Sender(number, f"{stream}/0", outcome, next_sequence)
    return [f"epoch {outcome.publisher_epoch}"]


def _next_of(stage: Stage, words: Sequence[str]) -> list[str]:
    """`next-of p`: what the leader tells a publisher that just began: its next sequence."""
    sender = stage.senders[words[0]]

    def serve(broker: Serving, now: Instant, _wall_ns: int, answer: Answer) -> None:
        assert broker.node.cluster is not None
        stream = StreamName(sender.place.split("/")[0])
        broker.node.cluster.sequences.find(stream, sender.state, answer, now)

    found = ask(stage, leader_of(stage, sender.place, {}), serve)
    if isinstance(found, dict):
        (sender.next_sequence,) = found.values()
        return [f"sequence {sender.next_sequence}"]
    return told(found)


def _send(stage: Stage, words: Sequence[str]) -> list[str]:
    """`send p v1 [at=A] [key=] [seq=N] [epoch=N] [later]`: publish as `p`; a known name is a retry.

    A key is remembered for the retries.
    """
    (name, message, *rest), options = split_options(words)
    sender = stage.senders[name]
    state = stage.newest(sender.place)
    write = stage.writes.get(message)
    is_retry = write is not None
    if write is None:
        write = stage.life.history.invoke(
            sender.number,
            state.partition_id,
            stage.world.now,
            policy=POLICY_ALL,
            key=options.get("key", "").encode(),
            is_idempotent=True,
        )
        stage.writes[message] = write
        sender.sequences[message] = int(options.get("seq", sender.next_sequence))
        sender.next_sequence = sender.sequences[message] + 1
    epoch = int(options.get("epoch", sender.state.publisher_epoch))
    stamp = PublisherStamp(sender.state.publisher_id, epoch, sender.sequences[message])

    def serve(broker: Serving, now: Instant, wall_ns: int, answer: Answer) -> None:
        partition = broker.node.partitions[state.partition_id]
        pending_acks = (PendingAck(POLICY_ALL, Sink(answer)),)
        run = PublishRun(
            [write.value],
            partition.subject,
            "grpc",
            pending_acks,
            [write.key] if write.key else None,
            policy=POLICY_ALL,
            publisher=stamp,
        )
        broker.node.publish(partition, run, now, wall_ns)

    stage.outcomes.pop(message, None)

    def done(outcome: object) -> None:
        is_again = isinstance(outcome, Stored) and outcome.is_duplicate
        stage.outcomes[message] = note_outcome(stage, write, outcome, is_retry=is_retry)
        stage.outcomes[message] += " again" * is_again

    leader = leader_of(stage, sender.place, options)
    stage.life.calls.call("client", stage.machine(leader), serve, done)
    if "later" in rest:
        return []
    stage.wait_until(f"outcome of {message}", lambda: message in stage.outcomes)
    return [stage.outcomes[message]]


def _load(stage: Stage, words: Sequence[str]) -> list[str]:
    """`load l s`: a publisher that repeats what it does not know of, until `unload l`."""
    name, stream = words
    plan = PublisherPlan(stream=stream, run_max=3, is_idempotent=True)
    life = stage.life
    publisher = Publisher(stage.world, life.calls, life.directory, life.history, plan)
    stage.loads[name] = publisher
    life.publishers.append(publisher)
    publisher.start()
    return []


def _unload(stage: Stage, words: Sequence[str]) -> list[str]:
    """`unload l [gap=1s]`: end it; nothing may have failed, nor acks been absent for longer."""
    (name,), options = split_options(words)
    publisher = stage.loads[name]
    publisher.stop()
    stage.wait_until("outcomes", lambda: not publisher.in_flight)
    writes = [
        write
        for identity, write in stage.life.history.writes.items()
        if identity.publisher == publisher.number
    ]
    failed = [write.outcome.value for write in writes if write.outcome is not Outcome.ACKED]
    assert writes, "nothing was published"
    assert not failed, f"{len(failed)} of {len(writes)}: {Counter(failed)}"
    ends = [writes[0].invoked_at, *(write.ended_at for write in writes)]
    gap = max(after - before for before, after in pairwise(ends))
    allowed = options.get("gap")
    assert allowed is None or gap < duration_ns(allowed), f"no ack for {gap / 1e9:.3f} s"
    return []


VERBS: dict[str, Callable[[Stage, Sequence[str]], list[str]]] = {
    "publisher": _publisher,
    "next-of": _next_of,
    "send": _send,
    "load": _load,
    "unload": _unload,
}

"""The journal against a model, with power cuts and kills between and inside its calls."""

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from liftbridge_broker.model.ids import LeaderEpoch, Offset, PartitionId
from liftbridge_broker.ports.files import FileHandle, Token
from liftbridge_broker.storage.journal import Journal, open_journal
from liftbridge_broker.storage.log.state import LogState
from liftbridge_testkit.memory_files import MemoryFiles, PowerCutError

PARTITIONS = tuple(PartitionId(n << 24 | n) for n in range(1, 5))
States = dict[PartitionId, LogState | None]


class JournalMachine(RuleBasedStateMachine):
    """Model: what is certainly durable, and for each partition what was handed over since."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.now: States = {}
        self.durable: States = {}
        self.since: dict[PartitionId, list[LogState | None]] = {}
        self.flight: tuple[FileHandle, States] | None = None
        self.counter = 0

    @initialize()
    def start(self) -> None:
        self.journal: Journal = open_journal(self.files, "journal", rewrite_bytes_min=400)[0]

    @rule(partition=st.sampled_from(PARTITIONS), epochs=st.integers(0, 3))
    def put(self, partition: PartitionId, epochs: int) -> None:
        self.counter += 1
        point = Offset(self.counter)
        known = tuple((LeaderEpoch(n + 1), Offset(n)) for n in range(epochs))
        state = LogState(Offset(self.counter // 2), point, point, known)
        self.journal.put(partition, state, is_strict=False)
        self.note(partition, state)

    @rule(partition=st.sampled_from(PARTITIONS))
    def forget(self, partition: PartitionId) -> None:
        self.journal.forget(partition)
        self.note(partition, None)

    def note(self, partition: PartitionId, state: LogState | None) -> None:
        self.now[partition] = state
        self.since.setdefault(partition, []).append(state)

    @precondition(lambda self: self.flight is None)
    @rule()
    def begin(self) -> None:
        handle = self.journal.begin_flush()
        self.files.submit_sync(Token(1), [handle])
        self.flight = handle, dict(self.now)

    @precondition(lambda self: self.flight is not None)
    @rule()
    def finish(self) -> None:
        assert self.flight is not None
        self.files.calls.pump()
        self.journal.finish_flush()
        self.settle(self.flight[1])
        self.flight = None

    @rule()
    def flush(self) -> None:
        self.journal.flush()
        self.settle(dict(self.now))

    @rule(seed=st.integers(0, 1 << 30), steps=st.integers(1, 6))
    def cut_power_inside_a_flush(self, seed: int, steps: int) -> None:
        self.files.power.cut_at = self.files.power.points + steps
        try:
            self.flush()
        except PowerCutError:
            self.crash(seed)
        else:
            self.files.power.cut_at = 0

    @rule(seed=st.integers(0, 1 << 30))
    def crash(self, seed: int) -> None:
        self.files.crash(Random(seed))
        self.restart()

    @rule()
    def kill(self) -> None:
        self.files.kill()
        self.restart()

    def settle(self, states: States) -> None:
        """All up to these states is durable now."""
        self.durable = states
        self.since = {p: [s] for p, s in self.now.items()} | {
            p: s for p, s in self.since.items() if self.now.get(p) != states.get(p)
        }

    def restart(self) -> None:
        self.journal, loaded = open_journal(self.files, "journal", rewrite_bytes_min=400)
        for partition in PARTITIONS:
            found = loaded.states.get(partition)
            allowed = [self.durable.get(partition), *self.since.get(partition, [])]
            if loaded.damaged_count:
                allowed += [s._replace(recovery_point=s.log_start, epochs=()) for s in allowed if s]
                allowed.append(None)
            assert found in allowed
        assert set(loaded.states) <= set(PARTITIONS)
        self.now = dict(loaded.states)
        self.flight = None
        # Found is not durable before it was flushed again; the next crash may show it or not.
        self.journal.flush()
        self.settle(dict(self.now))


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

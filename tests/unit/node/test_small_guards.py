"""Guards of followed partitions and of metadata that come whole, each with what it holds off."""

from types import SimpleNamespace

import pytest

from liftbridge_broker.errors import (
    ChangeNotMadeError,
    NoMetadataLeaderError,
    NotAppendedError,
    NotLeaderError,
    TooLargeError,
    UnavailableError,
    error_classes,
)
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
)
from liftbridge_broker.model.partitions import NOT_COPIED
from liftbridge_broker.node.applied import AppliedMetadata
from liftbridge_broker.node.partition.readers import Readers
from liftbridge_broker.node.refusals import failed_change
from liftbridge_broker.node.replicas.following import Following
from liftbridge_broker.node.replicas.leading import Leading, result_of
from liftbridge_broker.node.replicas.proposal_window import ProposalWindow
from liftbridge_broker.replication.follower import Append, Damaged
from liftbridge_broker.replication.isr import IsrProposal, ProposalOutcome

NOW = Instant(1)
DENIALS = (ChangeNotMadeError, NotAppendedError, TooLargeError, UnavailableError)


class Log:
    """As much of a log as a follower touches: offset 5, in leader epoch 1."""

    def __init__(self):
        self.epochs = SimpleNamespace(latest=1)
        self.segment_count = 1
        self.is_empty = False
        self.high_watermark = self.log_end_offset = Offset(5)
        self.log_start_offset = self.dropped_offset = Offset(0)
        self.copied = NOT_COPIED

    def append_batches(self, _data, headers, _wall_ns):
        self.epochs.latest = headers[-1]
        self.log_end_offset = Offset(self.log_end_offset + len(headers))


class Roles:
    """Notes what a partition does by its role; the disk syncs when the test says so."""

    broker, broker_epoch, now, wall_ns = BrokerId("b"), MetadataIndex(1), NOW, 0

    def __init__(self):
        self.context = self
        self.positions = 0
        self.asked = []
        self.retried = 0
        self.refused = {}
        self.window = ProposalWindow(lambda: None)
        self.fetching = {BrokerId("a"): SimpleNamespace(put=self._put, retry=self._retry)}
        self.log_changes = SimpleNamespace(cut=lambda _: None)
        self.restarted = []
        self.synced = []
        self.store = SimpleNamespace(
            journal_state=lambda _, done, __: self.synced.append(done),
            restart=lambda *what: self.restarted.append(what),
        )

    def _put(self, _position):
        self.positions += 1

    def _retry(self, *_):
        self.retried += 1

    def wake(self, _session):
        pass

    def look_soon(self):
        pass

    def propose(self, command, _now, reply):
        self.asked.append((command, reply))

    def note_append(self, *_):
        pass

    def transition(self, *_):
        pass


@pytest.fixture
def roles():
    return Roles()


@pytest.fixture
def following(roles):
    """A followed partition whose core says what the test gives as the answer."""
    partition = SimpleNamespace(
        partition_id=1,
        log=Log(),
        offline_reason="",
        stream="s",
        number=0,
        writer=SimpleNamespace(note_replicated=lambda *_: None),
        readers=Readers(),
    )
    state = SimpleNamespace(partition_id=1, replica_epoch=lambda _: MetadataIndex(1))
    core = SimpleNamespace(state=state, on_reply=lambda head, *_: head, position=lambda: None)
    return Following(roles, partition, core, BrokerId("a"), verify=lambda _: None)


def records(*epochs):
    return Append(b"", epochs, Offset(5), Offset(0))


def test_no_position_is_told_before_a_new_leader_epoch_is_durable(roles, following):
    following.on_reply(records(1), b"", NOW)
    assert roles.positions == 1
    following.on_reply(records(2), b"", NOW)
    assert (roles.positions, following.is_held) == (1, True)
    roles.synced[0]()
    assert (roles.positions, following.is_held) == (2, False)


def test_follower_refuses_what_its_partition_lets_through(following):
    with pytest.raises(NotLeaderError):
        following.check_append(is_all=False, now=NOW)


def test_damaged_replica_takes_nothing_before_it_is_declared_unclean(roles, following):
    following.on_reply(Damaged("parts below the high watermark"), b"", NOW)
    following.on_reply(records(1), b"", NOW)
    assert (following.partition.log.log_end_offset, roles.positions) == (5, 0)
    assert len(roles.asked) == 1


def test_damaged_replica_removes_nothing_when_it_could_not_be_declared_unclean(roles, following):
    following.on_reply(Damaged("parts below the high watermark"), b"", NOW)
    roles.asked[0][1](UnavailableError("no metadata leader"))
    assert (roles.restarted, roles.retried) == ([], 1)
    following.on_reply(Damaged("parts below the high watermark"), b"", NOW)
    roles.asked[1][1](None)
    assert roles.restarted == [(1, 0, NOW)]


def test_log_of_a_stream_that_a_whole_state_does_not_know_is_kept():
    unknown, deleted = 3 << 24, 4 << 24
    closed, removed = [], []
    context = SimpleNamespace(
        broker=BrokerId("a"),
        is_caught_up=True,
        has_stopped=False,
        state=SimpleNamespace(partition=lambda _: None, partitions=list, streams={}, deleted={4}),
        store=SimpleNamespace(delete=lambda numbers, *_: removed.extend(numbers)),
    )
    held = SimpleNamespace(
        partitions={unknown: None, deleted: None},
        close=lambda number, _: closed.append(number),
    )
    AppliedMetadata(context, held).take_state(NOW, 0)
    assert (closed, removed) == ([unknown, deleted], [deleted])


@pytest.mark.parametrize("cause", error_classes())
def test_proposal_that_the_log_failed_may_be_applied_unless_the_cause_denies_it(cause):
    error = failed_change(cause() if cause is NoMetadataLeaderError else cause("why"), "failed")
    is_denied = issubclass(cause, DENIALS)
    expected = ProposalOutcome.NOT_ATTEMPTED if is_denied else ProposalOutcome.UNKNOWN
    assert result_of(error) is expected


def test_proposal_that_met_no_metadata_leader_was_not_attempted():
    """Else whoever it was to bring into sync would hold commits up until the metadata move."""
    assert result_of(NoMetadataLeaderError()) is ProposalOutcome.NOT_ATTEMPTED


def test_damaged_replica_that_follows_nobody_any_more_removes_nothing(roles, following):
    """It may be the last one that holds anything; a leader to come finds the same damage."""
    following.on_reply(Damaged("parts below the high watermark"), b"", NOW)
    following.is_current = False
    roles.asked[0][1](None)
    assert roles.restarted == []


def test_answer_to_a_former_leader_commits_nothing(roles):
    """The log may be another one by now."""
    roles.eligible, roles.watch, roles.notify = frozenset(), lambda _: None, lambda _: None
    proposal = IsrProposal(
        PartitionId(1), LeaderEpoch(1), MetadataIndex(1), isr=(), is_recovering=False
    )
    results = []
    ends = iter([Offset(3), Offset(5)])
    core = SimpleNamespace(
        next_proposal=lambda *_: proposal,
        on_proposal_result=lambda *what: results.append(what),
        high_watermark=lambda: next(ends),
    )
    committed = []
    partition = SimpleNamespace(
        partition_id=1,
        offline_reason="",
        log=SimpleNamespace(high_watermark=Offset(3)),
        commit_to=lambda *what: committed.append(what),
    )
    leading = Leading(roles, partition, core)
    leading.propose_if_due(NOW)
    leading.is_current = False
    roles.asked[0][1](UnavailableError("not leader"))
    assert (results, committed) == ([], [])

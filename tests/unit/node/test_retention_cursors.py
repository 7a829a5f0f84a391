"""A leader asks whoever keeps a cursor where it stands, before retention removes anything."""

import pytest

from liftbridge_broker.controller.commands import CreateStream, DeleteStream, PauseStream
from liftbridge_broker.groups.cursors import Cursor, CursorIndex, CursorScan
from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.model.subjects import CURSORS_STREAM
from liftbridge_broker.node.reading.cursors import CursorTable
from liftbridge_broker.node.upkeep.retention_cursors import ASK_NS, WAIT_NS, WAITS_MAX
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.storage.cleaning.retention import CursorUnknown
from liftbridge_broker.wire.cursors import encode_cursor
from liftbridge_broker.wire.peer.bodies import CursorReply
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.node_world import NodeWorld

ASK_MS, WAIT_MS = ASK_NS // 1_000_000, WAIT_NS // 1_000_000


@pytest.fixture
def world():
    return ClusterWorld()


def keep_cursors(world, factor=3):
    world.propose(
        CreateStream(
            name=CURSORS_STREAM,
            subject=CURSORS_STREAM,
            replication_factor=factor,
            overrides=StreamOverrides(compact_enabled=True),
            is_internal=True,
        )
    )
    world.until(lambda: world.leader(CURSORS_STREAM) is not None)


def begin(world, factor=1):
    """A stream held back by a cursor, and the stream of cursors led elsewhere."""
    keep_cursors(world, factor)
    world.create(factor=3, retention_cursor="c")
    world.commit(*(b"%d" % number for number in range(9)))
    asking = elsewhere(world)
    assert asking is not world.leader(CURSORS_STREAM)
    return asking


def set_cursor(world, offset, name="c", **of):
    """Store a cursor, of the stream as it is now or as `of` says."""
    found = world.alive[0].node.state.stream("s")
    stream_id = of.get("stream_id", found.stream_id if found else 0)
    cursor = Cursor("s", 0, name, offset, stream_id, of.get("unclean_epoch", 0))
    answers = world.publish(encode_cursor(cursor), name=CURSORS_STREAM, keys=[cursor.key])
    world.until(lambda: answers.is_answered)


def elsewhere(world):
    """A broker that does not keep the cursors."""
    return next(one for one in world.alive if one is not world.leader(CURSORS_STREAM))


def find(world, at, name="c", of="s"):
    told = []
    partition_id = world.state(of).partition_id
    at.node.cluster.held.find(partition_id, name, lambda cursor, _: told.append(cursor), world.now)
    at.node._arm()  # as whatever brought the turn does
    return told


def found(world, at, name="c", of="s"):
    told = find(world, at, name, of)
    world.until(lambda: bool(told), milliseconds=WAIT_MS + 10)
    return told[0]


def keep_silent(world, asking):
    """Who keeps the cursors does not hear who asks."""
    world.deaf |= {(asking.broker, world.leader(CURSORS_STREAM).broker, Channel.METADATA)}


def test_cursor_is_found_wherever_it_is_kept(world):
    asking = begin(world)
    assert found(world, asking) is CursorUnknown.ABSENT
    set_cursor(world, 7)
    assert found(world, asking) == found(world, world.leader(CURSORS_STREAM)) == 7
    set_cursor(world, 3)
    assert found(world, asking) == 3
    assert found(world, asking, name="another") is CursorUnknown.ABSENT
    set_cursor(world, -1)
    assert found(world, asking) is CursorUnknown.ABSENT
    assert found(world, world.leader(CURSORS_STREAM)) is CursorUnknown.ABSENT


def test_cursor_of_a_former_stream_of_that_name_does_not_count(world):
    asking = begin(world)
    set_cursor(world, 7)
    world.propose(DeleteStream(name="s"))
    world.create(factor=3, retention_cursor="c")
    assert found(world, asking) is CursorUnknown.FORMER
    set_cursor(world, 2)
    assert found(world, asking) == 2
    set_cursor(world, 2, stream_id=0)  # by a broker that does not say of which stream
    assert found(world, asking) is CursorUnknown.FORMER


def test_cursor_of_another_history_of_the_partition_does_not_count(world):
    """An unclean election came since, or is not known here yet."""
    asking = begin(world)
    set_cursor(world, 7, unclean_epoch=1)
    assert found(world, asking) is CursorUnknown.UNCLEAN
    assert found(world, world.leader(CURSORS_STREAM)) is CursorUnknown.UNCLEAN
    set_cursor(world, 7)
    assert found(world, asking) == 7


def test_cursor_is_found_while_its_partition_sleeps(world):
    asking = begin(world)
    set_cursor(world, 7)
    world.propose(PauseStream(name=CURSORS_STREAM, is_automatic=True, is_internal=True))
    world.until(lambda: world.state(CURSORS_STREAM).paused)
    assert found(world, asking) == found(world, world.leader(CURSORS_STREAM)) == 7


def test_lost_question_is_asked_again(world):
    asking = begin(world)
    set_cursor(world, 7)
    keep_silent(world, asking)
    told = find(world, asking)
    world.run(3 * ASK_MS)
    assert told == []
    world.deaf.clear()
    world.until(lambda: bool(told), milliseconds=2 * ASK_MS)
    assert told == [7]


def test_silence_ends_the_round(world):
    asking = begin(world)
    set_cursor(world, 7)
    keep_silent(world, asking)
    told = find(world, asking)
    assert world.until(lambda: bool(told)) <= WAIT_MS + 10
    assert told == [CursorUnknown.UNANSWERED]
    world.heal()
    world.run(WAIT_MS)
    assert told == [CursorUnknown.UNANSWERED]


def test_question_follows_the_leader_of_the_cursors(world):
    begin(world, factor=3)
    set_cursor(world, 7)
    keeper = world.leader(CURSORS_STREAM)
    asking = elsewhere(world)
    keeper.kill()
    told = []
    while told in ([], [CursorUnknown.UNANSWERED]):
        told = find(world, asking)
        world.until(lambda told=told: bool(told))
    assert told == [7]
    assert world.leader(CURSORS_STREAM) is not keeper


def test_leader_that_was_replaced_without_hearing_of_it_tells_nothing(world):
    """A cursor may have gone back meanwhile; the older one would let too much go."""
    begin(world, factor=3)
    set_cursor(world, 7)
    keeper = world.leader(CURSORS_STREAM)
    world.cut(keeper)
    told = find(world, keeper)
    world.until(lambda: world.leader(CURSORS_STREAM) not in (None, keeper))
    set_cursor(world, 3)
    world.until(lambda: bool(told))
    assert told == [CursorUnknown.UNANSWERED]


def test_without_the_stream_of_cursors_there_is_none(world):
    world.create()
    assert find(world, world.leader()) == [CursorUnknown.ABSENT]


def test_only_cursors_are_told(world):
    """Whoever asks for a record of another stream gets no answer."""
    asking = begin(world)
    told = []
    held = asking.node.cluster.held
    held._look_up(world.state().partition_id, b"c,s,0", told.append)
    held._look_up(PartitionId(1 << 60), b"c,s,0", told.append)
    world.run(ASK_MS)
    assert told == []


def test_answer_to_another_question_is_passed_over(world):
    asking = begin(world)
    keep_silent(world, asking)
    told = find(world, asking)
    keeper = world.leader(CURSORS_STREAM)
    stream_id = asking.node.state.stream("s").stream_id
    sent = [0, asking.node.cluster.held._question + 1]
    for question in sent:
        reply = CursorReply(question, 5, stream_id)
        keeper.link.send(asking.broker, Channel.METADATA, reply)
    world.settle()
    assert told == []


def test_question_is_numbered_by_start(world):
    """What was told to a former start of a broker comes late, and means nothing to this one."""
    begin(world)
    asking = elsewhere(world)
    keep_silent(world, asking)
    find(world, asking)
    before = set(asking.node.cluster.held._waits)
    asking.kill()
    world.heal()
    asking.restart()
    world.until(lambda: world.is_whole)
    keep_silent(world, asking)
    find(world, asking)
    assert not before & set(asking.node.cluster.held._waits)


def test_broker_that_stops_ends_the_waiting(world):
    asking = begin(world)
    keep_silent(world, asking)
    told = find(world, asking)
    asking.node.begin_stop(lambda: None)
    assert told == [CursorUnknown.UNANSWERED]


def test_more_than_may_wait_go_without_an_answer(world):
    asking = begin(world)
    set_cursor(world, 7)
    keep_silent(world, asking)
    waiting = [find(world, asking) for _ in range(WAITS_MAX)]
    assert find(world, asking) == [CursorUnknown.UNANSWERED]
    assert not any(waiting)
    world.heal()
    world.until(lambda: all(waiting), milliseconds=2 * ASK_MS)
    assert waiting == [[7]] * WAITS_MAX


def test_partition_that_is_not_here_is_not_asked_for(world):
    begin(world)
    told = []
    held = elsewhere(world).node.cluster.held
    held.find(PartitionId(1 << 60), "c", lambda cursor, _: told.append(cursor), world.now)
    assert told == [CursorUnknown.UNANSWERED]


def test_broker_alone_looks_into_its_own_log():
    world = NodeWorld()
    stream = world.create("s", retention_cursor="")
    cursors = world.create(CURSORS_STREAM, CURSORS_STREAM, is_internal=True)
    stream_id = world.node.state.stream("s").stream_id
    cursor = Cursor("s", 0, "c", 4, stream_id)
    world.publish(cursors, encode_cursor(cursor), keys=[cursor.key])
    told = []
    find = world.store._cleaner.find_cursor
    find(stream.partition_id, "c", lambda found, _: told.append(found), world.now)
    world.settle()
    assert told == [4]
    cursors.go_offline("a bit flipped")
    find(stream.partition_id, "c", lambda found, _: told.append(found), world.now)
    assert told == [4, CursorUnknown.UNANSWERED]


def test_one_scan_answers_all_who_look_for_a_cursor_meanwhile(world, monkeypatch):
    """There are more cursors than are kept in memory, and the disk is slow."""
    begin_index, feed = CursorIndex.__init__, CursorTable._feed
    monkeypatch.setattr(
        CursorIndex, "__init__", lambda index, start: begin_index(index, start, cursors_max=2)
    )
    asking = begin(world)
    for number in range(5):
        set_cursor(world, number, name=f"c{number}")
    scans = []

    def held_back(table, target, done):
        if isinstance(target, CursorScan):
            scans.append((table, target, done))
        else:
            feed(table, target, done)

    monkeypatch.setattr(CursorTable, "_feed", held_back)
    told = [find(world, asking, "c0"), find(world, asking, "c0")]
    world.run(3 * ASK_MS)
    assert (len(scans), told) == (1, [[], []])
    monkeypatch.undo()
    feed(*scans[0])
    world.until(lambda: all(told))
    assert told == [[0], [0]]

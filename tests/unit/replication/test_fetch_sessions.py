"""Fetch sessions of a pair of brokers: what travels, and when (KIP-227)."""

from liftbridge_broker.model.fetching import ACCEPTED, Diverging, FetchError, FetchPosition, Refused
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
)
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.replication.fetch_sessions import (
    FollowerSession,
    LeaderSession,
    LeaderSessionLimits,
    SessionLimits,
)

LEADER, FOLLOWER = BrokerId("a"), BrokerId("b")
LIMITS = LeaderSessionLimits()
HOLD = LIMITS.hold_ns


def position(partition, offset=0, *, epoch=1, flushed=0):
    return FetchPosition(
        PartitionId(partition),
        MetadataIndex(1),
        LeaderEpoch(epoch),
        Offset(offset),
        Offset(flushed),
        None,
        Offset(0),
    )


class Led:
    """A partition led here: bytes are offsets, one each; outcomes are what the test says."""

    def __init__(self, end=0):
        self.leader_epoch = LeaderEpoch(1)
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(end)
        self.high_watermark = Offset(0)
        self.compacted_everywhere = self.dropped_offset = Offset(0)
        self.outcome = ACCEPTED
        self.fetches = []
        self.answered = []
        self.forgotten = []
        self.clock = None
        self.is_at_hand = True
        self.is_damaged = False

    def on_fetch(self, _replica, fetch, clock, _now):
        self.fetches.append(fetch.fetch_offset)
        self.clock = clock
        if fetch.leader_epoch != self.leader_epoch:
            return Refused(FetchError.FENCED_LEADER_EPOCH)
        return self.outcome

    def on_answered(self, _replica, asked_at):
        self.answered.append(asked_at)

    def on_forgotten(self, replica):
        self.forgotten.append(replica)

    def read(self, _replica, offset, bytes_max):
        if self.is_damaged:
            return None
        end = min(self.log_end_offset, offset + bytes_max)
        return [b"." * (end - offset)] if self.is_at_hand else []


class Pair:
    """Both sides with a network in between that the test moves by hand."""

    def __init__(self):
        self.now = Instant(0)
        self.led = {}
        self.leader = LeaderSession(FOLLOWER, self.led.get, first_session_id=7, limits=LIMITS)
        self.follower = FollowerSession(
            LEADER, leader_broker_epoch=3, first_correlation_id=100, limits=SessionLimits(), now=0
        )
        self.own_epoch = 3
        self.sent = []

    def lead(self, partition, end=0):
        self.led[partition] = Led(end)
        return self.led[partition]

    def request(self):
        return self.follower.next_request(self.now)

    def take(self, request, *, follower_epoch=5):
        return self.leader.on_request(
            request.correlation_id,
            request.body,
            own_broker_epoch=self.own_epoch,
            follower_broker_epoch=follower_epoch,
            now=self.now,
        )

    def answer(self, after=0):
        self.now = Instant(self.now + after)
        return self.leader.take_answer(self.now)

    def soon(self):
        """The answer, with what could wait for a moment."""
        return self.answer() or self.answer(LIMITS.quiet_ns)

    def reply(self, answer):
        return self.follower.on_reply(answer.correlation_id, answer.body, self.now)

    def begin(self, *positions):
        """A session in which everything was told and one empty fetch is parked."""
        for one in positions:
            self.follower.put(one)
        self.take(self.request())
        assert self.reply(self.soon())
        self.take(self.request())
        assert self.answer() is None


def partitions(body):
    return [one.partition for one in body.partitions]


# What the follower sends.


def test_first_fetch_is_full_and_the_next_tells_changes_only():
    pair = Pair()
    for partition in (1, 2, 3):
        pair.lead(partition, 5)
        pair.follower.put(position(partition))
    first = pair.request()
    assert (first.body.session_id, first.body.session_epoch) == (0, 0)
    assert partitions(first.body) == [1, 2, 3]
    pair.take(first)
    assert pair.reply(pair.answer())
    pair.follower.put(position(2, 5))
    second = pair.request()
    assert (second.body.session_id, second.body.session_epoch) == (8, 1)
    assert partitions(second.body) == [2]


def test_nothing_is_sent_without_partitions():
    pair = Pair()
    assert pair.request() is None
    assert pair.follower.next_deadline() is None


def test_one_fetch_is_held_until_something_changes():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    assert pair.request() is None
    pair.follower.put(position(1))
    assert pair.request() is None
    pair.follower.put(position(1, flushed=4))
    newer = pair.request()
    assert partitions(newer.body) == [1]
    (former,) = pair.take(newer)
    assert former.correlation_id == newer.correlation_id - 1
    assert former.body.partitions == ()
    assert pair.reply(former)
    assert pair.request() is None


def test_dropped_partition_is_forgotten():
    pair = Pair()
    led = pair.lead(1)
    pair.lead(2)
    pair.begin(position(1), position(2))
    pair.follower.drop(PartitionId(1))
    request = pair.request()
    assert request.body.forgotten == (1,)
    pair.take(request)
    assert led.forgotten == [FOLLOWER]
    assert pair.leader.partition_count == pair.follower.partition_count == 1


def test_session_without_partitions_ends():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    pair.follower.drop(PartitionId(1))
    assert pair.request() is None
    pair.follower.put(position(1))
    assert pair.request().body.session_epoch == 0


def test_refused_position_is_told_again_after_a_pause():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    pair.follower.retry(PartitionId(1), pair.now)
    assert pair.request() is None
    assert pair.follower.next_deadline() == pair.now + SessionLimits().retry_ns
    pair.now = pair.follower.next_deadline()
    assert partitions(pair.request().body) == [1]


def test_fetch_without_an_answer_is_given_up_and_a_full_one_follows():
    pair = Pair()
    pair.lead(1)
    pair.follower.put(position(1))
    lost = pair.request()
    pair.now = Instant(SessionLimits().timeout_ns - 1)
    assert pair.request() is None
    assert pair.follower.next_deadline() == pair.now + 1
    pair.now = pair.follower.next_deadline()
    again = pair.request()
    assert again.correlation_id != lost.correlation_id
    assert again.body.session_epoch == 0
    pair.take(lost)
    late = pair.soon()
    assert not pair.reply(late)


def test_fetches_that_replace_each_other_do_not_put_off_giving_up():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    started = pair.now
    for offset in range(1, 30):
        pair.now = Instant(started + offset * 100 * MILLISECOND_NS)
        pair.follower.put(position(1, offset))
        request = pair.request()
        if request.body.session_epoch == 0:
            break
    assert pair.now - started == 1_500 * MILLISECOND_NS


def test_only_the_answer_to_a_fetch_counts():
    pair = Pair()
    pair.lead(1)
    pair.follower.put(position(1))
    pair.take(pair.request())
    answer = pair.soon()
    assert not pair.follower.on_reply(answer.correlation_id + 1, answer.body, pair.now)
    other = answer.body._replace(session_epoch=1)
    assert not pair.follower.on_reply(answer.correlation_id, other, pair.now)
    assert pair.reply(answer)
    assert not pair.reply(answer)


def test_answer_of_another_session_does_not_count():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    answer = pair.answer(HOLD)
    other = answer.body._replace(session_id=99)
    assert not pair.follower.on_reply(answer.correlation_id, other, pair.now)
    assert pair.reply(answer)


def test_leader_that_registered_anew_gets_a_full_fetch():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    pair.follower.set_leader_broker_epoch(3)
    assert pair.request() is None
    pair.follower.set_leader_broker_epoch(9)
    body = pair.request().body
    assert (body.session_epoch, body.leader_broker_epoch) == (0, 9)


# What the leader does with it.


def test_lost_fetch_ends_the_session():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    pair.follower.put(position(1, 1))
    pair.request()
    pair.follower.put(position(1, 2))
    (lost,) = pair.take(pair.request())
    assert lost.body.is_session_lost
    assert not pair.reply(lost)
    assert pair.request() is None
    pair.now = pair.follower.next_deadline()
    assert pair.request().body.session_epoch == 0
    assert pair.led[1].fetches == [0]


def test_copy_of_a_fetch_is_dropped():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    pair.follower.put(position(1, 1))
    request = pair.request()
    assert len(pair.take(request)) == 1
    assert pair.take(request) == []
    assert pair.led[1].fetches == [0, 1]


def test_session_belongs_to_both_registrations():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    pair.follower.put(position(1, 1))
    request = pair.request()
    (lost,) = pair.take(request, follower_epoch=6)
    assert lost.body.is_session_lost
    pair.own_epoch = 4
    (lost,) = pair.take(request)
    assert lost.body.is_session_lost
    assert pair.led[1].fetches == [0]


def test_full_fetch_meant_for_a_former_leader_is_refused():
    pair = Pair()
    pair.lead(1)
    pair.own_epoch = 4
    pair.follower.put(position(1))
    (lost,) = pair.take(pair.request())
    assert lost.body.is_session_lost
    assert pair.led[1].fetches == []


def test_fetch_of_a_former_process_is_dropped():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    pair.follower.reset()
    request = pair.request()
    assert pair.take(request, follower_epoch=4) == []
    assert pair.led[1].fetches == [0]


def test_idle_fetch_is_held_and_then_answered_empty():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    assert pair.leader.next_deadline() == pair.now + HOLD
    assert pair.answer(HOLD - 1) is None
    answer = pair.answer(1)
    assert answer.body.partitions == ()
    assert pair.answer() is None
    assert pair.leader.next_deadline() is None


def test_records_are_sent_at_once():
    pair = Pair()
    led = pair.lead(1)
    pair.begin(position(1))
    led.log_end_offset = Offset(3)
    led.high_watermark = Offset(2)
    pair.leader.notify(PartitionId(1))
    answer = pair.answer()
    (head,) = answer.body.partitions
    assert (head.fetch_offset, head.high_watermark, head.data_bytes) == (0, 2, 3)
    assert list(answer.pieces) == [b"..."]


def test_high_watermark_is_told_soon_or_with_records():
    pair = Pair()
    led = pair.lead(1)
    pair.begin(position(1))
    led.high_watermark = Offset(2)
    pair.leader.notify(PartitionId(1))
    assert pair.answer() is None
    assert pair.leader.next_deadline() == pair.now + LIMITS.quiet_ns
    (head,) = pair.answer(LIMITS.quiet_ns).body.partitions
    assert (head.high_watermark, head.data_bytes) == (2, 0)
    pair.take(pair_next(pair))
    pair.leader.notify(PartitionId(1))
    assert pair.answer(LIMITS.quiet_ns) is None


def pair_next(pair):
    """The next, empty fetch; the former one was answered."""
    pair.follower._waiting.clear()
    return pair.request()


def test_what_was_told_to_a_position_that_had_moved_is_told_again():
    pair = Pair()
    led = pair.lead(1, 3)
    led.is_at_hand = False
    pair.begin(position(1))
    led.high_watermark = Offset(2)
    pair.leader.notify(PartitionId(1))
    assert pair.answer() is None
    assert pair.answer(LIMITS.quiet_ns).body.partitions[0].fetch_offset == 0
    pair.follower.put(position(1, 3))
    pair.follower._waiting.clear()
    pair.take(pair.request())
    (head,) = pair.soon().body.partitions
    assert (head.fetch_offset, head.high_watermark) == (3, 2)


def test_answer_that_others_overtake_is_lost_and_ends_the_session():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    pair.follower.put(position(1, flushed=4))
    (lost,) = pair.take(pair.request())
    assert pair.reply(pair.answer(HOLD))
    assert pair.request().body.session_epoch == 0
    assert not pair.reply(lost)


def test_log_start_is_told():
    pair = Pair()
    led = pair.lead(1, 5)
    pair.begin(position(1, 5))
    led.log_start_offset = Offset(4)
    pair.leader.notify(PartitionId(1))
    assert pair.answer() is None
    (head,) = pair.answer(LIMITS.quiet_ns).body.partitions
    assert head.log_start == 4


def test_divergence_and_refusal_are_told_at_once_and_once():
    pair = Pair()
    diverging, refused = pair.lead(1, 5), pair.lead(2, 5)
    diverging.outcome = Diverging(LeaderEpoch(1), Offset(3))
    refused.outcome = Refused(FetchError.STALE_REPLICA_EPOCH)
    for partition in (1, 2, 3):
        pair.follower.put(position(partition, 5))
    pair.take(pair.request())
    heads = pair.answer().body.partitions
    assert [(head.diverging, head.error) for head in heads] == [
        ((1, 3), None),
        (None, FetchError.STALE_REPLICA_EPOCH),
        (None, FetchError.NOT_LEADER),
    ]
    pair.take(pair_next(pair))
    for partition in (1, 2, 3):
        pair.leader.notify(PartitionId(partition))
    assert pair.answer() is None


def test_refused_position_that_is_told_again_is_answered_again():
    pair = Pair()
    pair.lead(1).outcome = Refused(FetchError.STALE_REPLICA_EPOCH)
    pair.begin(position(1))
    pair.follower.retry(PartitionId(1), pair.now)
    pair.now = pair.follower.next_deadline()
    pair.take(pair.request())
    assert len(pair.answer().body.partitions) == 1


def test_leader_that_learns_of_its_office_later_answers_without_being_asked_again():
    pair = Pair()
    pair.begin(position(1))
    pair.lead(1, 4)
    pair.leader.on_leadership(PartitionId(1), pair.now)
    (head,) = pair.answer().body.partitions
    assert (head.error, head.data_bytes) == (None, 4)


def test_position_is_judged_anew_in_another_leader_epoch():
    pair = Pair()
    led = pair.lead(1)
    pair.begin(position(1))
    led.leader_epoch = LeaderEpoch(2)
    led.log_end_offset = Offset(2)
    pair.leader.notify(PartitionId(1))
    (head,) = pair.answer().body.partitions
    assert (head.error, head.data_bytes) == (FetchError.FENCED_LEADER_EPOCH, 0)


def test_position_that_retention_passed_is_judged_anew():
    pair = Pair()
    led = pair.lead(1, 9)
    led.is_at_hand = False
    pair.begin(position(1))
    led.log_start_offset = Offset(5)
    led.outcome = Refused(FetchError.OFFSET_OUT_OF_RANGE)
    pair.leader.notify(PartitionId(1))
    (head,) = pair.answer().body.partitions
    assert (head.error, head.log_start) == (FetchError.OFFSET_OUT_OF_RANGE, 5)


def test_partition_that_is_led_no_longer_is_refused():
    pair = Pair()
    pair.lead(1)
    pair.begin(position(1))
    del pair.led[1]
    pair.leader.notify(PartitionId(1))
    (head,) = pair.answer().body.partitions
    assert (head.error, head.leader_epoch) == (FetchError.NOT_LEADER, 0)


def test_damaged_records_are_told():
    pair = Pair()
    pair.lead(1, 4).is_damaged = True
    pair.follower.put(position(1))
    pair.take(pair.request())
    (head,) = pair.answer().body.partitions
    assert head.error is FetchError.CORRUPT


def test_records_that_must_be_read_first_follow_when_they_are_there():
    pair = Pair()
    led = pair.lead(1)
    pair.begin(position(1))
    led.log_end_offset = Offset(3)
    led.is_at_hand = False
    pair.leader.notify(PartitionId(1))
    assert pair.answer() is None
    led.is_at_hand = True
    pair.leader.notify(PartitionId(1))
    assert pair.answer().body.partitions[0].data_bytes == 3


def test_records_on_their_way_are_not_sent_twice_but_again_later():
    pair = Pair()
    led = pair.lead(1, 3)
    pair.follower.put(position(1))
    pair.take(pair.request())
    assert pair.answer().body.partitions[0].data_bytes == 3
    pair.take(pair_next_in_session(pair))
    led.log_end_offset = Offset(4)
    pair.leader.notify(PartitionId(1))
    assert pair.answer() is None
    assert pair.leader.next_deadline() == pair.now + LIMITS.resend_ns
    assert pair.answer(LIMITS.resend_ns).body.partitions[0].data_bytes == 4


def pair_next_in_session(pair):
    """A further fetch in the session, sent before the answer to the first came."""
    pair.follower._session_id = pair.leader._session_id
    return pair_next(pair)


def test_high_watermark_told_with_records_is_told_behind_them_again():
    """The follower may have had them from a session before, and dropped the answer."""
    pair = Pair()
    pair.lead(1, 3).high_watermark = Offset(3)
    pair.follower.put(position(1))
    pair.take(pair.request())
    assert pair.answer().body.partitions[0].high_watermark == 3
    pair.follower.put(position(1, 3))
    pair.take(pair_next_in_session(pair))
    assert pair.soon().body.partitions[0].high_watermark == 3


def test_answer_is_bounded_and_partitions_take_turns():
    pair = Pair()
    for partition in range(10):
        pair.lead(partition, 10 * LIMITS.partition_bytes_max)
        pair.follower.put(position(partition))
    told = []
    pair.take(pair.request())
    for _ in range(3):
        answer = pair.answer()
        heads = answer.body.partitions
        assert sum(head.data_bytes for head in heads) == LIMITS.reply_bytes_max
        assert all(head.data_bytes <= LIMITS.partition_bytes_max for head in heads)
        told += [head.partition for head in heads]
        pair.reply(answer)
        for head in heads:
            pair.follower.put(position(head.partition, head.fetch_offset + head.data_bytes))
        pair.take(pair.request())
    assert told == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_every_fetch_of_the_session_refreshes_all_members():
    pair = Pair()
    leds = [pair.lead(partition) for partition in (1, 2)]
    pair.begin(position(1), position(2))
    assert pair.reply(pair.answer(HOLD))
    pair.take(pair.request())
    assert [led.clock.last_fetch for led in leds] == [pair.now, pair.now]
    assert [led.fetches for led in leds] == [[0], [0]]


def test_new_session_stops_what_the_former_one_says():
    pair = Pair()
    led = pair.lead(1)
    pair.lead(2)
    pair.begin(position(1), position(2))
    heard_at = led.clock.last_fetch
    pair.follower.drop(PartitionId(1))
    pair.follower.reset()
    pair.now = Instant(pair.now + HOLD)
    pair.take(pair.request())
    assert led.clock.last_fetch == heard_at
    assert pair.leader.partition_count == 1


def test_idle_session_looks_at_no_partition():
    pair = Pair()
    for partition in range(1_000):
        pair.lead(partition)
    pair.begin(*[position(partition) for partition in range(1_000)])
    looked = sum(len(led.fetches) for led in pair.led.values())
    for _ in range(5):
        assert pair.reply(pair.answer(HOLD))
        request = pair.request()
        assert request.body.partitions == ()
        pair.take(request)
    assert sum(len(led.fetches) for led in pair.led.values()) == looked

"""Where a reader begins, whom it reads from, and how it notices that what it had is gone."""

import asyncio
import itertools
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from grpc import StatusCode

from liftbridge_client import Start, Stop, TruncatedError
from liftbridge_client.aio.session import Session
from liftbridge_client.aio.stream import Stream
from liftbridge_client.aio.subscription import EPOCH_HEADER, Subscription
from liftbridge_client.core.history import ReadHistory, cut_at
from liftbridge_client.errors import NotFoundError, RetriableError, error_of
from liftbridge_client.events import SubscriptionTruncated
from liftbridge_client.model import BrokerInfo, EventTimes, Metadata, PartitionInfo, StreamInfo
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.batches import Batches

NEVER = EventTimes(0, 0)


@pytest.mark.parametrize(
    ("epochs", "epoch", "position", "cut"),
    [
        ([(1, 0)], 1, 5, None),
        ([(1, 0), (2, 5)], 1, 5, None),
        ([(1, 0), (2, 4)], 1, 5, 4),
        ([(1, 0), (3, 3), (4, 4)], 1, 5, 3),
        ([(1, 0), (3, 3), (4, 4)], 3, 5, 4),
        ([(3, 0)], 1, 5, 0),
        ([(3, 8)], 1, 5, None),  # retention removed what the reader had
        ([], 1, 5, None),
    ],
)
def test_log_is_cut_where_the_next_epoch_begins(epochs, epoch, position, cut):
    assert cut_at(epochs, 0, given_of((epoch, 0)), position) == cut


def given_of(*epochs):
    given = ReadHistory()
    for one in epochs:
        given.note(*one)
    return given


class Log:
    """Records with leader epochs, and what a broker answers about them."""

    def __init__(self, *runs, high_watermark=None, unclean_epoch=0, stream_id=7):
        self.stream_id = stream_id
        self.unclean_epoch = unclean_epoch
        self.epochs = []
        self.values = []
        for epoch, start, values in runs:
            self.epochs.append((epoch, start))
            self.values = self.values[:start] + [(epoch, value) for value in values]
        self.high_watermark = len(self.values) if high_watermark is None else high_watermark

    def bounds(self, timestamp=None):
        found = data_pb2.PartitionBounds(
            stream_id=self.stream_id,
            high_watermark=self.high_watermark,
            log_end=len(self.values),
            log_start=0,
        )
        found.unclean_epoch = self.unclean_epoch
        for epoch, start in self.epochs:
            found.epochs.add(leader_epoch=epoch, start_offset=start)
        if timestamp is not None:
            found.timestamp_offset = min(self.high_watermark, timestamp)
        return found

    def responses(self, start):
        """One response for each epoch from an offset on, as far as it is committed."""
        records = list(enumerate(self.values))[start : self.high_watermark]
        found = []
        for epoch, records_of_it in itertools.groupby(records, lambda record: record[1][0]):
            run = list(records_of_it)
            data = Batches().make(
                run[0][0], [value for _, (_, value) in run], epoch=epoch, timestamp=run[0][0] + 1
            )
            found.append(
                data_pb2.FetchBatchesResponse(data=bytes(data), next_offset=run[-1][0] + 1)
            )
        return found


class Call:
    """A call that gives what it was made of, and breaks."""

    def __init__(self, responses, epoch=None):
        self._responses = list(responses)
        self._epoch = epoch

    async def read(self):
        if self._responses:
            return self._responses.pop(0)
        raise error_of(StatusCode.UNAVAILABLE, "leader changed")

    async def metadata(self):
        return {} if self._epoch is None else {EPOCH_HEADER: str(self._epoch)}

    def cancel(self):
        pass


class Cluster:
    """A session with brokers that have one log after the other: the next one at each call."""

    timeout_seconds = 1.0
    retry_seconds = call_seconds = 5.0
    has_data = True

    def __init__(self, *logs):
        self._logs = list(logs)
        self.log = self._logs.pop(0)
        self.asked = []
        self.emitted = []
        self.stats = SimpleNamespace(received=0, retries=0)
        self.hub = SimpleNamespace(emit=self.emitted.append)
        self.transport = SimpleNamespace(server_stream=self._server_stream)

    def _server_stream(self, address, _method, request):
        self.asked.append((address, request))
        if isinstance(request, data_pb2.FetchBatchesRequest):
            return Call(self.log.responses(request.start_offset))
        first = request.startOffset if request.startPosition == api_pb2.OFFSET else 0
        values = list(enumerate(self.log.values))
        chosen = values[first::-1] if request.reverse else values[first:]
        messages = [api_pb2.Message(offset=at, value=value) for at, (_, value) in chosen]
        epoch = self.log.epochs[-1][0] if self.log.epochs else 0
        return Call([api_pb2.Message(), *messages[:2]], epoch)

    async def call(self, _method, request, **_options):
        timestamp = request.timestamp if request.HasField("timestamp") else None
        return data_pb2.PartitionBoundsResponse(partitions=[self.log.bounds(timestamp)])

    async def leader_address(self, *_partition):
        return "leader"

    async def replica_address(self, _stream, _partition, avoided=()):
        return next((one for one in ("near", "far") if one not in avoided), "leader")

    async def refresh(self):
        if self._logs:
            self.log = self._logs.pop(0)


def subscription(cluster, start=None, stop=None, **more):
    how = {"resume": False, "reverse": False, "read_replica": False, "codec": None, **more}
    begin = start or Start.earliest()
    return Subscription(cluster, "s", 0, start=begin, stop=stop or Stop.never(), **how)


async def first(reading, count):
    found = []
    async with aclosing(aiter(reading)) as messages:
        async for message in messages:
            found.append((message.offset, message.value))
            if len(found) == count:
                break
    return found


BEFORE = Log((1, 0, [b"a", b"b", b"c", b"d"]))
CLEAN = Log((1, 0, [b"a", b"b", b"c", b"d"]), (2, 4, [b"e", b"f"]))
CUT = Log((1, 0, [b"a", b"b"]), (2, 2, [b"C", b"D", b"E", b"F"]))
SHORT = Log((1, 0, [b"a", b"b"]), (2, 2, []))
TWO = Log((1, 0, [b"a", b"b"]), (2, 2, [b"c", b"d"]))
FORMER = Log((1, 0, [b"a", b"b", b"C", b"D", b"E", b"F"]), (3, 6, []), unclean_epoch=3)
GIVEN = Log((1, 0, [b"a", b"b"]), (3, 2, [b"c", b"d"]))
TAIL = Log((1, 0, [b"a", b"b"]), (2, 2, [b"C", b"D", b"E"]), (4, 5, [b"F"]), unclean_epoch=4)
"""The elected replica has nothing of epoch 3, and of epoch 2 what was never committed."""


@pytest.mark.parametrize("resume", [False, True], ids=["batches", "messages"])
async def test_reader_goes_on_behind_an_orderly_change_of_leaders(resume):
    cluster = Cluster(BEFORE, *[CLEAN] * 9)
    found = await first(subscription(cluster, resume=resume), 6)
    assert [value for _, value in found] == [b"a", b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize("resume", [False, True], ids=["batches", "messages"])
@pytest.mark.parametrize("later", [CUT, SHORT], ids=["filled", "short"])
async def test_reader_is_told_from_where_on_what_it_had_is_gone(resume, later):
    logs = [BEFORE, BEFORE, later] if resume else [BEFORE, later]
    with pytest.raises(TruncatedError, match="truncated s/0 at offset 2") as caught:
        await first(subscription(Cluster(*logs), resume=resume), 9)
    assert (caught.value.offset, caught.value.next_offset) == (2, 4)
    assert not caught.value.retriable


@pytest.mark.parametrize("resume", [False, True], ids=["batches", "messages"])
async def test_reader_is_told_when_what_it_had_gave_its_place_to_a_former_leaders_tail(resume):
    logs = [GIVEN, GIVEN, TAIL] if resume else [GIVEN, TAIL]
    with pytest.raises(TruncatedError, match="truncated s/0 at offset 2") as caught:
        await first(subscription(Cluster(*logs), resume=resume), 9)
    assert (caught.value.offset, caught.value.next_offset) == (2, 4)


RECREATED = Log((1, 0, [b"A", b"B", b"C", b"D", b"E"]), stream_id=9)
EMPTY = Log(stream_id=9)


@pytest.mark.parametrize("resume", [False, True], ids=["batches", "messages"])
@pytest.mark.parametrize("later", [RECREATED, EMPTY], ids=["filled", "empty"])
async def test_reader_does_not_go_on_in_another_stream_of_the_same_name(resume, later):
    """Its offsets begin anew: what lies below the reader's would be skipped."""
    logs = [BEFORE, BEFORE, later] if resume else [BEFORE, later]
    cluster = Cluster(*logs)
    with pytest.raises(NotFoundError, match="stream s has id 9, not 7: it was recreated"):
        await first(subscription(cluster, resume=resume), 9)
    assert cluster.stats.received == 4


async def test_reader_names_the_stream_when_it_asks_for_batches():
    """It may be created anew after the look at its bounds."""
    cluster = Cluster(BEFORE)
    await first(subscription(cluster), 4)
    assert [request.stream_id for _, request in cluster.asked] == [7]


async def test_replica_that_still_has_the_former_stream_is_not_the_end():
    former = Log((1, 0, [b"a", b"b", b"c"]), stream_id=5)
    cluster = Cluster(TWO, TWO, former, *[CLEAN] * 3)
    found = await first(subscription(cluster, resume=True, read_replica=True), 5)
    assert [value for _, value in found] == [b"a", b"b", b"c", b"d", b"e"]
    assert "has id 5, not 7" in str([event.cause for event in cluster.emitted])


async def test_election_between_the_look_and_the_read_is_noticed():
    """The bounds are still those of before, and the batch is of a later epoch."""
    cluster = Cluster(Log((1, 0, [b"a", b"b", b"c", b"d"]), (2, 4, [b"e"]), high_watermark=4))
    reading = subscription(cluster)
    iterator = aiter(reading)
    assert [(await anext(iterator)).value for _ in range(4)] == [b"a", b"b", b"c", b"d"]
    looked = []

    async def refresh():
        async def look(_method, _request, **_options):
            looked.append(cluster.log)
            bounds = (BEFORE if len(looked) == 1 else CUT).bounds()
            return data_pb2.PartitionBoundsResponse(partitions=[bounds])

        cluster.log, cluster.call = CUT, look

    cluster.refresh = refresh
    with pytest.raises(TruncatedError):
        await anext(iterator)
    assert len(looked) == 2


async def test_former_epoch_that_took_the_place_after_the_look_is_noticed():
    cluster = Cluster(TWO, *[FORMER] * 3)
    looked = []

    async def look(_method, _request, **_options):
        looked.append(cluster.log)
        bounds = (TWO if len(looked) < 3 else FORMER).bounds()
        return data_pb2.PartitionBoundsResponse(partitions=[bounds])

    cluster.call = look
    found = await first(subscription(cluster, on_truncation="continue"), 8)
    assert [value for _, value in found] == [b"a", b"b", b"c", b"d", b"C", b"D", b"E", b"F"]
    assert SubscriptionTruncated("s", 0, 2, 4) in cluster.emitted


async def test_records_of_another_history_than_the_one_looked_at_are_not_given_out():
    """Whoever is asked still tells of the former history, and the batch is of the next one."""
    cluster = Cluster(TWO, FORMER, *[TWO] * 9)
    looks = []

    async def look(_method, _request, **_options):
        looks.append(1)
        return data_pb2.PartitionBoundsResponse(partitions=[TWO.bounds()])

    cluster.call = look
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await first(subscription(cluster), 5)
    assert cluster.stats.received == 4
    assert "decreases at offset 4: 1 after 2" in str(cluster.emitted[1].cause)


async def test_replica_that_has_not_come_as_far_does_not_make_the_reader_forget_its_epoch():
    behind = Log((1, 0, [b"a", b"b"]))
    more = Log((1, 0, [b"a", b"b"]), (2, 2, [b"c", b"d", b"e"]))
    cluster = Cluster(TWO, TWO, behind, *[more] * 3)
    found = await first(subscription(cluster, resume=True, read_replica=True), 5)
    assert [value for _, value in found] == [b"a", b"b", b"c", b"d", b"e"]


async def test_reader_that_is_told_to_continue_gets_what_is_there_now():
    cluster = Cluster(BEFORE, CUT, CUT)
    found = await first(subscription(cluster, on_truncation="continue"), 8)
    assert found[4:] == [(2, b"C"), (3, b"D"), (4, b"E"), (5, b"F")]
    assert SubscriptionTruncated("s", 0, 2, 4) in cluster.emitted


async def test_reader_backwards_is_told_when_what_is_to_come_was_cut_off():
    cluster = Cluster(Log((1, 0, [b"a", b"b", b"c", b"d", b"e"])), Log((1, 0, [b"a"]), (2, 1, [])))
    with pytest.raises(TruncatedError) as caught:
        await first(subscription(cluster, Start.at(4), reverse=True), 5)
    assert caught.value.offset == 1


async def test_start_at_an_offset_that_is_not_committed_waits_there():
    cluster = Cluster(Log((1, 0, [b"a", b"b", b"c", b"d"]), high_watermark=1), CLEAN)
    assert await first(subscription(cluster, Start.at(3)), 1) == [(3, b"d")]
    assert [request.start_offset for _, request in cluster.asked] == [3, 3]


async def test_new_messages_are_those_behind_what_is_committed():
    """What is not may be cut off, and what comes in its place is new."""
    cluster = Cluster(Log((1, 0, [b"a", b"b", b"c"]), high_watermark=1), CUT, CUT)
    assert (await first(subscription(cluster, Start.new()), 1))[0][0] == 1


async def test_start_at_a_time_gives_nothing_older():
    """The place of a time is at most where commit is; records behind it may be older."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    cluster = Cluster(Log((1, 0, [b"a", b"b", b"c", b"d"]), high_watermark=1), CLEAN, CLEAN)
    # In the second log all records but the last two have the timestamp 2, those have 5.
    reading = subscription(cluster, Start.time(epoch + timedelta(microseconds=1)))
    reading._start = reading._start._replace(timestamp=5)
    assert await first(reading, 1) == [(4, b"e")]


async def test_reads_at_replicas_go_to_replicas_and_at_last_to_the_leader():
    cluster = Cluster(BEFORE, *[BEFORE] * 9)
    reading = subscription(cluster, read_replica=True)
    assert len(await first(reading, 4)) == 4
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await first(subscription(cluster, Start.at(4), read_replica=True), 1)
    addresses = [address for address, _ in cluster.asked]
    assert addresses[0] == "near"
    assert addresses[1:5] == ["near", "far", "leader", "leader"]
    assert all(request.read_replica for _, request in cluster.asked)


def session(zone, leader="b1", isr=("b1", "b2", "b3")):
    found = Session(["h:1"], tls=None, timeout=timedelta(1), retry_time=timedelta(1), zone=zone)
    zones = {"b1": "x", "b2": "y", "b3": "z", "b4": "z"}
    brokers = {
        name: BrokerInfo(name, "h", at, 0, 0, where)
        for at, (name, where) in enumerate(zones.items(), 1)
    }
    flags = (False, False)
    part = PartitionInfo(0, leader, ("b1", "b2", "b3"), isr, -1, -1, *flags, *[NEVER] * 3)
    streams = {"s": StreamInfo("s", "s", datetime.now(UTC), {0: part})}
    found._metadata = Metadata(brokers, streams)
    return found


@pytest.mark.parametrize(
    ("zone", "isr", "avoided", "expected"),
    [
        ("z", ("b1", "b2", "b3"), (), {"h:3"}),
        ("x", ("b1", "b2", "b3"), (), {"h:2", "h:3"}),  # the leader's own zone has no other one
        ("", ("b1", "b2", "b3"), (), {"h:2", "h:3"}),
        ("z", ("b1", "b2"), (), {"h:2"}),  # not in sync
        ("z", ("b1", "b2", "b3"), ("h:3",), {"h:2"}),
        ("z", ("b1", "b2", "b3"), ("h:3", "h:2"), {"h:1"}),
        ("z", ("b1",), (), {"h:1"}),
    ],
)
async def test_replica_is_chosen_by_zone_and_spread_otherwise(zone, isr, avoided, expected):
    one = session(zone, isr=isr)
    assert {await one.replica_address("s", 0, avoided) for _ in range(60)} == expected


class Leaders(Cluster):
    """Three brokers that lead two partitions each; they move while they are asked."""

    def __init__(self, moves):
        super().__init__(BEFORE)
        self.moves = moves
        self.leaders = {number: f"b{number % 3}" for number in range(6)}
        self.told = dict(self.leaders)
        self.calls = []

    async def stream_info(self, _stream):
        return SimpleNamespace(partitions=dict.fromkeys(range(6)))

    async def leader_address(self, _stream, partition):
        return self.told[partition]

    async def replica_address(self, _stream, partition, _avoided=()):
        return f"replica of {self.leaders[partition]}"

    def doubt_leader(self, _stream, partition):
        self.told[partition] = self.leaders[partition]

    def attempts(self, path):
        return session("").attempts(path)

    async def ask(self, address, _method, request):
        self.calls.append(address)
        if self.moves:
            self.leaders[self.moves.pop()] = "b9"
        wrong = [one for one in request.partitions if self.leaders[one] not in address]
        if wrong and not request.read_replica:
            raise RetriableError("Server not partition leader")
        return data_pb2.PartitionBoundsResponse(
            partitions=[data_pb2.PartitionBounds(partition=one) for one in request.partitions]
        )


@pytest.mark.parametrize("moves", [[], [4], [1, 2]])
async def test_bounds_are_those_of_every_leader(moves):
    cluster = Leaders(list(moves))
    stream = Stream(cluster, "s")
    assert [one.partition for one in await stream.bounds()] == [0, 1, 2, 3, 4, 5]
    assert [one.partition for one in await stream.bounds(5, 1)] == [5, 1]
    assert {"b0", "b1", "b2"} <= set(cluster.calls)


async def test_bounds_of_replicas_are_asked_of_replicas():
    cluster = Leaders([])
    assert len(await Stream(cluster, "s").bounds(read_replica=True)) == 6
    assert set(cluster.calls) == {"replica of b0", "replica of b1", "replica of b2"}

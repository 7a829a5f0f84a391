"""The parts of the simulator, each by itself: time, clocks, NATS, disks, machines."""

from random import Random

import pytest

from liftbridge_broker.errors import UnavailableError
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.units import MILLISECOND_NS, SECOND_NS
from liftbridge_broker.ports.files import FileEvent
from liftbridge_broker.ports.messaging import SubscriptionId
from liftbridge_broker.ports.transport import EVERYONE, Channel
from liftbridge_testkit.sim.clock import MachineClock
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.disk import SimFiles
from liftbridge_testkit.sim.network import PPM, Verdict
from liftbridge_testkit.sim.ports import SimMessaging, parse_frames
from liftbridge_testkit.sim.scheduler import Scheduler
from liftbridge_testkit.sim.trace import LINES_KEPT, Trace
from liftbridge_testkit.sim.world import World

TOPIC = SubscriptionId(7)


class Ear:
    """Hears everything."""

    def __init__(self):
        self.heard = []
        self.links = []

    def on_delivery(self, subscription, arrival, payload):
        self.heard.append((subscription, arrival.subject, payload))

    def on_peer(self, channel, payload):
        self.heard.append((channel, payload))

    def on_link(self, *, connected):
        self.links.append(connected)

    @property
    def payloads(self):
        return [one[-1] for one in self.heard]


class Noting:
    """A program that notes when it was told what."""

    def __init__(self, ports):
        self.ports = ports
        self.told = []
        self.is_ready = False

    def start(self):
        self.is_ready = True
        self.handle = self.ports.files.open("file", create=True)

    def on_file_event(self, event, *_):
        self.told.append(event)

    def on_timer(self, now, *_):
        self.told.append(now)

    def on_messages(self, _subscription, _arrivals, payloads, *_):
        self.told += payloads

    def on_peer(self, _channel, payload, *_):
        self.told.append(payload)

    def on_link(self, *, connected, **_):
        self.told.append(connected)

    def stop(self, *_):
        self.ports.stopped()


@pytest.fixture
def world():
    return World(1, Trace())


@pytest.fixture
def machine(world):
    machine = world.add_machine("a", Noting)
    machine.start()
    return machine


def ears(world, *names):
    found = []
    for name in names:
        ear = Ear()
        ear.endpoint = world.network.add(name, ear, takes_peers=True)
        found.append(ear)
    return found


def settle(world):
    world.run_until(world.now + 10 * SECOND_NS)


# -- time -----------------------------------------------------------------------------------------


def test_events_happen_in_order_of_time_and_then_of_planning():
    scheduler, seen = Scheduler(), []
    for when, name in ((5, "c"), (3, "a"), (3, "b"), (9, "d")):
        scheduler.at(when, seen.append, name)
    while scheduler.next_at is not None:
        scheduler.step()
    assert seen == ["a", "b", "c", "d"]
    assert scheduler.now == 9


def test_event_in_the_past_happens_now():
    scheduler = Scheduler()
    scheduler.at(7, scheduler.at, 3, scheduler.after, 0, int)
    scheduler.step()
    assert scheduler.next_at == 7


@pytest.mark.parametrize("drift_ppm", [-20_000, -1, 0, 1, 137, 20_000])
def test_deadline_is_met_at_the_first_instant_the_clock_shows_it(drift_ppm):
    clock = MachineClock(1_000, 50, drift_ppm=drift_ppm)
    for deadline in (1_000, 1_001, 123_456, 10 * SECOND_NS + 7):
        true_ns = clock.true(deadline)
        assert clock.local(true_ns) >= deadline
        assert true_ns == 50 or clock.local(true_ns - 1) < deadline


def test_change_of_drift_moves_no_clock():
    clock = MachineClock(0, 0, drift_ppm=500, wall_skew_ns=99)
    before = clock.local(SECOND_NS), clock.wall(SECOND_NS)
    clock.set_drift(-900, SECOND_NS)
    assert (clock.local(SECOND_NS), clock.wall(SECOND_NS)) == before
    assert clock.local(2 * SECOND_NS) - before[0] < SECOND_NS


def test_trace_keeps_the_last_lines_and_hashes_all():
    one, other = Trace(), Trace()
    for number in range(LINES_KEPT + 5):
        one.note(number, "a", "line", number)
    other.note(0, "a", "line", 1)
    assert len(one.tail()) == LINES_KEPT
    assert one.tail()[-1].endswith(f"line {LINES_KEPT + 4}")
    assert one.hash != other.hash


def test_coverage_tells_what_is_below_its_floor():
    coverage = Coverage()
    coverage.count("fault", "kill", 3)
    coverage.rare("corner")
    assert coverage.below({("fault", "kill"): 3, ("rare", "other"): 1}) == [
        "rare other: 0 of at least 1"
    ]
    assert any("corner" in line for line in coverage.table())


# -- network --------------------------------------------------------------------------------------


def test_messages_between_two_arrive_in_order_whatever_the_delay(world):
    one, other = ears(world, "a", "b")
    world.network.conditions.delay_ns_jitter = SECOND_NS
    payloads = [bytes([number]) for number in range(50)]
    for payload in payloads:
        world.network.send(one.endpoint, "b", Channel.DATA, payload)
    settle(world)
    assert other.payloads == payloads


def test_message_to_everyone_reaches_the_sender_too(world):
    one, other = ears(world, "a", "b")
    world.network.send(one.endpoint, EVERYONE, Channel.METADATA, b"x")
    settle(world)
    assert one.payloads == other.payloads == [b"x"]


def test_cut_loses_one_direction_and_what_is_under_way(world):
    one, other = ears(world, "a", "b")
    world.network.send(one.endpoint, "b", Channel.DATA, b"under way")
    world.network.cut("a", "b")
    world.network.send(one.endpoint, "b", Channel.DATA, b"cut")
    world.network.send(other.endpoint, "a", Channel.DATA, b"back")
    settle(world)
    assert other.payloads == []
    assert one.payloads == [b"back"]
    world.network.mend("a", "b")
    world.network.send(one.endpoint, "b", Channel.DATA, b"again")
    settle(world)
    assert other.payloads == [b"again"]


def test_cuts_add_up(world):
    one, other = ears(world, "a", "b")
    world.network.cut("a", "b")
    world.network.cut("a", "b")
    world.network.mend("a", "b")
    world.network.send(one.endpoint, "b", Channel.DATA, b"x")
    settle(world)
    assert other.payloads == []


def test_link_that_falls_loses_what_is_under_way_to_it_and_tells(world):
    one, other = ears(world, "a", "b")
    world.network.send(one.endpoint, "b", Channel.DATA, b"lost")
    world.network.unlink("b")
    world.network.send(one.endpoint, "b", Channel.DATA, b"nobody")
    world.network.relink("b")
    world.network.send(one.endpoint, "b", Channel.DATA, b"heard")
    settle(world)
    assert other.payloads == [b"heard"]
    assert other.links == [False, True]


def test_outage_takes_all_links_and_each_comes_back(world):
    one, other = ears(world, "a", "b")
    world.network.begin_outage()
    world.network.send(one.endpoint, "b", Channel.DATA, b"lost")
    world.network.end_outage()
    settle(world)
    assert one.links == other.links == [False, True]
    assert other.payloads == []


@pytest.mark.parametrize(
    ("option", "expected"),
    [("loss_ppm", []), ("duplicate_ppm", [b"xyz", b"xyz"])],
)
def test_swarm_option_treats_messages_between_brokers(world, option, expected):
    one, other = ears(world, "a", "b")
    setattr(world.network.conditions, option, PPM)
    world.network.send(one.endpoint, "b", Channel.DATA, b"xyz")
    settle(world)
    assert other.payloads == expected


def test_corruption_turns_over_one_bit(world):
    one, other = ears(world, "a", "b")
    world.network.conditions.corrupt_ppm = PPM
    world.network.send(one.endpoint, "b", Channel.DATA, bytes(8))
    settle(world)
    assert int.from_bytes(other.payloads[0], "big").bit_count() == 1


def test_reordered_messages_overtake_one_another(world):
    one, other = ears(world, "a", "b")
    world.network.conditions.reorder_ppm = PPM // 2
    payloads = [bytes([number]) for number in range(50)]
    for payload in payloads:
        world.network.send(one.endpoint, "b", Channel.DATA, payload)
    settle(world)
    assert sorted(other.payloads) == payloads != other.payloads


def test_filter_holds_messages_until_they_are_released(world):
    one, other = ears(world, "a", "b")
    world.network.filter = lambda _source, _target, _channel, payload: (
        Verdict.DROP if payload == b"drop" else Verdict.HOLD
    )
    for payload in (b"drop", b"hold"):
        world.network.send(one.endpoint, "b", Channel.DATA, payload)
    settle(world)
    assert other.payloads == []
    assert world.network.release() == 1
    settle(world)
    assert other.payloads == [b"hold"]


def test_queue_group_gives_a_message_to_one_member_and_others_to_all(world):
    one, two, three = ears(world, "a", "b", "c")
    world.network.subscribe(one.endpoint, TOPIC, "s.*", "group")
    world.network.subscribe(two.endpoint, TOPIC, "s.*", "group")
    world.network.subscribe(three.endpoint, TOPIC, "s.>", "")
    for _ in range(20):
        world.network.publish(three.endpoint, "quiet", "s.x", b"m", hears_itself=False)
    settle(world)
    assert len(one.heard) + len(two.heard) == 20
    assert one.heard
    assert two.heard
    assert three.heard == []


def test_published_frames_carry_reply_and_headers():
    data = b"PUB s 2\r\nab\r\nHPUB t r 4 6\r\nhhhhcd\r\n"
    assert parse_frames(data) == [("s", "", b"", b"ab"), ("t", "r", b"hhhh", b"cd")]


def test_subscription_is_heard_once_the_server_knows_it(world):
    (ear,) = ears(world, "a")
    messaging = SimMessaging(ear.endpoint, world.network, MILLISECOND_NS, lambda done: done())
    messaging.subscribe(TOPIC, "s", "")
    told = []
    messaging.when_subscribed(lambda: told.append(world.now))
    messaging.publish_echo([b"PUB s 1\r\nx\r\n"])
    settle(world)
    messaging.publish_echo([b"PUB s 1\r\ny\r\n"])
    messaging.publish_quiet([b"PUB s 1\r\nz\r\n"])
    settle(world)
    assert told == [MILLISECOND_NS]
    assert ear.payloads == [b"y"]


def test_publishing_without_a_link_is_refused(world):
    (ear,) = ears(world, "a")
    messaging = SimMessaging(ear.endpoint, world.network, 0, lambda done: done())
    world.network.unlink("a")
    with pytest.raises(UnavailableError):
        messaging.publish_echo([b"PUB s 1\r\nx\r\n"])


# -- disk -----------------------------------------------------------------------------------------


def synced(files, path, data):
    handle = files.open(path, create=True)
    files.append(handle, data)
    files.sync(handle)
    files.sync_directory("")
    return handle


def test_power_cut_loses_what_was_not_synced_and_counts_it():
    files = SimFiles(Random(1))
    handle = synced(files, "x.log", b"kept")
    files.append(handle, b"lost")
    assert files.lose_power(None) == 4
    assert files.content("x.log") == b"kept"


def test_lying_disk_loses_what_it_called_synced():
    files = SimFiles(Random(1))
    files.lying = "*.log"
    synced(files, "x.log", b"kept")
    assert files.lose_power(None) > 0


def test_rot_turns_over_one_synced_bit():
    files = SimFiles(Random(1))
    synced(files, "x.log", bytes(10))
    assert files.rot()
    assert int.from_bytes(files.content("x.log"), "big").bit_count() == 1
    assert not SimFiles(Random(1)).rot()


def test_misdirected_write_lands_in_another_file():
    files = SimFiles(Random(1))
    synced(files, "y.log", bytes(10))
    handle = synced(files, "x.log", b"")
    files.misdirected = "*.log"
    files.append(handle, b"data")
    assert files.content("x.log") == bytes(4)
    assert b"data" in files.content("y.log")
    assert files.misdirected_count == 1


def test_wiped_disk_is_empty():
    files = SimFiles(Random(1))
    synced(files, "x.log", b"kept")
    files.wipe()
    files.lose_power(None)
    assert files.paths() == ()


# -- machine --------------------------------------------------------------------------------------


def test_paused_process_makes_up_for_its_turns_in_order(world, machine):
    program = machine.program
    machine.pause()
    for payload in (b"1", b"2", b"3"):
        machine.on_peer(Channel.DATA, payload)
    settle(world)
    assert program.told == []
    machine.resume()
    machine.on_peer(Channel.DATA, b"4")
    settle(world)
    assert program.told == [b"1", b"2", b"3", b"4"]


def test_stalled_process_goes_on_by_itself(world, machine):
    program = machine.program
    machine.stall(SECOND_NS)
    machine.on_peer(Channel.DATA, b"1")
    world.run_until(SECOND_NS - 1)
    assert program.told == []
    world.run_until(SECOND_NS)
    assert program.told == [b"1"]


def test_timer_comes_by_the_clock_of_the_machine_and_only_the_last_one(world, machine):
    now = machine.now()
    machine.arm(Instant(now + 2 * SECOND_NS))
    machine.arm(Instant(now + SECOND_NS))
    program = machine.program
    settle(world)
    assert len(program.told) == 1
    assert now + SECOND_NS <= program.told[0] <= now + SECOND_NS + MILLISECOND_NS


def test_process_that_ended_is_told_nothing_more(world, machine):
    program = machine.program
    program.ports.files.submit_sync(5, [program.handle])
    machine.on_peer(Channel.DATA, b"1")
    machine.kill()
    machine.start()
    settle(world)
    assert program.told == [b"1"]
    assert machine.program.told == []


def test_calls_by_token_end_late_and_in_order(world, machine):
    program = machine.program
    for token in (5, 6):
        program.ports.files.submit_sync(token, [program.handle])
    assert program.told == []
    settle(world)
    assert program.told == [FileEvent(5), FileEvent(6)]


def test_power_may_go_in_the_middle_of_a_turn(world, machine):
    program = machine.program
    machine.crash_within(2, None)
    machine.turn(machine.incarnation, lambda: program.ports.files.append(program.handle, b"1"))
    assert machine.is_running
    machine.turn(machine.incarnation, lambda: program.ports.files.append(program.handle, b"2"))
    assert not machine.is_running
    assert world.coverage.counts["rare", "power cut within a turn"] == 1


def test_orderly_stop_ends_the_process(world, machine):
    machine.stop()
    settle(world)
    assert not machine.is_running
    assert world.coverage.counts["world", "process stopped"] == 1


def test_process_that_stopped_makes_up_for_nothing(world, machine):
    program = machine.program
    machine.pause()
    machine.stop()
    machine.on_peer(Channel.DATA, b"1")
    machine.resume()
    settle(world)
    assert program.told == []
    assert not machine.is_running


def test_replaced_disk_is_another_one(machine):
    machine.wipe()
    machine.start()
    assert machine.program.ports.disk_number == 1
    assert machine.name == BrokerId("a")

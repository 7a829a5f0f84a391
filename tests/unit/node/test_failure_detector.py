"""The failure detector: processes that have ended, by what NATS says of them (ADR 0031)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.node.metadata.consensus import STAGGER_NS
from liftbridge_broker.node.metadata.failure_detector import (
    CONFIRM_NS,
    CONFIRM_NS_MAX,
    GAP_NS,
    LATELY_NS,
    PROBE_NS,
    PUNCTUAL_NS,
    SETTLE_NS,
    FailureDetector,
)
from liftbridge_broker.ports.transport import Channel

START = SETTLE_NS
"""A time at which signals are believed."""


class Nats:
    """Answers probes to absent brokers at once, as a server does.

    Attributes:
        now: Time.
        absent: Channels without a connection, by broker.
        probed: Probes since the last look.
        ended: Confirmed brokers, with times.
    """

    def __init__(self, *watched):
        self.now = START
        self.absent = {}
        self.probed = []
        self.ended = []
        self.detector = FailureDetector(self.probe)
        self.detector.watch((), 0)
        self.detector.watch(watched, self.now)

    def probe(self, broker, channel, sent_at):
        self.probed.append((broker, channel))
        if channel in self.absent.get(broker, ()):
            self.answer(broker, channel, sent_at)

    def answer(self, broker, channel, sent_at):
        if self.detector.on_no_responders(broker, channel, sent_at, self.now):
            self.ended.append((broker, self.now))

    def run(self, until):
        while (due := self.detector.next_deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            self.detector.on_timer(self.now)
        self.now = until


def test_present_brokers_are_probed_on_one_channel_and_none_ends():
    nats = Nats("b", "c")
    nats.run(START + 2 * PROBE_NS)
    assert nats.probed == 3 * [("b", Channel.METADATA), ("c", Channel.METADATA)]
    assert nats.ended == []


def test_ended_process_is_confirmed_after_the_time_and_once():
    nats = Nats("b", "c")
    nats.absent["b"] = set(Channel)
    nats.run(START + CONFIRM_NS - 1)
    assert nats.ended == []
    nats.run(START + 10 * CONFIRM_NS)
    ((broker, ended_at),) = nats.ended
    assert broker == "b"
    assert START + CONFIRM_NS <= ended_at < START + CONFIRM_NS + PROBE_NS
    assert nats.detector.has_ended("b")
    assert not nats.detector.has_ended("c")


def test_voters_confirm_an_end_closer_together_than_they_start_elections():
    ended = []
    for probed_at in range(START, START + PROBE_NS, MILLISECOND_NS):
        nats = Nats("b")
        nats.now = probed_at
        nats.run(START + 10 * PROBE_NS)
        nats.absent["b"] = set(Channel)
        nats.run(nats.now + 10 * CONFIRM_NS)
        ended += [at for _, at in nats.ended]
    assert len(ended) == PROBE_NS // MILLISECOND_NS
    assert 0 < max(ended) - min(ended) < STAGGER_NS


def test_channels_that_are_absent_in_turn_are_no_absence():
    nats = Nats("b")
    for count in range(10):
        nats.absent["b"] = {Channel.METADATA} if count % 2 else {Channel.DATA}
        nats.run(nats.now + 2 * CONFIRM_NS)
        nats.absent["b"] = set(Channel)
        nats.run(nats.now + CONFIRM_NS // 2)
    assert nats.ended == []


@pytest.mark.parametrize("channel", Channel)
def test_broker_with_one_connection_has_not_ended(channel):
    nats = Nats("b")
    nats.absent["b"] = {channel}
    nats.run(START + 10 * CONFIRM_NS)
    assert nats.ended == []


def test_message_shows_that_its_sender_lives():
    nats = Nats("b")
    nats.absent["b"] = set(Channel)
    for count in range(1, 10):
        nats.run(START + count * (CONFIRM_NS - 1))
        nats.detector.on_message("b", nats.now)
    assert nats.ended == []
    nats.answer("b", Channel.METADATA, START)
    nats.answer("b", Channel.DATA, START)
    last = nats.now
    nats.run(last + 3 * CONFIRM_NS)
    ((_, ended_at),) = nats.ended
    assert last + CONFIRM_NS <= ended_at <= last + CONFIRM_NS + 2 * PROBE_NS


@pytest.mark.parametrize("pause", [PUNCTUAL_NS + 1, 2 * CONFIRM_NS_MAX])
def test_broker_that_was_slow_lately_gets_more_time(pause):
    nats = Nats("b")
    nats.run(START + pause)
    nats.detector.on_message("b", nats.now)
    nats.absent["b"] = set(Channel)
    began, patience = nats.now, min(pause, CONFIRM_NS_MAX)
    nats.run(began + patience - 1)
    assert nats.ended == []
    nats.run(began + patience + 2 * PROBE_NS)
    assert [broker for broker, _ in nats.ended] == ["b"]


def test_broker_that_pauses_as_long_as_a_heartbeat_gets_no_more_time():
    nats = Nats("b")
    nats.run(START + PUNCTUAL_NS)
    nats.detector.on_message("b", nats.now)
    nats.absent["b"] = set(Channel)
    began = nats.now
    nats.run(began + CONFIRM_NS + 2 * PROBE_NS)
    assert [broker for broker, _ in nats.ended] == ["b"]


def test_pause_is_forgotten_after_a_while():
    nats = Nats("b")
    nats.run(START + 2 * CONFIRM_NS_MAX)
    last = nats.now + 2 * LATELY_NS
    while nats.now < last:
        nats.detector.on_message("b", nats.now)
        nats.run(nats.now + CONFIRM_NS)
    nats.detector.on_message("b", nats.now)
    nats.absent["b"] = set(Channel)
    nats.run(last + CONFIRM_NS + 2 * PROBE_NS)
    assert [broker for broker, _ in nats.ended] == ["b"]


def test_own_outage_is_no_pause_of_others():
    nats = Nats("b")
    nats.run(START + 2 * CONFIRM_NS_MAX)
    nats.detector.on_connected(nats.now)
    nats.detector.on_message("b", nats.now)
    nats.absent["b"] = set(Channel)
    settled = nats.now + SETTLE_NS
    nats.run(settled + CONFIRM_NS + 2 * PROBE_NS)
    assert [broker for broker, _ in nats.ended] == ["b"]


def test_process_that_was_confirmed_and_sends_again_lives():
    nats = Nats("b")
    nats.absent["b"] = set(Channel)
    nats.run(START + CONFIRM_NS + PROBE_NS)
    assert nats.detector.has_ended("b")
    nats.detector.on_message("b", nats.now)
    assert not nats.detector.has_ended("b")


def test_conclusion_counts_for_a_moment_without_further_signals():
    nats = Nats("b")
    nats.absent["b"] = set(Channel)
    nats.run(START + CONFIRM_NS)
    nats.absent.clear()
    nats.run(nats.now + GAP_NS)
    assert nats.detector.has_ended("b")
    nats.run(nats.now + PROBE_NS)
    assert not nats.detector.has_ended("b")


def test_two_short_absences_are_not_one():
    nats = Nats("b")
    for start in (START, START + GAP_NS + 2 * CONFIRM_NS):
        nats.run(start)
        nats.absent["b"] = set(Channel)
        nats.run(start + CONFIRM_NS - 1)
        nats.absent.clear()
    assert nats.ended == []


def test_nothing_is_believed_after_a_new_connection():
    nats = Nats("b")
    nats.absent["b"] = set(Channel)
    nats.run(START + CONFIRM_NS - 1)
    nats.detector.on_connected(nats.now)
    nats.run(nats.now + SETTLE_NS)
    assert nats.ended == []
    nats.run(nats.now + CONFIRM_NS + 2 * PROBE_NS)
    assert [broker for broker, _ in nats.ended] == ["b"]


def test_nothing_is_believed_after_the_start():
    nats = Nats("b")
    nats.detector = FailureDetector(nats.probe)
    nats.detector.watch(("b",), nats.now)
    nats.absent["b"] = set(Channel)
    nats.run(nats.now + SETTLE_NS)
    assert nats.ended == []
    nats.run(nats.now + CONFIRM_NS + 2 * PROBE_NS)
    assert [broker for broker, _ in nats.ended] == ["b"]


def test_a_broker_that_was_heard_after_a_new_connection_can_end_at_once():
    nats = Nats("b", "c")
    nats.detector.on_connected(nats.now)
    nats.detector.on_message("b", nats.now)
    nats.absent = {"b": set(Channel), "c": set(Channel)}
    nats.run(nats.now + CONFIRM_NS + 2 * PROBE_NS)
    assert [broker for broker, _ in nats.ended] == ["b"]


def test_a_broker_that_was_heard_before_a_new_connection_can_not_end_at_once():
    nats = Nats("b")
    nats.detector.on_message("b", nats.now)
    nats.detector.on_connected(nats.now)
    nats.absent["b"] = set(Channel)
    nats.run(nats.now + SETTLE_NS)
    assert nats.ended == []


def test_signals_about_others_and_of_the_future_mean_nothing():
    nats = Nats("b")
    for sent_at in (nats.now, nats.now + CONFIRM_NS):
        for channel in Channel:
            nats.answer("c", channel, sent_at)
            nats.answer("b", channel, sent_at + 1)
    assert nats.ended == []


def test_who_watches_nobody_sends_nothing():
    nats = Nats()
    assert nats.detector.next_deadline() is None
    nats.detector.watch(("b",), nats.now)
    assert nats.detector.next_deadline() == nats.now
    nats.detector.watch((), nats.now)
    assert nats.detector.next_deadline() is None


STEPS = st.lists(
    st.tuples(
        st.integers(1, 100).map(lambda ms: ms * MILLISECOND_NS),
        st.sampled_from(["down", "up", "one", "message", "connected"]),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_a_broker_ends_exactly_after_it_was_absent_long_enough(steps):
    """Compare with the true times of absence, message and connection."""
    nats = Nats("b")
    quiet, settled = START, START
    for duration, event in [*steps, (CONFIRM_NS_MAX + 4 * PROBE_NS, "end")]:
        is_absent = nats.absent.get("b") == set(Channel)
        known = len(nats.ended)
        nats.run(nats.now + duration)
        for _, ended_at in nats.ended[known:]:
            assert is_absent
            assert ended_at - max(quiet, settled) >= CONFIRM_NS
        if is_absent and nats.now - max(quiet, settled) >= CONFIRM_NS_MAX + 3 * PROBE_NS:
            assert nats.detector.has_ended("b")
        match event:
            case "down":
                quiet = quiet if is_absent else max(quiet, nats.now)
                nats.absent["b"] = set(Channel)
            case "up":
                nats.absent.clear()
                nats.run(nats.now + GAP_NS + PROBE_NS)
            case "one":
                nats.absent["b"] = {Channel.DATA}
                nats.run(nats.now + GAP_NS + PROBE_NS)
            case "message":
                quiet = settled = nats.now
                nats.detector.on_message("b", nats.now)
            case "connected":
                nats.detector.on_connected(nats.now)
                quiet, settled = nats.now, nats.now + SETTLE_NS
            case _:
                break

"""Brokers that found a cluster together create the stream of cursors once all its replicas fit."""

from types import SimpleNamespace

import pytest

from liftbridge_broker.controller.commands import CreateStream
from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_broker.node.assembly.session import create_stream

TOO_MANY = InvalidRequestError("Invalid replicationFactor")


class Node:
    """A node whose metadata group refuses more replicas than it has brokers."""

    def __init__(self, *registered):
        brokers = {name: SimpleNamespace(removed=False) for name in registered}
        self.streams = {}
        self.state = SimpleNamespace(brokers=brokers, stream=self.streams.get)

    def register(self, name):
        self.state.brokers[name] = SimpleNamespace(removed=False)

    def propose(self, command, _now, done):
        if command.replication_factor > len(self.state.brokers):
            done(TOO_MANY)
        else:
            self.streams[command.name] = command


def begin(node, factor):
    core = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: 0),
        observer=SimpleNamespace(transition=lambda _name, _fields: None),
        options=SimpleNamespace(control=SimpleNamespace(session_ns=0)),
        consensus=SimpleNamespace(leader="a", voters=("a", "b", "c")),
        node=node,
    )
    command = CreateStream(
        name="__cursors",
        subject="cursors",
        partitions=1,
        replication_factor=factor,
        overrides=StreamOverrides(),
        creation_timestamp=0,
        is_internal=True,
    )
    return create_stream(core, command)


def test_a_founder_waits_for_those_that_have_not_registered_yet():
    node = Node("a", "b")
    steps = begin(node, 3)
    for _ in range(10):
        next(steps)
    assert node.streams == {}
    node.register("c")
    assert list(steps) == [None]
    assert node.streams["__cursors"].replication_factor == 3


def test_a_factor_beyond_the_founders_is_refused_at_once():
    steps = begin(Node("a", "b"), 4)
    next(steps)
    with pytest.raises(InvalidRequestError, match="replicationFactor"):
        next(steps)


@pytest.mark.parametrize("factor", [-1, 0, 2])
def test_a_factor_that_fits_waits_for_nobody(factor):
    node = Node("a", "b")
    assert list(begin(node, factor)) == [None]
    assert "__cursors" in node.streams

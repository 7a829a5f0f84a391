"""The blocking client has the surface of the asyncio client: same names, same parameters."""

import inspect
from typing import get_overloads

import pytest

import liftbridge_client as lb

TWINS = [
    (lb.Client, lb.SyncClient),
    (lb.Streams, lb.SyncStreams),
    (lb.Stream, lb.SyncStream),
    (lb.Publisher, lb.SyncPublisher),
    (lb.Subscription, lb.SyncSubscription),
    (lb.Events, lb.SyncEvents),
    (lb.Consumer, lb.SyncConsumer),
    (lb.AdminClient, lb.SyncAdminClient),
    (lb.AccessControl, lb.SyncAccessControl),
]
RENAMED = {
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
# For the parts inside: lanes call the publisher, the session and the hub call the listener.
INSIDE = {
    lb.Publisher: {"client", "stream_name", "ack_policy", "identity", "takes_single", "on_settled"},
    lb.Events: {"slow_seconds", "put", "end"},
    lb.Stream: {"restorer"},
}
# Both are entered, iterated and so on; the rest of the dunder methods is Python's.
DUNDERS = set(RENAMED) | set(RENAMED.values())


def surface(kind):
    """Public names of a class, with those of attributes it declares, and those of its bases."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("liftbridge")]
    names = {n for base in bases for n in (*vars(base), *inspect.get_annotations(base))}
    return {n for n in names if not n.startswith("_") or n in DUNDERS}


def parameters(function):
    found = list(inspect.signature(function).parameters.values())[1:]  # without `self`
    return [(p.name, p.kind, p.default, str(p.annotation)) for p in found]


@pytest.mark.parametrize(("theirs", "ours"), TWINS, ids=lambda kind: kind.__name__)
def test_twin_has_the_same_names_with_the_same_parameters(theirs, ours):
    expected = {RENAMED.get(n, n): n for n in surface(theirs) - INSIDE.get(theirs, set())}
    assert surface(ours) == set(expected)
    compared = 0
    for name, original in expected.items():
        one, other = vars(theirs).get(original), inspect.getattr_static(ours, name)
        if not inspect.isfunction(one):
            # A property may stand for a plain attribute.
            assert isinstance(other, property), name
            assert one is None or isinstance(one, property), name
            setters = [p.fset is not None for p in (one, other) if p is not None]
            assert len(set(setters)) == 1, name
            continue
        compared += 1
        assert parameters(one) == parameters(other), name
        assert not inspect.iscoroutinefunction(other), name
        assert other.__name__ == name  # made from the method of that name
    assert compared > 1


def test_every_public_class_with_calls_has_a_twin():
    kinds = {kind for kind in vars(lb).values() if inspect.isclass(kind)}
    with_calls = {
        kind
        for kind in kinds
        if any(
            inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f)
            for f in vars(kind).values()
        )
    }
    assert with_calls == {one for one, _ in TWINS}


def test_both_are_made_with_the_same_arguments():
    one, other = inspect.signature(lb.connect), inspect.signature(lb.connect_sync)
    assert one.parameters == other.parameters


def test_both_join_groups_with_the_same_arguments():
    one, other = vars(lb.Consumers)["join"], vars(lb.SyncConsumers)["join"]
    assert parameters(one) == parameters(other)
    for function in (one, other):
        expected = set(inspect.signature(function).parameters)
        found = [
            set(inspect.signature(overload).parameters) for overload in get_overloads(function)
        ]
        assert found == [expected, expected]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (lb.Client, "publish_to_subject"),
        (lb.Stream, "publish"),
        (lb.Stream, "publisher"),
        (lb.Stream, "subscribe"),
    ],
)
def test_every_overload_takes_what_the_function_takes(kind, name):
    for function in (vars(kind)[name], vars(dict(TWINS)[kind])[name]):
        overloads = get_overloads(function)
        assert len(overloads) == 2
        expected = set(inspect.signature(function).parameters)
        assert all(set(inspect.signature(o).parameters) == expected for o in overloads)

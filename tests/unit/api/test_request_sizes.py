"""A request that is full of one thing costs no more than a turn, whatever that is.

Every field of every request that can be large - texts, bytes, lists and maps, those in messages
within it, too - is filled up to the largest request that is not refused for its size. What counts
is processor time, as nearly all of the work is native, beside that of a loop: an ordinary request
takes a hundredth of the bound, and one that is looked into as a whole several times of it.

Nor does a text of that size get into a change of the metadata, for all brokers to store.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Final, NamedTuple

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from liftbridge_broker.api.grpc.health import Health
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.api.streams import REQUEST_BYTES_MAX
from liftbridge_broker.config.options import BrokerOptions
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.logformat.varint import encode_varint
from liftbridge_broker.ports.transport import Channel
from liftbridge_broker.server.admin import register_admin, register_quotas, register_tokens
from liftbridge_broker.server.services import make_api
from liftbridge_broker.wire.fields import bytes_field
from liftbridge_testkit.admin_calls import admin_of
from liftbridge_testkit.client_calls import WorldClock
from liftbridge_testkit.cluster_world import ClusterWorld
from liftbridge_testkit.request_lists import SERVICES, UNARY, named
from liftbridge_testkit.served_calls import Served
from liftbridge_testkit.turn_time import Longest, share_of_a_turn

OVERHEAD: Final = 256
SIZES: Final = (
    Limits().message_bytes_max - OVERHEAD,
    REQUEST_BYTES_MAX - OVERHEAD,
    BrokerOptions().clustering.record_bytes_max - OVERHEAD,
)
TOO_LARGE: Final = (b"without records", b"exceeds max replication size")
"""What a request is told that is refused for its size alone."""


PASSED_ON_MAX: Final = 16 * 1024
"""Bytes of a change with a few texts of any length that one may have, and of what else is said."""

TEXTS: Final[Mapping[str, tuple[bytes, bytes]]] = {
    "letters": (b"", b"x"),
    "tokens": (b"", b"a."),
    "tokens of brokers": (b"_LIFTBRIDGE.", b"a."),
    "wide letters": (b"", "é".encode()),
    "blanks": (b"", b" "),
}
"""By name, what a text begins with and what is repeated then."""


class Full(NamedTuple):
    """A field that can be large, and what it may be full of.

    Attributes:
        path: Fields of messages that lead to it.
        field: The field.
        filling: What of.
        make: Its bytes, of a given size.
    """

    path: tuple[FieldDescriptor, ...]
    field: FieldDescriptor
    filling: str
    make: Callable[[int], bytes]

    @property
    def name(self) -> str:
        return ".".join(one.name for one in (*self.path, self.field)) + f" of {self.filling}"

    def request(self, base: bytes, size: int) -> bytes:
        """A whole request."""
        content = self.make(size - len(base))
        for field in reversed(self.path):
            content = bytes_field(field.number, content)
        return base + content


DIGITS: Final = range(0x21, 0x7F)
KEYS: Final = [bytes(key) for key in product(DIGITS, DIGITS, DIGITS)]


def _numbered(head: Callable[[bytes], bytes], size: int) -> bytes:
    """As many distinct entries as fit."""
    return b"".join(map(head, KEYS[: size // len(head(KEYS[0]))]))


def _fillings(field: FieldDescriptor) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    number, kind = field.number, field.message_type
    head = encode_varint(number << 3 | 2) + b"\0"
    is_text = field.type == FieldDescriptor.TYPE_STRING
    if not field.is_repeated:
        if field.type == FieldDescriptor.TYPE_BYTES:
            yield "bytes", lambda size: bytes_field(number, b"x" * size)
        for name, (prefix, text) in TEXTS.items() if is_text else ():
            yield name, partial(_text, number, prefix, text)
        return
    if kind is None and not is_text and field.type != FieldDescriptor.TYPE_BYTES:
        yield "numbers", lambda size: bytes_field(number, b"\x01" * size)
        return
    yield "nothing", lambda size: head * (size // len(head))
    if kind is not None and kind.GetOptions().map_entry:
        has_texts = kind.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
        yield (
            "keys",
            lambda size: _numbered(
                lambda key: bytes_field(
                    number, bytes_field(1, key) if has_texts else b"\x08" + _digits(key)
                ),
                size,
            ),
        )
    elif kind is None:
        yield "entries", lambda size: _numbered(lambda key: bytes_field(number, key), size)
        yield "one text", lambda size: bytes_field(number, b"a." * (size // 2))


def _text(number: int, prefix: bytes, text: bytes, size: int) -> bytes:
    """A text of one thing."""
    return bytes_field(number, prefix + text * ((size - len(prefix)) // len(text)))


def _digits(key: bytes) -> bytes:
    """A varint of three bytes."""
    return bytes((key[0] | 0x80, key[1] | 0x80, key[2]))


def _full(message: Descriptor, path: tuple[FieldDescriptor, ...] = ()) -> Iterator[Full]:
    """All fields of a message, and of those within it."""
    for field in message.fields:
        for filling, make in _fillings(field):
            yield Full(path, field, filling, make)
        kind = field.message_type
        if kind is not None and not kind.GetOptions().map_entry:
            yield from _full(kind, (*path, field))


METHODS: Final = [method for service in SERVICES for method in service.methods]


def register_all(server: GrpcServer, world: ClusterWorld) -> None:
    """Register the services for operators beside those for clients."""
    admin = admin_of(world, 1).context
    register_admin(server, admin)
    register_tokens(server, admin)
    register_quotas(server, admin)


@pytest.fixture(scope="module")
def served() -> Served:
    world = ClusterWorld(1)
    world.create("s", factor=1)
    world.commit(b"v")
    api = make_api(BrokerOptions(), world[1].node, WorldClock(world), world[1], Health())
    api.context.turns = None
    register_all(api.server, world)
    return Served(world, api.server)


@pytest.fixture(scope="module")
def follower() -> Served:
    """A broker that passes changes on to the leader of the metadata, and refuses none itself."""
    worlds = (ClusterWorld(3, seed) for seed in range(1, 100))
    world = next(one for one in worlds if not one[1].consensus.is_leader)
    world.create("s", factor=1)
    api = make_api(BrokerOptions(), world[1].node, WorldClock(world), world[1], Health())
    register_all(api.server, world)
    return Served(world, api.server)


def _passed_on(follower: Served, method: MethodDescriptor, raw: bytes) -> int:
    """Bytes of a request's change that are sent to the leader of the metadata."""
    world = follower.world
    world.until(lambda: world[1].consensus.leader is not None)
    assert not world[1].consensus.is_leader
    world.sent.clear()
    follower.call(f"/{method.containing_service.full_name}/{method.name}", [raw])
    return sum(len(one.payload) for one in world.sent if one.channel is Channel.METADATA)


def test_broker_that_does_not_lead_the_metadata_passes_changes_on(follower: Served) -> None:
    create = next(one for one in METHODS if one.full_name == "proto.API.CreateStream")
    name = "x" * 200
    request = named(GetMessageClass(create.input_type)(), name).SerializeToString()
    assert len(name) < _passed_on(follower, create, request) < PASSED_ON_MAX


@pytest.mark.parametrize("method", UNARY, ids=lambda one: one.full_name)
def test_text_too_long_for_any_name_is_not_passed_on_to_the_metadata(
    follower: Served, method: MethodDescriptor
) -> None:
    base = named(GetMessageClass(method.input_type)()).SerializeToString()
    passed: dict[str, int] = {}
    for full in _full(method.input_type):
        if full.field.type == FieldDescriptor.TYPE_STRING:
            raw = full.request(base, REQUEST_BYTES_MAX - OVERHEAD)
            passed[full.name] = _passed_on(follower, method, raw)
    assert {name: size for name, size in passed.items() if size > PASSED_ON_MAX} == {}


def test_records_that_are_full_of_one_thing_take_no_longer_than_half_a_turn(
    served: Served,
) -> None:
    method = next(one for one in METHODS if one.name == "PublishBatch")
    path = f"/{method.containing_service.full_name}/{method.name}"
    base = named(GetMessageClass(method.input_type)()).SerializeToString()
    took: dict[str, float] = {}
    for full in _full(method.input_type):
        for count in (0, 1):
            raw = full.request(bytes_field(5, b"v") * count + base, SIZES[0])
            took[f"{full.name} beside {count} values"], _ = _share(served, path, raw, 0.5)
    assert {name: share for name, share in took.items() if share > 0.5} == {}


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.full_name)
def test_no_request_that_is_full_of_one_thing_takes_longer_than_a_turn(
    served: Served, method: MethodDescriptor
) -> None:
    path = f"/{method.containing_service.full_name}/{method.name}"
    base = bytes_field(5, b"v") if method.name == "PublishBatch" else b""  # its one value
    base += named(GetMessageClass(method.input_type)()).SerializeToString()
    took: dict[str, float] = {}
    for full in _full(method.input_type):
        for size in SIZES:
            raw = full.request(base, size)
            share, told = _share(served, path, raw, 1)
            took[f"{full.name}, {size} bytes"] = share
            if not any(one in told for one in TOO_LARGE):
                break  # it was looked into, and a smaller one costs less
    assert {name: share for name, share in took.items() if share > 1} == {}


def _share(served: Served, path: str, raw: bytes, enough: float) -> tuple[float, bytes]:
    """Share of a turn that the longest one of a call takes, and what it is told."""
    told = b""

    def call(watch: Longest) -> None:
        nonlocal told
        port = served.call(path, [raw], watch)
        told = bytes(port.sent) + f"{port.end}".encode()

    return share_of_a_turn(call, enough), told

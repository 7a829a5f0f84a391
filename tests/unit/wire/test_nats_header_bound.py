"""Messages with too many NATS headers are left out, beside a model; the others stay in order."""

from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.adapters.nats.headers import HEADERS_MAX, leave_out_wide
from liftbridge_broker.ports.messaging import Arrival
from liftbridge_broker.wire.nats import header_block

COUNTS = st.sampled_from((0, 1, 2, HEADERS_MAX - 1, HEADERS_MAX, HEADERS_MAX + 1, 70_000))


def arrival(subject: str, count: int) -> Arrival:
    return Arrival(subject, "", header_block([("a", "b")] * count) if count else b"")


@given(st.lists(st.tuples(st.sampled_from("xy"), COUNTS), min_size=1, max_size=8))
def test_messages_with_more_headers_than_the_bound_are_left_out(
    messages: list[tuple[str, int]],
) -> None:
    arrivals = [arrival(subject, count) for subject, count in messages]
    payloads = [str(number).encode() for number in range(len(messages))]
    kept = [number for number, (_, count) in enumerate(messages) if count <= HEADERS_MAX]
    assert leave_out_wide(arrivals, payloads) == (
        [arrivals[number] for number in kept],
        [payloads[number] for number in kept],
    )

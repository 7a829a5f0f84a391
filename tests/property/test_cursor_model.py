"""The index of cursors against a plain mapping, whatever its bound."""

from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.groups.cursors import (
    UNKNOWN,
    CursorIndex,
    CursorPosition,
    CursorScan,
    IndexState,
    Missing,
)
from liftbridge_broker.model.ids import Offset

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
RECORDS = st.lists(
    st.tuples(KEYS, st.none() | st.builds(CursorPosition, st.integers(-5, 5))), max_size=40
)


@given(RECORDS, st.integers(1, 6), st.lists(KEYS, max_size=10))
def test_every_look_up_gives_the_latest_or_says_that_it_must_scan(
    records: list[tuple[bytes, CursorPosition | None]], cursors_max: int, reads: list[bytes]
) -> None:
    index = CursorIndex(Offset(0), cursors_max=cursors_max)
    latest: dict[bytes, CursorPosition | None] = {}
    for offset, (key, value) in enumerate(records):
        index.feed(key, value, Offset(offset))
        latest[key] = value
        for read in reads:
            index.look_up(read)
    assert index.state(Offset(len(records))) is IndexState.READY
    assert len(index) <= cursors_max

    for key in (b"a", b"b", b"c", b"d", b"e", b"other"):
        found = index.look_up(key)
        if found is Missing.ABSENT:
            found = UNKNOWN
        elif found is Missing.FORGOTTEN:
            scan = CursorScan((key,), Offset(0))
            for offset, (other, value) in enumerate(records):
                scan.feed(other, value, Offset(offset))
            found = scan.results[key]
        expected = latest.get(key)
        assert found == (UNKNOWN if expected is None else expected)

"""The filter of the NATS proxy: it drops what it should and changes nothing else."""

import pytest

from liftbridge_testkit.nats_proxy import PublishFilter

STREAM = (
    b'CONNECT {"verbose":false}\r\nPING\r\n'
    b"PUB ns.b.b2.meta 5\r\nPUB x\r\n"
    b"PUB ns.b.b3.meta 4\r\n\r\n\r\n\r\n"
    b"HPUB ns.b.b2.data reply 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    b"SUB ns.b.b2.meta 1\r\nPUB ns.b.b22.meta 0\r\n\r\n"
)
KEPT = (
    b'CONNECT {"verbose":false}\r\nPING\r\n'
    b"PUB ns.b.b3.meta 4\r\n\r\n\r\n\r\n"
    b"SUB ns.b.b2.meta 1\r\nPUB ns.b.b22.meta 0\r\n\r\n"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_publishes_to_a_broker_are_dropped_however_they_are_cut(size):
    filtered = PublishFilter()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert b"".join(filtered.take(piece, ["ns.b.b2."]) for piece in pieces) == KEPT
    assert filtered.dropped_count == 2


@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_without_a_prefix_everything_passes(size):
    filtered = PublishFilter()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert b"".join(filtered.take(piece, []) for piece in pieces) == STREAM
    assert filtered.dropped_count == 0

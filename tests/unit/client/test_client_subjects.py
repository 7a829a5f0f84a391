"""Streams that a NATS subject feeds."""

from datetime import UTC, datetime
from itertools import product

import pytest

from liftbridge_broker.model.subjects import matches
from liftbridge_client import UsageError
from liftbridge_client.core.codec import partition_of
from liftbridge_client.core.subjects import check_concrete, is_fed
from liftbridge_client.model import StreamInfo
from liftbridge_proto import api_pb2

TOKENS = ("a", "b", "1")
PATTERNS = [
    ".".join(tokens)
    for size in (1, 2, 3)
    for tokens in product((*TOKENS, "*", ">"), repeat=size)
    if ">" not in tokens[:-1]
]
SUBJECTS = [".".join(tokens) for size in (1, 2, 3, 4) for tokens in product(TOKENS, repeat=size)]


def stream(subject: str, partitions: int = 1, name: str = "s") -> StreamInfo:
    part = partition_of(api_pb2.PartitionMetadata())
    parts = {number: part._replace(number=number) for number in range(partitions)}
    return StreamInfo(name, subject, datetime.now(UTC), parts)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_stream_is_fed_by_what_nats_delivers_to_its_partitions(pattern: str) -> None:
    counts = (1,) if pattern.endswith(">") else (1, 2)
    for subject, count in product(SUBJECTS, counts):
        wanted = matches(pattern, subject) or (count > 1 and matches(f"{pattern}.1", subject))
        assert is_fed(stream(pattern, count), subject) is wanted, subject


@pytest.mark.parametrize("subject", ["$SYS.a", "_INBOX.a", "_LIFTBRIDGE.ns.ack.1"])
def test_stream_is_not_fed_by_what_brokers_leave_out(subject: str) -> None:
    assert not is_fed(stream(">"), subject)
    assert is_fed(stream(">"), "a")
    assert not is_fed(stream(">", name="__cursors"), "a")


@pytest.mark.parametrize("subject", ["a.*", ">", "a..b", ".a", "a b", "a.b\n", "*"])
def test_subject_that_nobody_publishes_to_is_refused(subject: str) -> None:
    with pytest.raises(UsageError, match="must be a subject that messages are published to"):
        check_concrete(subject)
    check_concrete("a.b-c.ü")

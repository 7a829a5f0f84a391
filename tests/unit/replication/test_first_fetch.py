"""A fetch session before its first answer."""

from liftbridge_broker.model.fetching import FetchPosition
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
)
from liftbridge_broker.replication.fetch_sessions import FollowerSession, SessionLimits


def test_nothing_more_is_asked_before_the_first_answer_names_the_session():
    session = FollowerSession(
        BrokerId("a"),
        leader_broker_epoch=3,
        first_correlation_id=100,
        limits=SessionLimits(),
        now=Instant(0),
    )

    def tell(partition):
        start = Offset(0)
        session.put(
            FetchPosition(
                PartitionId(partition),
                MetadataIndex(1),
                LeaderEpoch(1),
                start,
                start,
                None,
                start,
            )
        )
        return session.next_request(Instant(0))

    assert tell(1) is not None
    assert tell(2) is None

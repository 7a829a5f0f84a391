"""A fetch session before its first answer, and after a connection was lost."""

from liftbridge_broker.model.fetching import FetchPosition
from liftbridge_broker.model.ids import (
    BrokerId,
    Instant,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
)
from liftbridge_broker.replication.fetch_sessions import (
    EVERY_FETCH,
    FollowerSession,
    SessionLimits,
    connection_lost,
)


def new_session():
    return FollowerSession(
        BrokerId("a"),
        leader_broker_epoch=3,
        first_correlation_id=100,
        limits=SessionLimits(),
        now=Instant(0),
    )


def tell(session, partition):
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


def test_nothing_more_is_asked_before_the_first_answer_names_the_session():
    session = new_session()
    assert tell(session, 1) is not None
    assert tell(session, 2) is None


def test_follower_fetches_anew_when_the_leader_lost_its_connection():
    session = new_session()
    held = tell(session, 1)
    assert session.next_request(Instant(0)) is None
    assert not session.on_reply(EVERY_FETCH, connection_lost(), Instant(0))
    again = session.next_request(Instant(0))
    assert again.body == held.body
    assert again.correlation_id != held.correlation_id

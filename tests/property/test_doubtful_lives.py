"""Random lives of replicas whose leaders often cannot know what became of a proposal (L6)."""

from liftbridge_testkit.sessions.doubt import DoubtfulLife

LIVES = 5
DOUBTS_MIN = 5


def test_replicas_survive_proposals_of_which_the_log_says_nothing():
    lives = [DoubtfulLife(seed) for seed in range(LIVES)]
    for life in lives:
        life.run()
    assert sum(life.world.counts["doubt"] for life in lives) >= DOUBTS_MIN

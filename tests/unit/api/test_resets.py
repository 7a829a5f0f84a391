"""Streams reset by all connections in a second, beside a model: the bound, and who has to go."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.api.grpc.resets import WINDOW_NS, Resets

RESETS_MAX = 20
USERS = st.sampled_from("abcde")
STEPS = st.lists(
    st.one_of(
        st.tuples(USERS, st.integers(1, RESETS_MAX)),
        st.tuples(USERS, st.just(0)),  # it is gone
        st.tuples(st.just(""), st.integers(0, 2 * WINDOW_NS)),  # time passes
    )
)


@given(STEPS)
def test_who_resets_most_goes_first_and_the_rest_stay_within_the_bound(
    steps: list[tuple[str, int]],
) -> None:
    resets: Resets[str] = Resets(RESETS_MAX)
    now, began = WINDOW_NS, 0
    done: Counter[str] = Counter()
    for user, count in steps:
        if not user:
            now += count
            continue
        if not count:
            resets.forget(user)
            del done[user]
            continue
        if now - began >= WINDOW_NS:
            done.clear()
            began = now
        done[user] += count
        largest = resets.count(user, count, now)
        if done.total() <= RESETS_MAX:
            assert largest is None
        else:
            assert largest is not None
            name, most = largest
            assert most == done[name] == max(done.values())
            del done[name]
            assert done.total() <= RESETS_MAX

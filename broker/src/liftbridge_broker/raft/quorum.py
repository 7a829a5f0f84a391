"""Majorities of voters."""

from collections.abc import Iterable, Mapping

from liftbridge_broker.model.metadata_log import Peer


def majority(voter_count: int) -> int:
    """Return the size of a majority of `voter_count` voters."""
    return voter_count // 2 + 1


def reached_by_majority(values: Iterable[int]) -> int:
    """Return the highest value that a majority of `values` reaches; 0 without voters."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0


def tally(voters: tuple[Peer, ...], votes: Mapping[Peer, bool]) -> bool | None:
    """Return whether the election is won, `None` while open. Only votes of `voters` count."""
    needed = majority(len(voters))
    granted = refused = 0
    for voter in voters:
        answer = votes.get(voter)
        if answer is not None:
            granted += answer
            refused += not answer
    if voters and granted >= needed:
        return True
    return False if refused > len(voters) - needed else None

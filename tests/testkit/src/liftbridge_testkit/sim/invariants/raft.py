"""Check the metadata group (I16, Raft fig. 3): one leader a term, one command an index, one state.

The true state contains everything that any member has reported as committed. A member may lag
behind it and must never contradict it.
"""

from typing import NamedTuple, cast

from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.voter import Voter
from liftbridge_testkit.sim.world import Watcher

ALL_BYTES = 1 << 40


class TrueEntry(NamedTuple):
    """A committed entry: its term and its content."""

    term: int
    data: bytes


class RaftRules(Watcher):
    """Compares every member with the true state.

    Attributes:
        entries: Committed entry at each index, from 1; index 0 holds nothing.
        committed_in: The term in which each was committed, or a later one.
        leaders: Leader of each term.
        chains: Hash of the state after an index.
    """

    def __init__(self) -> None:
        self.entries: list[TrueEntry] = [TrueEntry(0, b"")]
        self.committed_in: list[int] = [0]
        self.leaders: dict[int, str] = {}
        self.chains: dict[int, int] = {}
        self._checked: dict[tuple[str, int], int] = {}

    def on_turn(self, machine: Machine) -> None:
        """Check the member that had a turn."""
        program = machine.program
        if program is None or not program.is_ready:
            return
        voter = cast("Voter", program)
        core = voter.consensus.core
        if core.is_leader and self.leaders.get(core.term) != machine.name:
            self._on_new_leader(machine, voter)
        applied = voter.driver.state.applied_index
        key = (machine.name, machine.incarnation)
        checked = self._checked.get(key, 0)
        if applied > checked:
            self._check_applied(machine, voter, checked, applied)
            self._checked[key] = applied
        elif applied < checked:
            raise BrokenInvariantError(
                "I16", f"{machine.name} went from index {checked} back to {applied}"
            )

    def _on_new_leader(self, machine: Machine, voter: Voter) -> None:
        """Check election safety and leader completeness (Raft 5.2, 5.4)."""
        core = voter.consensus.core
        other = self.leaders.setdefault(core.term, machine.name)
        if other != machine.name:
            raise BrokenInvariantError(
                "election safety", f"{other} and {machine.name} both lead term {core.term}"
            )
        # A member that was paused may learn of its election after later terms have committed more.
        last = len(self.entries) - 1
        while last and self.committed_in[last] >= core.term:
            last -= 1
        # Logs that agree in one entry agree in all before it, so the last committed one decides.
        is_kept = last >= voter.log.first_index
        if last and is_kept and core.log.term_at(last) != self.entries[last].term:
            raise BrokenInvariantError(
                "leader completeness",
                f"{machine.name} leads term {core.term} with term {core.log.term_at(last)} at "
                f"index {last}, where term {self.entries[last].term} is committed",
            )

    def _check_applied(self, machine: Machine, voter: Voter, checked: int, applied: int) -> None:
        """Check state machine safety (Raft 5.4.3), and one state for one history (I16)."""
        log, entries = voter.log, self.entries
        low = max(checked + 1, log.first_index)
        if low <= min(applied, log.last_index):
            for entry in log.entries(low, min(applied, log.last_index) + 1, ALL_BYTES):
                index, found = entry.entry_index, TrueEntry(entry.term, entry.data)
                if index == len(entries):
                    entries.append(found)
                    # The first member to apply it learned of it in this term at the latest.
                    self.committed_in.append(voter.consensus.core.term)
                elif index < len(entries) and entries[index] != found:
                    raise BrokenInvariantError(
                        "state machine safety",
                        f"{machine.name} applied another entry at index {index}: term "
                        f"{entry.term}, committed was term {entries[index].term}",
                    )
        chain = voter.driver.state.chain
        known = self.chains.setdefault(applied, chain)
        if known != chain:
            raise BrokenInvariantError(
                "I16", f"the state of {machine.name} after index {applied} differs from others'"
            )

"""Options of the core."""

from dataclasses import dataclass

from liftbridge_broker.model.units import KIB, MIB, MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Times and bounds; the defaults of times are those of docs/reference/configuration.md.

    Attributes:
        heartbeat_ns: Time between heartbeats of a leader.
        election_ns: Minimum silence of the leader before an election. A leader without a quorum for
            this time steps down, and a peer that heard a leader within this time refuses to vote.
        election_spread_ns: Maximum random addition to `election_ns`.
        append_bytes_max: Maximum data of the entries of a message; one entry always fits.
        append_entries_max: Maximum number of entries of a message.
        inflight_messages_max: Maximum number of unanswered appends to a follower.
        inflight_bytes_max: Maximum data in unanswered appends.
        entry_bytes_max: Maximum length of a proposal.
        uncommitted_bytes_max: Maximum size of a leader's uncommitted proposals; further proposals
            are refused.
        unstable_bytes_max: Maximum size of entries that wait for the disk; a follower drops further
            appends.
        committed_bytes_max: Maximum data of `Ready.committed`; one entry always fits.
        snapshot_bytes_max: Maximum length of a snapshot accepted from a leader.
        chunk_bytes_max: Maximum data of an `InstallChunk`.
        reads_max: Maximum number of pending reads, including those of followers.
        messages_max: Maximum number of messages that wait for the host; more are dropped, as a
            network may do.
        catch_up_entries_max: Maximum lag, in entries, of a learner to promote.
        voters_max: Maximum number of voters of a configuration.
        members_max: Maximum number of voters and learners of a configuration.
    """

    heartbeat_ns: int = 100 * MILLISECOND_NS
    election_ns: int = 500 * MILLISECOND_NS
    election_spread_ns: int = 250 * MILLISECOND_NS
    append_bytes_max: int = 256 * KIB
    append_entries_max: int = 4_096
    inflight_messages_max: int = 64
    inflight_bytes_max: int = 4 * MIB
    entry_bytes_max: int = 1 * MIB
    uncommitted_bytes_max: int = 16 * MIB
    unstable_bytes_max: int = 64 * MIB
    committed_bytes_max: int = 1 * MIB
    snapshot_bytes_max: int = 256 * MIB
    chunk_bytes_max: int = 512 * KIB
    reads_max: int = 1_024
    messages_max: int = 4_096
    catch_up_entries_max: int = 100
    voters_max: int = 9
    members_max: int = 256

    def __post_init__(self) -> None:
        """Check the relations that the algorithm requires."""
        assert 0 < self.heartbeat_ns <= self.election_ns // 2
        assert self.election_spread_ns > 0
        assert self.inflight_messages_max > 0
        assert self.append_entries_max > 0
        assert self.chunk_bytes_max > 0
        assert 0 < self.voters_max <= self.members_max

"""The operator's port to brokers, implemented by the model of brokers."""

from collections.abc import Callable, Mapping, Sequence

from liftbridge_operator.cluster.brokers.port import Consent, ProcessReport, Refusal, Verified
from liftbridge_operator.cluster.planning.actions import Move
from liftbridge_operator.cluster.planning.observation import Member, Metadata
from liftbridge_testkit.operator_sim.errors import ApiError
from liftbridge_testkit.operator_sim.stage import Stage
from liftbridge_testkit.operator_sim.told import metadata_of, reports_of

_CODES: Mapping[int, str] = {404: "NOT_FOUND", 409: "FAILED_PRECONDITION", 504: "UNAVAILABLE"}


class ModelAdmin:
    """`BrokerAdmin` over the brokers of a stage.

    Attributes:
        calls: Names of the requested changes, in order.
        is_silent: Whether no broker answers.
        clock_off_ms: Time by which clocks of brokers are ahead of the operator's.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.calls: list[str] = []
        self.is_silent = False
        self.clock_off_ms = 0

    async def close(self) -> None:
        """No-op: no connection is open."""

    def _change(self, name: str, change: Callable[[], object]) -> Refusal | None:
        self.calls.append(name)
        if self.is_silent or not self._stage.brokers.has_quorum:
            return Refusal("UNAVAILABLE", "no leader of the metadata")
        return self._try(change)

    @staticmethod
    def _try(change: Callable[[], object]) -> Refusal | None:
        try:
            change()
        except ApiError as error:
            return Refusal(_CODES[error.code], str(error))
        return None

    # -- queries ------------------------------------------------------------------------------

    async def process_report(self, broker: str) -> ProcessReport | Refusal:
        """See the port."""
        for report in reports_of(self._stage):
            if report.broker == broker and not self.is_silent:
                return ProcessReport(report, self._stage.brokers.leader)
        return Refusal("UNAVAILABLE", f"{broker} does not answer")

    async def metadata(self, broker: str) -> Metadata | Refusal:
        """See the port."""
        found = metadata_of(self._stage)
        if found is None or self.is_silent:
            return Refusal("UNAVAILABLE", "no leader of the metadata")
        if found.leader != broker:
            return Refusal("FAILED_PRECONDITION", f"{found.leader} leads")
        return found

    async def check_restart(
        self, broker: str, start_id: str, *, accepts_unavailable: bool, needs_full_isr: bool
    ) -> Consent | Refusal:
        """See the port."""
        del needs_full_isr
        self.calls.append("check_restart")
        try:
            text, expires_ms, blockers = self._stage.brokers.check_restart(
                broker, start_id, accepts=accepts_unavailable
            )
        except ApiError as error:
            return Refusal(_CODES[error.code], str(error))
        return Consent(text.encode(), expires_ms + self.clock_off_ms, 1, blockers)

    async def verify_restart(self, broker: str, token: bytes) -> Verified | Refusal:
        """See the port."""
        del broker
        try:
            missing = self._stage.brokers.missing(token.decode())
        except ApiError as error:
            return Refusal(_CODES[error.code], str(error))
        if missing is None:
            return Verified(is_complete=False, is_other_directory=True)
        return Verified(not missing, is_other_directory=False, blockers=missing)

    # -- changes ------------------------------------------------------------------------------

    async def bootstrap(
        self, broker: str, cluster_id: str, founders: Sequence[Member]
    ) -> Refusal | None:
        """See the port."""
        self.calls.append("bootstrap")
        me = next(founder for founder in founders if founder.broker == broker)
        listed = tuple(founders)
        return self._try(lambda: self._stage.brokers.bootstrap(me, cluster_id, listed))

    async def retire(self, member: Member) -> Refusal | None:
        """See the port."""
        return self._change("retire", lambda: self._stage.brokers.retire(member))

    async def transfer_leaders(self, leader: str, broker: str, *, to: str) -> Refusal | None:
        """See the port."""
        del leader
        brokers = self._stage.brokers
        return self._change("transfer_leaders", lambda: brokers.transfer_leaders(broker, to))

    async def transfer_metadata(self, leader: str, to: str) -> Refusal | None:
        """See the port."""
        del leader
        brokers = self._stage.brokers

        def change() -> None:
            if to in {voter.broker for voter in brokers.alive_voters()}:
                brokers.leader = to
                brokers.term += 1

        return self._change("transfer_metadata", change)

    async def elect_preferred(
        self, leader: str, partitions: Sequence[tuple[str, int]]
    ) -> Refusal | None:
        """See the port."""
        del leader
        listed = tuple(partitions)
        brokers = self._stage.brokers
        return self._change("elect_preferred", lambda: brokers.elect_preferred(listed))

    async def cordon(self, leader: str, broker: str, *, is_draining: bool) -> Refusal | None:
        """See the port."""
        del leader

        def change() -> None:
            known = self._stage.brokers.registered.get(broker)
            if known is None:
                raise ApiError(404, "no such broker")
            known.is_cordoned, known.is_draining = True, is_draining

        return self._change("cordon", change)

    async def uncordon(self, leader: str, broker: str) -> Refusal | None:
        """See the port."""
        del leader

        def change() -> None:
            known = self._stage.brokers.registered.get(broker)
            if known is not None:
                known.is_cordoned = known.is_draining = False

        return self._change("uncordon", change)

    async def add_learner(self, leader: str, member: Member) -> Refusal | None:
        """See the port."""
        del leader
        brokers = self._stage.brokers

        def change() -> None:
            if member not in brokers.members:
                brokers.members[member] = False
                brokers.match[member] = 0

        return self._change("add_learner", change)

    async def promote_learner(self, leader: str, member: Member) -> Refusal | None:
        """See the port."""
        del leader
        brokers = self._stage.brokers

        def change() -> None:
            if brokers.members.get(member) is not False:
                raise ApiError(409, "no learner")
            brokers.members[member] = True

        return self._change("promote_learner", change)

    async def remove_member(self, leader: str, member: Member) -> Refusal | None:
        """See the port."""
        del leader
        brokers = self._stage.brokers
        return self._change("remove_member", lambda: brokers.members.pop(member, None))

    async def remove_broker(self, leader: str, broker: str, broker_epoch: int) -> Refusal | None:
        """See the port."""
        del leader
        brokers = self._stage.brokers

        def change() -> None:
            known = brokers.registered.get(broker)
            if known is None or known.epoch != broker_epoch or brokers.holds(broker):
                raise ApiError(409, "another session, or it has replicas")
            del brokers.registered[broker]

        return self._change("remove_broker", change)

    async def set_catch_up_rate(self, leader: str, bytes_per_second: int) -> Refusal | None:
        """See the port."""
        del leader
        brokers = self._stage.brokers
        return self._change(
            "set_catch_up_rate", lambda: setattr(brokers, "catch_up_rate", bytes_per_second)
        )

    async def set_feature_level(self, leader: str, level: int) -> Refusal | None:
        """See the port."""
        del leader
        brokers = self._stage.brokers

        def change() -> None:
            if not brokers.feature_level <= level <= brokers.known_level():
                raise ApiError(409, "not every broker knows it, or it is lower")
            brokers.feature_level = level

        return self._change("set_feature_level", change)

    async def reassign(self, leader: str, move: Move) -> Refusal | None:
        """See the port."""
        del leader
        key = (move.stream, move.number)
        brokers = self._stage.brokers
        return self._change(
            "reassign", lambda: brokers.reassign(key, move.target, move.partition_epoch)
        )

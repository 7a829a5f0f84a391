"""One pass over a cluster: look, decide, say, do one thing.

The status is written before the action: what is about to be disrupted stands in it already, and a
generation that was seen is told at once. Both carry the version of the resource that was read, so
that of two processes that believe to lead only one gets through. What a process remembers between
passes costs time when it is lost, and nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import structlog

from liftbridge_operator.acting.hands import Done, Hands, Trouble
from liftbridge_operator.acting.on_objects import keep_token
from liftbridge_operator.acting.perform import perform, refused_by_server
from liftbridge_operator.acting.supply import forget_revisions, release_volumes, supply
from liftbridge_operator.brokers.grpc_admin import TlsMaterial
from liftbridge_operator.catalogue.names import EventReason
from liftbridge_operator.kube.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from liftbridge_operator.kube.kinds import CLUSTERS
from liftbridge_operator.kube.port import Fence, Kube, Object
from liftbridge_operator.model.base import camel
from liftbridge_operator.model.cluster_status import ClusterStatus
from liftbridge_operator.model.storage import VolumeFate
from liftbridge_operator.observing.answers import Answers, ask
from liftbridge_operator.observing.assembly import askable, observation_of, pods_of
from liftbridge_operator.observing.objects import metadata_of, uid_of
from liftbridge_operator.observing.reads import Reads, read
from liftbridge_operator.observing.times import next_opening_ms
from liftbridge_operator.observing.wishes import (
    Specification,
    memory_of,
    recorded_of,
    specification_of,
    wanted_of,
)
from liftbridge_operator.planning import actions as act
from liftbridge_operator.planning.decide import decide
from liftbridge_operator.planning.decision import Decision, Memory, Wait
from liftbridge_operator.planning.observation import Observation
from liftbridge_operator.planning.roll import remember
from liftbridge_operator.planning.status import carried
from liftbridge_operator.reconciling.ports import (
    Connect,
    Connection,
    ImageOf,
    Issue,
    Issued,
    Itself,
)
from liftbridge_operator.reconciling.sight import (
    Subject,
    cluster_id_of,
    cluster_of,
    foreign_set,
    inputs_of,
    lost_claims,
    pending_claims,
    surroundings,
    wanted_as_is,
)
from liftbridge_operator.rendering.render import render
from liftbridge_operator.reporting.account import Account
from liftbridge_operator.reporting.events import Happened, of_action, of_status
from liftbridge_operator.reporting.status import status_of
from liftbridge_operator.runtime.reconciler import Key, RequeueAfter

SOON: Final = RequeueAfter(1.0)
"""After an action, and while something is waited for that brokers alone tell of."""
WATCHFUL: Final = RequeueAfter(2.5)
QUIET: Final = RequeueAfter(10.0)
"""Brokers send no events: a cluster at rest is looked at so often."""
STATUS_FIELDS: Final = frozenset(camel(name) for name in ClusterStatus.model_fields)

log = structlog.get_logger("liftbridge.operator")


class Board(Protocol):
    """Is told the conditions of each resource, for metrics."""

    def tell(self, key: Key, conditions: list[Mapping[str, Any]]) -> None:
        """Keep the conditions of a resource."""
        ...

    def forget(self, key: Key) -> None:
        """Drop a resource that is gone."""
        ...


class Events(Protocol):
    """Tells people what happened."""

    async def tell(
        self, resource: Object, reason: EventReason, values: Mapping[str, object]
    ) -> None:
        """Write an event of the catalogue."""
        ...


@dataclass(slots=True)
class _Remembered:
    """What this process knows of a cluster from the pass before."""

    uid: str
    memory: Memory
    connection: Connection | None = None
    tls: TlsMaterial | None = None
    tokens: dict[str, bytes] = field(default_factory=dict)
    refused: Trouble | None = None


@dataclass(slots=True)
class _Pass:
    """What a pass has found out so far.

    Attributes:
        trouble: Why nothing may be done.
    """

    reads: Reads
    given: Specification
    subject: Subject | None
    issued: Issued
    answers: Answers
    seen: Observation
    trouble: Trouble | None = None


class ClusterReconciler:
    """See the module; one for all clusters, with one pass at a time for each."""

    def __init__(
        self,
        kube: Kube,
        *,
        fence: Fence,
        connect: Connect,
        issue: Issue,
        image_of: ImageOf,
        clock_ms: Callable[[], int],
        fresh_id: Callable[[], str],
        itself: Itself,
        board: Board | None = None,
        events: Events | None = None,
    ) -> None:
        """Remember nobody.

        Args:
            kube: The API server.
            fence: Says whether this process leads.
            connect: Makes connections to brokers.
            issue: Looks after Secrets.
            image_of: Images of versions.
            clock_ms: Time of day, Unix milliseconds.
            fresh_id: Random texts, ids of clusters that are created.
            itself: The operator.
            board: Is told all conditions.
            events: Tells people what happened.
        """
        self._kube = kube
        self._fence = fence
        self._connect = connect
        self._issue = issue
        self._image_of = image_of
        self._clock_ms = clock_ms
        self._fresh_id = fresh_id
        self._itself = itself
        self._board = board
        self._events = events
        self._known: dict[Key, _Remembered] = {}

    async def close(self) -> None:
        """Close all connections to brokers."""
        known, self._known = self._known, {}
        for one in known.values():
            if one.connection is not None:
                await one.connection.close()

    async def reconcile(self, key: Key) -> RequeueAfter | None:
        """One pass; see `runtime.reconciler.Reconciler`."""
        now_ms = self._clock_ms()
        try:
            resource = await self._kube.get(CLUSTERS, key.namespace, key.name)
        except NotFoundError:
            await self._forget(key)
            return None
        known = await self._remembered(key, resource)
        found = await self._look(known, resource, now_ms)
        decision = _until_issued(decide(found.seen, known.memory), found)
        known.memory = decision.memory
        hands = self._hands(known, found)
        if found.trouble is not None or hands is None:
            decision = replace(decision, action=None)
        return await self._say_and_do(key, known, found, decision, hands)

    # -- looking ------------------------------------------------------------------------------

    async def _remembered(self, key: Key, resource: Object) -> _Remembered:
        known = self._known.get(key)
        uid = uid_of(resource)
        if known is None or known.uid != uid:
            await self._forget(key)
            known = self._known[key] = _Remembered(uid, memory_of(resource))
        return known

    async def _forget(self, key: Key) -> None:
        known = self._known.pop(key, None)
        if known is not None and known.connection is not None:
            await known.connection.close()
        if known is not None and self._board is not None:
            self._board.forget(key)

    async def _look(self, known: _Remembered, resource: Object, now_ms: int) -> _Pass:
        """Everything that is read, and what follows from it."""
        reads = await read(self._kube, resource)
        given = specification_of(resource)
        trouble = foreign_set(reads)
        fresh = self._fresh_id()
        try:
            cluster_id = cluster_id_of(reads, fresh)
        except ValueError as error:
            reads = replace(reads, identity=None)
            values = {"object": "the ConfigMap of its identity", "detail": str(error)}
            trouble, cluster_id = Trouble("Conflict", values), fresh
        subject = self._subject(reads, given, cluster_id)
        issued = await self._issued(reads, subject)
        answers = await self._ask(known, reads, subject, issued)
        wanted = (
            wanted_as_is(reads, given.errors)
            if subject is None
            else wanted_of(
                resource,
                subject.cluster.spec,
                revision=subject.rendered.revision,
                now_ms=now_ms,
                refusals=[str(one) for one in subject.rendered.refusals],
                automatic=reads.automatic,
            )
        )
        seen = observation_of(reads, answers, wanted, now_ms=now_ms, fresh_cluster_id=fresh)
        return _Pass(reads, given, subject, issued, answers, seen, trouble or issued.trouble)

    def _subject(self, reads: Reads, given: Specification, cluster_id: str) -> Subject | None:
        if given.spec is None:
            return None
        cluster = cluster_of(reads, given.spec)
        inputs = inputs_of(
            reads,
            given.spec,
            image=self._image_of(given.spec),
            cluster_id=cluster_id,
            itself=self._itself,
        )
        return Subject(cluster, inputs, render(cluster, inputs))

    async def _issued(self, reads: Reads, subject: Subject | None) -> Issued:
        if subject is None or reads.identity is None:
            return Issued()
        may_write = not subject.cluster.spec.paused and not metadata_of(reads.resource).get(
            "deletionTimestamp"
        )
        return await self._issue(subject.cluster, subject.inputs, may_write=may_write)

    async def _ask(
        self, known: _Remembered, reads: Reads, subject: Subject | None, issued: Issued
    ) -> Answers:
        if subject is None or issued.operator is None:
            return Answers()
        if known.connection is None or known.tls != issued.operator:
            if known.connection is not None:
                await known.connection.close()
            known.connection = self._connect(subject.cluster, issued.operator)
            known.tls = issued.operator
        recorded = recorded_of(reads.resource)
        restart = recorded.disruption
        token = reads.token(restart.token) if restart is not None else None
        return await ask(known.connection, askable(pods_of(reads)), restart, token)

    # -- doing --------------------------------------------------------------------------------

    def _hands(self, known: _Remembered, found: _Pass) -> Hands | None:
        if found.subject is None:
            return None
        metadata = found.seen.metadata
        if known.connection is None:
            known.connection = self._connect(found.subject.cluster, None)
        return Hands(
            kube=self._kube,
            admin=known.connection,
            leader=metadata.leader if metadata is not None else "",
            cluster=found.subject.cluster,
            inputs=found.subject.inputs,
            rendered=found.subject.rendered,
            reads=found.reads,
            now_ms=found.seen.now_ms,
        )

    @staticmethod
    def _may_supply(found: _Pass, decision: Decision) -> bool:
        """Whether objects around the set may be written."""
        wanted = found.seen.wanted
        is_left_alone = wanted.is_paused or wanted.is_deleting
        has_set = found.seen.brokers is None or not found.seen.brokers.is_terminating
        return (
            not is_left_alone
            and found.seen.identity is not None
            and has_set
            and found.trouble is None
            and not wanted.config_errors
            and decision.status.stalled != "Conflict"
        )

    async def _supply(self, key: Key, hands: Hands) -> Trouble | None:
        self._fence.check()
        try:
            done = await supply(hands)
        except (ForbiddenError, InvalidError) as error:
            return refused_by_server(error, "an object of the cluster")
        for name, one in done.drift:
            log.warning("drift_repaired", key=str(key), object=name, field=one.field)
            values = {"manager": one.manager, "field": one.field, "object": name}
            await self._tell(hands.reads.resource, Happened(EventReason.DRIFT_REPAIRED, values))
        return done.trouble

    async def _tell(self, resource: Object, *happened: Happened | None) -> None:
        """Tell people; an event that cannot be written is dropped."""
        for one in happened:
            if one is not None and self._events is not None:
                await self._events.tell(resource, one.reason, one.values)

    async def _say_and_do(
        self,
        key: Key,
        known: _Remembered,
        found: _Pass,
        decision: Decision,
        hands: Hands | None,
    ) -> RequeueAfter | None:
        """The status, then what is around the set, then the action."""
        action = decision.action
        if isinstance(action, act.Record) and hands is not None:
            await self._keep_token(known, hands, action)
        account = self._account(found, decision, known.refused)
        try:
            await self._write_status(key, account, found, action)
        except (ConflictError, NotFoundError):
            return SOON  # somebody changed the resource since it was read: look again
        resource = found.reads.resource
        await self._tell(resource, *of_status(account, resource.get("status") or {}))
        if hands is None or isinstance(action, act.Record):
            if action is not None:
                await self._tell(resource, of_action(action, found.seen))
            return _next(decision, action)
        if self._may_supply(found, decision):
            known.refused = await self._supply(key, hands)
            if known.refused is not None:
                return QUIET
        if action is None:
            if decision.status.is_ready:
                await self._tidy(hands, found)
            return _next(decision, action)
        done = await perform(
            hands,
            action,
            deadline_ms=decision.deadline_ms,
            clock_ms=self._clock_ms,
            fence=self._fence,
        )
        self._remember(key, known, action, done)
        if not done.text:
            await self._tell(resource, of_action(action, found.seen, _fate(hands)))
        return SOON if done.trouble is None else QUIET

    async def _keep_token(self, known: _Remembered, hands: Hands, action: act.Record) -> None:
        """The token must be kept before the status names it."""
        restart = action.recorded.disruption
        token = known.tokens.get(restart.token) if restart is not None else None
        if restart is not None and token is not None:
            self._fence.check()
            await keep_token(hands, restart.token, token)

    def _remember(self, key: Key, known: _Remembered, action: act.Action, done: Done) -> None:
        """What the next pass has to know."""
        name = type(action).__name__
        if done.answer is not None and done.answer.text:
            known.tokens = {done.answer.text: done.token}
        known.memory = remember(known.memory, action, done.answer)
        known.refused = done.trouble
        if done.text:
            log.info("action_not_done", key=str(key), action=name, why=done.text)
        else:
            log.info("action_done", key=str(key), action=name, what=str(action))

    async def _tidy(self, hands: Hands, found: _Pass) -> None:
        """Former templates, and volumes of brokers that left, go once nothing can need them."""
        brokers = found.seen.brokers
        if brokers is None or not found.seen.identity:
            return
        kept = {brokers.revision, brokers.good_revision, brokers.bad_revision}
        kept |= {pod.revision for pod in found.seen.pods} | {found.seen.wanted.revision}
        self._fence.check()
        await forget_revisions(hands, kept)
        await release_volumes(hands, brokers.replicas)

    # -- saying -------------------------------------------------------------------------------

    def _account(self, found: _Pass, decision: Decision, refused: Trouble | None) -> Account:
        spec, now_ms = found.given.spec, found.seen.now_ms
        trouble = found.trouble or refused
        if spec is None:
            trouble = Trouble("InvalidSpec", {"detail": "; ".join(found.given.errors)})
        is_closed = spec is not None and not found.seen.wanted.is_window_open
        return Account(
            spec=spec,
            seen=found.seen,
            decision=decision,
            certificates=found.issued.certificates,
            pending=pending_claims(found.reads),
            lost=lost_claims(found.reads),
            next_window_ms=next_opening_ms(spec.disruption.windows, now_ms)
            if spec is not None and is_closed
            else 0,
            trouble=(trouble.reason, trouble.values) if trouble is not None else None,
        )

    async def _write_status(
        self, key: Key, account: Account, found: _Pass, action: act.Action | None
    ) -> None:
        """Write the status when it differs from what the resource has."""
        resource = found.reads.resource
        before = resource.get("status") or {}
        recorded = account.seen.recorded
        if isinstance(action, act.Record):
            recorded = action.recorded
        around = surroundings(found.reads, found.subject, self._itself)
        made = status_of(account, recorded, around, before)
        if self._board is not None:
            self._board.tell(key, made["conditions"])
        if made == {name: value for name, value in before.items() if name in STATUS_FIELDS}:
            return
        metadata = metadata_of(resource)
        self._fence.check()
        await self._kube.apply_status(
            {
                "apiVersion": resource["apiVersion"],
                "kind": resource["kind"],
                "metadata": {
                    "name": metadata["name"],
                    "namespace": metadata["namespace"],
                    "uid": metadata["uid"],
                    "resourceVersion": metadata["resourceVersion"],
                },
                "status": made,
            }
        )


def _fate(hands: Hands) -> str:
    """What becomes of the volume of a broker that leaves."""
    is_deleted = hands.cluster.spec.storage.retention.when_scaled is VolumeFate.DELETE
    return "deleted" if is_deleted else "kept"


def _until_issued(decision: Decision, found: _Pass) -> Decision:
    """The decision, put off while pods would wait for a Secret that is not there yet."""
    if not (found.issued.is_waiting and isinstance(decision.action, act.CreateSet)):
        return decision
    what = found.issued.certificates.secret or found.seen.wanted.name
    wait = Wait("CertificateIssuing", what, found.issued.certificates.detail)
    kept = carried([*decision.status.waits, wait], decision.memory, found.seen.now_ms)
    return replace(
        decision,
        action=None,
        status=replace(decision.status, waits=kept),
        memory=replace(decision.memory, waits=kept),
    )


def _next(decision: Decision, action: act.Action | None) -> RequeueAfter:
    if action is not None:
        return SOON
    return QUIET if decision.status.is_ready else WATCHFUL
